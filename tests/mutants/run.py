"""Puts each fault of `faults.py` into a copy of the repository and says which test finds it: `make mutants`.

The tests of `make test` that name the changed module, or something that it defines, run until the first one fails;
those that found a fault the last time, which `killers.json` remembers, run before them. Both backends' tests count.
The exit code is the number of faults that nothing finds.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from faults import FAULTS, Fault  # noqa: E402 - the folder is no package

KILLERS = HERE / "killers.json"
# It compares the text of each fault with the sources, and so fails for all of them.
FINDS_EVERY_FAULT = "tests/test_architecture.py::test_each_fault_finds_its_text"
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", re.MULTILINE)
console = Console()


def copy_of_the_repository(folder: Path) -> Path:
    """The files that git tracks or would track, as they are now; presets, which are large, as links."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, folder / name
        if source.is_file() and not name.startswith("presets/"):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    (folder / "presets").symlink_to(ROOT / "presets", target_is_directory=True)
    return folder


def defined_in(path: Path) -> set[str]:
    """Names that a module defines at its top, and that say enough to be searched for."""
    tree = ast.parse(path.read_text("utf-8"))
    names = {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    return {name for name in names if len(name) > 3 and not name.startswith("_")}


def tests_of(fault: Fault, root: Path) -> Iterator[list[str]]:
    """Test files that may find a fault, the likeliest first.

    Those that name most of what its module defines; the others that name any of it, and the module's folder; the
    folders of packages that import the module; conformance.
    """
    module = fault.path.removesuffix(".py").replace("/", ".")
    package, _, name = module.rpartition(".")
    room = package.removeprefix("lmzoo.").split(".")[0].removeprefix("lmzoo_")
    words = [re.compile(rf"\b{re.escape(word)}\b") for word in defined_in(root / fault.path)]
    scores, folders = {}, {room}
    for path in sorted((root / "tests").rglob("test_*.py")):
        text, file = path.read_text("utf-8"), path.relative_to(root).as_posix()
        score = sum(bool(word.search(text)) for word in words)
        score += 5 * (module in text) + 5 * (name in path.stem)
        if score and "conformance" not in file:
            scores[file] = score + 2 * file.startswith(f"tests/{room}/")
    named = sorted(scores, key=lambda file: (-scores[file], file))
    for path in (root / "lmzoo").rglob("*.py"):
        if re.search(
            rf"(from|import) ({re.escape(module)}|{re.escape(package)} import)\b",
            path.read_text("utf-8"),
        ):
            folders.add(path.relative_to(root / "lmzoo").parts[0])
    later = [f"tests/{folder}" for folder in sorted(folders) if (root / "tests" / folder).is_dir()]
    own = [folder for folder in later if folder == f"tests/{room}"]
    others = sorted(
        ([folder] for folder in later if folder not in own), key=lambda folder: folder != ["tests/families"]
    )
    yield from filter(None, [named[:4], [*named[4:], *own], *others, ["tests/conformance"]])


def run_tests(tests: list[str], root: Path, backend: str, marks: str, timeout: float) -> str:
    """The first test that fails, an empty string if none does."""
    environment = {
        **os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(root), "TF_CPP_MIN_LOG_LEVEL": "3",
        "LMZOO_SHARED": os.environ.get("LMZOO_SHARED", str(ROOT.parent / "shared")),
    }  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
    command += ["--deselect", FINDS_EVERY_FAULT]
    command += ["-m", marks] if marks else []
    command += ["-n", "auto"] if len(tests) > 4 or any("." not in test for test in tests) else []
    try:
        done = subprocess.run(
            [*command, *tests], cwd=root, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        console.print(f"  no answer within {timeout:.0f} s", highlight=False)
        return ""
    # Only a test that failed has found something: not one that is gone, nor pytest's own errors. With several workers,
    # pytest calls it an interruption.
    failed = done.returncode == 1 or (done.returncode == 2 and "stopping after 1 failures" in done.stdout)
    found = FAILED.search(done.stdout) if failed else None
    if not failed and done.returncode not in (0, 5):
        console.print(f"  pytest ended with {done.returncode}: {done.stdout[-300:]}", highlight=False, markup=False)
    return found[1] if found else ""


def killer_of(fault: Fault, root: Path, known: str | None, options: argparse.Namespace) -> str:
    """The test that finds a fault, an empty string if none does."""
    path = root / fault.path
    original = path.read_text("utf-8")
    if original.count(fault.before) != 1:
        raise ValueError(f"{fault.name!r}: the text before stands {original.count(fault.before)} times in {fault.file}")
    path.write_text(original.replace(fault.before, fault.after), "utf-8")
    try:
        if known and (killer := run_tests([known], root, "tensorflow", options.marks, options.timeout)):
            return killer
        for backend in ("tensorflow", "jax"):
            for tests in tests_of(fault, root):
                if killer := run_tests(tests, root, backend, options.marks, options.timeout):
                    return killer if backend == "tensorflow" else f"{killer} (on JAX)"
        return ""
    finally:
        path.write_text(original, "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="only faults whose name or file holds one of these")
    parser.add_argument("--marks", default="not slow", help="of pytest: which tests count")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one run of pytest")
    parser.add_argument("--forget", action="store_true", help="search anew, also where a killer is known")
    options = parser.parse_args()
    killers = json.loads(KILLERS.read_text("utf-8")) if KILLERS.exists() else {}
    chosen = [f for f in FAULTS if not options.words or any(word in f"{f.name} {f.file}" for word in options.words)]
    survivors = []
    table = Table("fault", "file", "found by", title=f"{len(chosen)} faults")
    with tempfile.TemporaryDirectory() as folder:
        root = copy_of_the_repository(Path(folder))
        for number, fault in enumerate(chosen, 1):
            began = time.perf_counter()
            killer = killer_of(fault, root, None if options.forget else killers.get(fault.name), options)
            seconds = time.perf_counter() - began
            line = f"{number}/{len(chosen)} {fault.name}: {killer or 'NOT FOUND'} ({seconds:.0f} s)"
            console.print(line, highlight=False, markup=False, soft_wrap=True)
            sys.stdout.flush()
            table.add_row(fault.name, fault.file, escape(killer) or "[red]nothing[/]")
            if killer:
                killers[fault.name] = killer
            else:
                survivors.append(fault.name)
                killers.pop(fault.name, None)
            names = {f.name for f in FAULTS}
            kept = {name: killers[name] for name in sorted(killers) if name in names}
            KILLERS.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    console.print(table)
    console.print(f"{len(chosen) - len(survivors)} of {len(chosen)} faults are found.")
    return len(survivors)


if __name__ == "__main__":
    sys.exit(main())
