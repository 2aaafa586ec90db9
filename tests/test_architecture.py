"""The shape of the code: which way imports point, how big files are, what `import lmzoo` costs."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import itertools
import os
import pkgutil
import re
import statistics
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "lmzoo"
SOURCES = sorted(PACKAGE.rglob("*.py"))
FAMILY_FOLDERS = sorted(path.parent for path in PACKAGE.glob("models/*/__init__.py"))

# part of the package -> parts that its modules may import while they are being imported
BASE = {"errors", "files", "layers", "text"}
ALLOWED = {
    "errors.py": set(),
    "files": {"files", "errors"},
    "layers": {"layers"},
    "text": {"text"},
    "data": {"data", *BASE},
    "training": {"training", "data", "checkpoints.formats", *BASE},
    "models": {"models", "checkpoints", "presets", *BASE},
    "checkpoints": {"checkpoints", "models.family", *BASE},
    "presets": {"presets", "checkpoints", "models.family", *BASE},
    "tasks": {"tasks", "models", "presets", "training", "data", *BASE},
    "conversion": {"conversion", "checkpoints", "presets", "models", "tasks", *BASE},
    "serving": {"serving", "tasks", "models", "presets", *BASE},
    "analysis": {"analysis", "tasks", "models", *BASE},
    "pretraining": {"pretraining", "tasks", "models", "presets", "training", "data", *BASE},
    "compat": {"compat", "analysis", "tasks", "models", "checkpoints", "presets", "training", "data", *BASE},
}
# The public face of the package, and what sits on top of everything, may import anything.
EXEMPT = {"__init__.py", "__main__.py", "models/__init__.py"}
TOP = {"testing", "cli"}
# Python files that a family's folder may hold (layers.py only for families with layers of their own).
FAMILY_FILES = {"__init__.py", "backbone.py", "text.py", "checkpoints.py", "layers.py"}


def imports_at_load(path: Path) -> Iterator[str]:
    """Names of the lmzoo modules that importing `path` imports, relative to the package: "text.packing"."""
    pending: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    package = ["lmzoo", *path.relative_to(PACKAGE).parent.parts]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue  # runs later, if at all
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue  # never runs
        if isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("lmzoo.") for alias in node.names if alias.name.startswith("lmzoo."))
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            if source == "lmzoo":
                yield from (alias.name for alias in node.names)
            elif source.startswith("lmzoo."):
                yield from (f"{source.removeprefix('lmzoo.')}.{alias.name}" for alias in node.names)
        pending.extend(ast.iter_child_nodes(node))


def is_within(name: str, part: str) -> bool:
    return name == part or name.startswith(part + ".")


def code_lines(path: Path) -> dict[int, str]:
    """Lines that hold code, by number: no blank lines, comments or docstrings."""
    text = path.read_text("utf-8")
    numbers: set[int] = set()
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in layout:
            numbers.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            numbers.difference_update(range(node.lineno, node.end_lineno + 1))
    lines = text.splitlines()
    return {number: lines[number - 1].strip() for number in sorted(numbers)}


def masked_lines(folder: Path, computing: bool) -> Counter[str]:
    """A family's lines without its name, imports and brackets; those of functions only, if asked for what computes."""
    found: Counter[str] = Counter()
    for path in folder.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
        imports = [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
        imported = {number for node in imports for number in range(node.lineno, node.end_lineno + 1)}
        within = {number for node in functions for number in range(node.body[0].lineno, node.end_lineno + 1)}
        for number, line in code_lines(path).items():
            counts = re.search(r"\w", line) and number not in imported
            if counts and (number in within or not computing):
                found[re.sub(folder.name, "family", line, flags=re.IGNORECASE)] += 1
    return found


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


BELOW = [path for path in SOURCES if relative(path) not in EXEMPT and path.relative_to(PACKAGE).parts[0] not in TOP]


@pytest.mark.parametrize("path", BELOW, ids=relative)
def test_imports_point_one_way(path: Path) -> None:
    part = path.relative_to(PACKAGE).parts[0]
    assert part in ALLOWED, f"lmzoo/{part} has no place in the order of layers yet: add it to ALLOWED"
    for name in imports_at_load(path):
        assert any(is_within(name, allowed) for allowed in ALLOWED[part]), f"{relative(path)} imports lmzoo.{name}"


@pytest.mark.parametrize("folder", FAMILY_FOLDERS, ids=lambda folder: folder.name)
def test_family_folder(folder: Path) -> None:
    files = sorted(folder.rglob("*.py"))
    assert {path.name for path in files} <= FAMILY_FILES
    assert sum(len(code_lines(path)) for path in files) <= 350
    others = {other.name for other in FAMILY_FOLDERS} - {folder.name}
    for path in files:
        crossed = [
            name for name in imports_at_load(path) if name.split(".")[:1] == ["models"] and name.split(".")[1] in others
        ]
        assert not crossed, (
            f"{relative(path)} imports another family: {crossed}. What two families use goes to layers/."
        )


PAIRS_OF_FAMILIES = list(itertools.permutations(FAMILY_FOLDERS, 2))


@pytest.mark.parametrize(("one", "other"), PAIRS_OF_FAMILIES, ids=lambda folder: folder.name)
def test_families_share_no_code(one: Path, other: Path) -> None:
    """Families differ in what they compute, and what they declare (a record, two class headers) is short."""
    lines = masked_lines(one, computing=True)
    assert (lines & masked_lines(other, computing=True)).total() <= 0.15 * lines.total()
    declared = masked_lines(one, computing=False) & masked_lines(other, computing=False)
    assert declared.total() <= max(16, 0.15 * masked_lines(one, computing=False).total()), declared


def test_only_the_facade_knows_families_by_name() -> None:
    families = {folder.name for folder in FAMILY_FOLDERS}
    assert families
    for path in SOURCES:
        if path not in BELOW or path.parent in FAMILY_FOLDERS:
            continue
        named = [
            name for name in imports_at_load(path) if name.startswith("models.") and name.split(".")[1] in families
        ]
        assert not named, f"{relative(path)} imports {named}: use the Family record"


def test_file_sizes() -> None:
    sizes = {relative(path): len(path.read_text("utf-8").splitlines()) for path in SOURCES}
    assert {name: size for name, size in sizes.items() if size > 400} == {}
    assert statistics.median(sizes.values()) <= 120


def test_no_private_keras() -> None:
    for folder in ("lmzoo", "tests", "examples", "benchmarks", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".md"}:
                found = re.findall(r"\bkeras\w*\.src\b", path.read_text("utf-8"))
                assert not found, f"{path.relative_to(ROOT)} uses {found[0]}, which is private"


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["jax"], *extras["onnx"], *extras["plots"], *extras["torch"]]
    declared = {re.match(r"[\w-]+", requirement)[0].replace("-", "_") for requirement in wanted}
    declared = {{"tensorflow_serving_api": "tensorflow_serving"}.get(name, name) for name in declared}
    imported: set[str] = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                imported.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(node.module.partition(".")[0])
    assert "numpy" in imported
    assert imported - sys.stdlib_module_names - {"lmzoo"} - declared == set()


@pytest.mark.parametrize(
    ("backend", "forbidden"),
    [
        ("tensorflow", ["keras_hub", "tensorflow_text", "torch", "transformers"]),
        ("jax", ["tensorflow", "keras_hub", "tensorflow_text", "torch", "transformers"]),
    ],
)
def test_import_is_light(backend: str, forbidden: list[str]) -> None:
    code = f"import sys, lmzoo; print(*(name for name in {forbidden} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "KERAS_BACKEND": backend},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "", f"`import lmzoo` on {backend} also imports {done.stdout}"


def modules() -> list[ModuleType]:
    import lmzoo

    names = [info.name for info in pkgutil.walk_packages(lmzoo.__path__, "lmzoo.")]
    return [lmzoo, *(importlib.import_module(name) for name in names if "__main__" not in name)]


def public_objects() -> Iterator[tuple[str, object]]:
    """Public functions, classes and methods, each where it is defined."""
    for module in modules():
        for name, value in vars(module).items():
            if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
                continue
            if inspect.isfunction(value):
                yield f"{module.__name__}.{name}", value
            elif inspect.isclass(value):
                yield f"{module.__name__}.{name}", value
                for member, content in vars(value).items():
                    content = content.fget if isinstance(content, property) else getattr(value, member)
                    is_lambda = getattr(content, "__name__", "") == "<lambda>"  # a value, as far as readers care
                    if not member.startswith("_") and inspect.isroutine(content) and not is_lambda:
                        yield f"{module.__name__}.{name}.{member}", content


def test_public_api_is_documented() -> None:
    # getdoc() looks through base classes: an override that changes nothing for the caller needs no second docstring.
    objects = dict(public_objects())
    assert objects
    assert [name for name, value in objects.items() if not inspect.getdoc(value)] == []


def test_public_api_is_typed() -> None:
    untyped = []
    for name, value in public_objects():
        function = inspect.unwrap(value.__init__ if inspect.isclass(value) else value)
        if not inspect.isfunction(function) or function.__module__.split(".")[0] != "lmzoo":
            continue
        signature = inspect.signature(function)
        parameters = [p for p in signature.parameters.values() if p.name not in {"self", "cls"}]
        untyped += [f"{name}({p.name})" for p in parameters if p.annotation is p.empty]
        if signature.return_annotation is signature.empty and not inspect.isclass(value):
            untyped.append(f"{name} -> ?")
    assert untyped == []
