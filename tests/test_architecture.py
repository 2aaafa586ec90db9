"""The shape of the code: which way imports point, what `import lmzoo` costs, what is documented."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import os
import pkgutil
import re
import runpy
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.tensorflow_lines import without_tensorflow_lines

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "lmzoo"
COMMAND_LINE = ROOT / "lmzoo_cli"
SOURCES = [*sorted(PACKAGE.rglob("*.py")), *sorted(COMMAND_LINE.rglob("*.py"))]
FAMILY_FOLDERS = sorted(path.parent for path in PACKAGE.glob("families/*/__init__.py"))

# Lowest first. A module may import from its own floor and from lower ones; imports in functions and for types count.
FLOORS = (
    {"common", "errors", "version"},
    {"files", "parallel"},
    {"layers", "search", "text"},
    {"data"},
    {"registry"},
    {"checkpoints"},
    {"presets", "training"},
    {"evaluation", "serving"},
    {"families", "ngrams"},
    {"tasks", "static_vectors"},
    {"models"},
    {"analysis", "pretraining"},
    {"compat", "testing"},
)
# Python files that a family's folder may hold (config.py and layers.py only where they are long).
FAMILY_FILES = {"__init__.py", "backbone.py", "config.py", "text.py", "checkpoints.py", "layers.py"}


def module_name(path: Path) -> str:
    """`lmzoo/text/packing.py` as "lmzoo.text.packing"."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in SOURCES}


def imports_of(path: Path) -> set[str]:
    """Modules of lmzoo that a file imports: at its top, in functions and for types."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{relative(path)} imports by a relative name"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {found for name in names if (found := module_of(name)) and found != module_name(path)}


def module_of(name: str) -> str:
    """The module that a dotted name is, or that it is defined in; an empty string if it is none of lmzoo's."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name


def floor_of(name: str) -> int:
    """Return how high a module stands, the command line above all of lmzoo; -1 if it has no place yet."""
    if name.split(".")[0] == "lmzoo_cli":
        return len(FLOORS) + 1
    part = name.split(".")[1] if "." in name else ""
    if part in ("", "__main__"):
        return len(FLOORS)
    return next((floor for floor, parts in enumerate(FLOORS) if part in parts), -1)


def family_in(name: str) -> str:
    """The part of a module's name that may be a family's: "bert" of "lmzoo.families.bert.backbone"."""
    return (name.removeprefix("lmzoo.families.") if name.startswith("lmzoo.families.") else "").partition(".")[0]


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


def relative(path: Path) -> str:
    """Return a path below `lmzoo/`; that of a module of the command line begins with `lmzoo_cli/`."""
    return path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else ROOT).as_posix()


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_imports_point_down(path: Path) -> None:
    own = floor_of(module_name(path))
    assert own >= 0, f"{relative(path)} has no place in FLOORS yet"
    for name in imports_of(path):
        assert floor_of(name) <= own, f"{relative(path)} imports {name}, which stands above it"


def test_contributing_lists_the_floors() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("| floor | contents |")[2].partition("\n\n")[0]
    rows = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    assert tuple(set(re.findall(r"`(\w+)`", row)) for row in rows) == FLOORS


def test_no_circles() -> None:
    imports = {name: imports_of(path) for name, path in MODULES.items()}
    while free := [name for name, imported in imports.items() if not imported & imports.keys()]:
        for name in free:
            del imports[name]
    assert imports == {}, "circular imports among these, or leading into them"


@pytest.mark.parametrize("folder", FAMILY_FOLDERS, ids=lambda folder: folder.name)
def test_family_folder(folder: Path) -> None:
    files = sorted(folder.rglob("*.py"))
    assert {path.name for path in files} <= FAMILY_FILES
    assert sum(len(code_lines(path)) for path in files) <= 350
    others = {other.name for other in FAMILY_FOLDERS} - {folder.name}
    for path in files:
        crossed = [name for name in imports_of(path) if family_in(name) in others]
        assert not crossed, (
            f"{relative(path)} imports another family: {crossed}. What two families use goes to layers/."
        )


def test_only_the_facade_knows_families_by_name() -> None:
    families = {folder.name for folder in FAMILY_FOLDERS}
    assert families
    for path in SOURCES:
        if relative(path) != "families/__init__.py" and path.parent not in FAMILY_FOLDERS:
            named = [name for name in imports_of(path) if family_in(name) in families]
            assert not named, f"{relative(path)} imports {named}: use the Family record"


# The public face, and another library's interface to one family.
FACADES = {"families/__init__.py", "models.py", "lmzoo_cli/registered.py", "compat/allennlp.py"}


def identifiers_in(path: Path) -> set[str]:
    """All names that a file gives, imports, or takes as an attribute."""
    fields = {ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg", ast.keyword: "arg", ast.alias: "name"}
    fields |= {ast.FunctionDef: "name", ast.ClassDef: "name"}
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return {getattr(node, fields[type(node)]) or "" for node in nodes if type(node) in fields}


def test_families_are_not_told_by_their_names() -> None:
    """Neither "bert" nor `train_bert` stands in shared code: what differs is in the record."""
    families = {folder.name for folder in FAMILY_FOLDERS}
    for path in SOURCES:
        if relative(path) not in FACADES and path.parent not in FAMILY_FOLDERS:
            words = {word for name in identifiers_in(path) for word in re.split(r"[._]", name.lower())}
            named = families & (strings_in(path) | words)
            assert not named, f"{relative(path)} names {named}: what differs belongs in the Family record"


# Their words for classes of other libraries are the same.
NAMED_ALIKE = {"checkpoints/family_names.py", "checkpoints/keras_hub/heads.py"}


def strings_in(path: Path) -> set[str]:
    """String constants of a file, but for docstrings and what `__all__` lists."""
    tree = ast.parse(path.read_text("utf-8"))
    listed = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    left_out = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    left_out |= {node for value in listed for node in ast.walk(value)}
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in left_out
    }


def test_tasks_are_not_told_by_their_names() -> None:
    classes = {
        node.name
        for path in PACKAGE.glob("tasks/*.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef)
    }
    assert {"MaskedLM", "TextClassifier"} <= classes
    for path in SOURCES:
        if relative(path) not in NAMED_ALIKE:
            named = strings_in(path) & classes
            assert not named, f"{relative(path)} names {named}: formats and commands know a task by its `head_kind`"


def test_one_place_looks_at_what_users_pass() -> None:
    """The types of examples are told apart in `tasks/inputs.py`; others only know lmzoo's own encoded examples."""
    examples = {"x", "texts", "documents", "validation_data"}
    paths = [path for path in PACKAGE.glob("tasks/**/*.py") if relative(path) != "tasks/inputs.py"]
    assert len(paths) > 20
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
                continue
            asked = isinstance(node.args[0], ast.Name) and node.args[0].id in examples
            types = {part.id for part in ast.walk(node.args[-1]) if isinstance(part, ast.Name)}
            own = all(name.startswith(("Encoded", "SegmentPairs")) for name in types)
            found = asked and (node.func.id in ("hasattr", "getattr") or (node.func.id == "isinstance" and not own))
            assert not found, f"{relative(path)}, line {node.lineno}: ask `read_inputs` instead"


def test_no_private_keras() -> None:
    for folder in ("lmzoo", "tests", "examples", "benchmarks", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".md"}:
                found = re.findall(r"\bkeras\w*\.src\b", path.read_text("utf-8"))
                assert not found, f"{path.relative_to(ROOT)} uses {found[0]}, which is private"


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [
        *project["dependencies"],
        *extras["jax"],
        *extras["mteb"],
        *extras["onnx"],
        *extras["parquet"],
        *extras["plots"],
        *extras["scale"],
        *extras["search"],
        *extras["serve"],
        *extras["testing"],
        *extras["torch"],
        *extras["translation"],
        *extras["vectors"],
    ]
    declared = {re.match(r"[\w-]+", requirement)[0].replace("-", "_") for requirement in wanted}
    modules = {
        "faiss_cpu": "faiss",
        "keras_nlp": "keras_hub",
        "protobuf": "google",
        "scikit_learn": "sklearn",
        "tensorflow_serving_api": "tensorflow_serving",
    }
    declared = {modules.get(name, name) for name in declared}
    imported: set[str] = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                imported.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(node.module.partition(".")[0])
    assert "numpy" in imported
    assert imported - sys.stdlib_module_names - {"lmzoo", "lmzoo_cli"} - declared == set()


# Not "sklearn": Keras imports that itself, for its wrappers.
HEAVY = ["keras_hub", "ray", "sklearn.metrics", "starlette", "tensorflow_text", "torch", "transformers"]


@pytest.mark.parametrize(("backend", "forbidden"), [("tensorflow", HEAVY), ("jax", ["tensorflow", *HEAVY])])
def test_import_is_light(backend: str, forbidden: list[str]) -> None:
    code = f"import sys, lmzoo; print(*(name for name in {forbidden} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**{k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}, "KERAS_BACKEND": backend},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "", f"`import lmzoo` on {backend} also imports {done.stdout}"
    assert without_tensorflow_lines(done.stderr) == ""


def modules() -> list[ModuleType]:
    import lmzoo
    import lmzoo_cli

    packages = (lmzoo, lmzoo_cli)
    names = [info.name for p in packages for info in pkgutil.walk_packages(p.__path__, f"{p.__name__}.")]
    return [*packages, *(importlib.import_module(name) for name in names if "__main__" not in name)]


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
        if not inspect.isfunction(function) or function.__module__.split(".")[0] not in ("lmzoo", "lmzoo_cli"):
            continue
        signature = inspect.signature(function)
        parameters = [p for p in signature.parameters.values() if p.name not in {"self", "cls"}]
        untyped += [f"{name}({p.name})" for p in parameters if p.annotation is p.empty]
        if signature.return_annotation is signature.empty and not inspect.isclass(value):
            untyped.append(f"{name} -> ?")
    assert untyped == []


def test_each_fault_finds_its_text() -> None:
    faults = runpy.run_path(str(ROOT / "tests/mutants/faults.py"))["FAULTS"]
    for fault in faults:
        assert (ROOT / fault.path).read_text("utf-8").count(fault.before) == 1, fault.name
