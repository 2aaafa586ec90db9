"""Insert each fault of `faults.py` into a copy of the repository, and report which test finds it: `make mutants`.

First comes the test that found the fault the last time, which `killers.json` stores. Then the tests of `make test` that
name the changed module, or something that it defines, run until one fails, on TensorFlow and then on JAX. The exit code
is the number of faults that no test finds.
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
# This test compares the text of each fault with the sources, and so would fail for every fault.
FINDS_EVERY_FAULT = "tests/test_architecture.py::test_each_fault_finds_its_text"
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", re.MULTILINE)
console = Console()


def copy_repository(folder: Path) -> Path:
    """Copy all files that git does not ignore into a directory, except the large presets, which become a link."""
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
    """Return the public names of classes and functions that a module defines, if they are long enough to search for."""
    tree = ast.parse(path.read_text("utf-8"))
    names = {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    return {name for name in names if len(name) > 3 and not name.startswith("_")}


def tests_of(fault: Fault, root: Path) -> Iterator[list[str]]:
    """Yield groups of test files and directories that may find a fault, the likeliest first.

    The groups are: files that name most of what the module defines; other files that name any of it, and the directory
    for the module's package; directories for packages that import the module; conformance.
    """
    module = fault.path.removesuffix(".py").replace("/", ".")
    package, _, name = module.rpartition(".")
    package_name = package.removeprefix("lmzoo.").split(".")[0].removeprefix("lmzoo_")
    words = [re.compile(rf"\b{re.escape(word)}\b") for word in defined_in(root / fault.path)]
    scores, folders = {}, {package_name}
    for path in sorted((root / "tests").rglob("test_*.py")):
        text, file = path.read_text("utf-8"), path.relative_to(root).as_posix()
        score = sum(bool(word.search(text)) for word in words)
        score += 5 * (module in text) + 5 * (name in path.stem)
        if score and "conformance" not in file:
            scores[file] = score + 2 * file.startswith(f"tests/{package_name}/")
    naming_files = sorted(scores, key=lambda file: (-scores[file], file))
    for path in (root / "lmzoo").rglob("*.py"):
        if re.search(
            rf"(from|import) ({re.escape(module)}|{re.escape(package)} import)\b",
            path.read_text("utf-8"),
        ):
            folders.add(path.relative_to(root / "lmzoo").parts[0])
    test_folders = [f"tests/{folder}" for folder in sorted(folders) if (root / "tests" / folder).is_dir()]
    own_folder = [folder for folder in test_folders if folder == f"tests/{package_name}"]
    importing_folders = sorted(
        ([folder] for folder in test_folders if folder not in own_folder),
        key=lambda folder: folder != ["tests/families"],
    )
    yield from filter(
        None, [naming_files[:4], [*naming_files[4:], *own_folder], *importing_folders, ["tests/conformance"]]
    )


def run_tests(tests: list[str], root: Path, backend: str, marks: str, timeout: float) -> str:
    """Run tests, and return the id of the first that fails, or "" if all pass."""
    environment = {
        **os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(root), "TF_CPP_MIN_LOG_LEVEL": "3",
        "LMZOO_SHARED": os.environ.get("LMZOO_SHARED", str(ROOT.parent / "shared")),
    }  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
    command += ["--deselect", FINDS_EVERY_FAULT]
    command += ["-m", marks] if marks else []
    command += ["-n", "auto"] if len(tests) > 4 or any("." not in test for test in tests) else []
    try:
        process = subprocess.run(
            [*command, *tests], cwd=root, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        console.print(f"  no answer within {timeout:.0f} s", highlight=False)
        return ""
    # Only a failed test has found the fault: missing tests and errors of pytest do not count. With several workers,
    # pytest reports a failure as an interruption.
    has_failed = process.returncode == 1 or (process.returncode == 2 and "stopping after 1 failures" in process.stdout)
    failed_line = FAILED.search(process.stdout) if has_failed else None
    if not has_failed and process.returncode not in (0, 5):
        console.print(
            f"  pytest ended with {process.returncode}: {process.stdout[-300:]}", highlight=False, markup=False
        )
    return failed_line[1] if failed_line else ""


def find_killer(fault: Fault, root: Path, last_killer: str | None, options: argparse.Namespace) -> str:
    """Insert a fault, and return the id of a test that finds it, or "" if none does."""
    path = root / fault.path
    original = path.read_text("utf-8")
    if original.count(fault.before) != 1:
        raise ValueError(f"{fault.name!r}: the text before stands {original.count(fault.before)} times in {fault.file}")
    path.write_text(original.replace(fault.before, fault.after), "utf-8")
    try:
        if last_killer and (killer := run_tests([last_killer], root, "tensorflow", options.marks, options.timeout)):
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
        root = copy_repository(Path(folder))
        for number, fault in enumerate(chosen, 1):
            start = time.perf_counter()
            killer = find_killer(fault, root, None if options.forget else killers.get(fault.name), options)
            seconds = time.perf_counter() - start
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
            current_killers = {name: killers[name] for name in sorted(killers) if name in names}
            KILLERS.write_text(json.dumps(current_killers, indent=1) + "\n", "utf-8")
    console.print(table)
    console.print(f"{len(chosen) - len(survivors)} of {len(chosen)} faults are found.")
    return len(survivors)


if __name__ == "__main__":
    sys.exit(main())
