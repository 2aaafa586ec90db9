"""The structure of the code: the direction of imports, the cost of `import lmzoo`, documentation and types."""

from __future__ import annotations

import ast
import functools
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

# Lowest first. A module may import from its own floor and lower ones; imports in functions and for types count.
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
# Python files that a family's directory may hold.
FAMILY_FILES = {"__init__.py", "backbone.py", "config.py", "text.py", "checkpoints.py", "layers.py"}


def module_name(path: Path) -> str:
    """Return the name of a module, such as "lmzoo.text.packing" for `lmzoo/text/packing.py`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in SOURCES}


@functools.cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file, which several tests read."""
    return ast.parse(path.read_text("utf-8"))


@functools.cache
def imports_of(path: Path) -> set[str]:
    """Return the modules of lmzoo that a file imports: at its top, in functions and for types."""
    names = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{relative(path)} imports by a relative name"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {module for name in names if (module := module_of(name)) and module != module_name(path)}


def module_of(name: str) -> str:
    """Return the module that a dotted name stands for or is defined in, or "" if it is not one of lmzoo's."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name


def floor_of(name: str) -> int:
    """Return the index of a module's floor, with the command line on top, or -1 if its package is not in FLOORS."""
    if name.split(".")[0] == "lmzoo_cli":
        return len(FLOORS) + 1
    part = name.split(".")[1] if "." in name else ""
    if part in ("", "__main__"):
        return len(FLOORS)
    return next((floor for floor, parts in enumerate(FLOORS) if part in parts), -1)


def family_in(name: str) -> str:
    """Return the part of a module's name that may be a family, such as "bert" of "lmzoo.families.bert.backbone"."""
    return (name.removeprefix("lmzoo.families.") if name.startswith("lmzoo.families.") else "").partition(".")[0]


def code_lines(path: Path) -> dict[int, str]:
    """Return the lines of code by number, without blank lines, comments and docstrings."""
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
    """Return a path relative to `lmzoo/`, or beginning with `lmzoo_cli/` for modules of the command line."""
    return path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else ROOT).as_posix()


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_no_import_points_to_a_higher_floor(path: Path) -> None:
    floor = floor_of(module_name(path))
    assert floor >= 0, f"{relative(path)} is in no package of FLOORS"
    for name in imports_of(path):
        assert floor_of(name) <= floor, f"{relative(path)} imports {name}, which is on a higher floor"


def test_contributing_lists_the_floors() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("| floor | contents |")[2].partition("\n\n")[0]
    rows = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    assert tuple(set(re.findall(r"`(\w+)`", row)) for row in rows) == FLOORS


def test_there_are_no_circular_imports() -> None:
    imports = {name: imports_of(path) for name, path in MODULES.items()}
    while free := [name for name, imported in imports.items() if not imported & imports.keys()]:
        for name in free:
            del imports[name]
    assert imports == {}, "these modules are part of an import cycle, or import one that is"


@pytest.mark.parametrize("folder", FAMILY_FOLDERS, ids=lambda folder: folder.name)
def test_a_family_s_directory_is_small_and_imports_no_other_family(folder: Path) -> None:
    files = sorted(folder.rglob("*.py"))
    assert {path.name for path in files} <= FAMILY_FILES
    assert sum(len(code_lines(path)) for path in files) <= 350
    other_families = {family_folder.name for family_folder in FAMILY_FOLDERS} - {folder.name}
    for path in files:
        foreign_imports = [name for name in imports_of(path) if family_in(name) in other_families]
        assert not foreign_imports, (
            f"{relative(path)} imports another family: {foreign_imports}. Move what two families use to layers/."
        )


def test_only_the_facade_imports_families() -> None:
    families = {folder.name for folder in FAMILY_FOLDERS}
    assert families
    for path in SOURCES:
        if relative(path) != "families/__init__.py" and path.parent not in FAMILY_FOLDERS:
            family_imports = [name for name in imports_of(path) if family_in(name) in families]
            assert not family_imports, f"{relative(path)} imports {family_imports}: use the Family record"


# The public names, and the interface of another library to one family.
FACADES = {"families/__init__.py", "models.py", "lmzoo_cli/registered.py", "compat/allennlp.py"}


def identifiers_in(path: Path) -> set[str]:
    """Return all names that a file defines, imports or uses as attributes."""
    fields = {ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg", ast.keyword: "arg", ast.alias: "name"}
    fields |= {ast.FunctionDef: "name", ast.ClassDef: "name"}
    nodes = ast.walk(parse(path))
    return {getattr(node, fields[type(node)]) or "" for node in nodes if type(node) in fields}


def test_shared_code_does_not_name_families() -> None:
    """Neither "bert" nor `train_bert` may stand there: differences belong in the Family record."""
    families = {folder.name for folder in FAMILY_FOLDERS}
    for path in SOURCES:
        if relative(path) not in FACADES and path.parent not in FAMILY_FOLDERS:
            words = {word for name in identifiers_in(path) for word in re.split(r"[._]", name.lower())}
            named = families & (strings_in(path) | words)
            assert not named, f"{relative(path)} names {named}: differences belong in the Family record"


# These files name classes of other libraries that are called like tasks.
NAMED_ALIKE = {"checkpoints/family_names.py", "checkpoints/keras_hub/heads.py"}


def strings_in(path: Path) -> set[str]:
    """Return the string constants of a file, without docstrings and the entries of `__all__`."""
    tree = parse(path)
    exported = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    excluded = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    excluded |= {node for value in exported for node in ast.walk(value)}
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in excluded
    }


def test_shared_code_does_not_name_tasks() -> None:
    classes = {
        node.name for path in PACKAGE.glob("tasks/*.py") for node in parse(path).body if isinstance(node, ast.ClassDef)
    }
    assert {"MaskedLM", "TextClassifier"} <= classes
    for path in SOURCES:
        if relative(path) not in NAMED_ALIKE:
            named = strings_in(path) & classes
            assert not named, f"{relative(path)} names {named}: formats and commands must use its `head_kind`"


def test_only_one_module_checks_the_types_of_examples() -> None:
    """`tasks/inputs.py` distinguishes what users pass; other modules only know lmzoo's own encoded examples."""
    examples = {"x", "texts", "documents", "validation_data"}
    paths = [path for path in PACKAGE.glob("tasks/**/*.py") if relative(path) != "tasks/inputs.py"]
    assert len(paths) > 20
    for path in paths:
        for node in ast.walk(parse(path)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
                continue
            is_example = isinstance(node.args[0], ast.Name) and node.args[0].id in examples
            types = {part.id for part in ast.walk(node.args[-1]) if isinstance(part, ast.Name)}
            are_encoded = all(name.startswith(("Encoded", "SegmentPairs")) for name in types)
            checks_type = node.func.id in ("hasattr", "getattr") or (node.func.id == "isinstance" and not are_encoded)
            assert not (is_example and checks_type), f"{relative(path)}, line {node.lineno}: call `read_inputs` instead"


def test_private_modules_of_keras_are_not_used() -> None:
    for folder in ("lmzoo", "tests", "examples", "benchmarks", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".md"}:
                private_names = re.findall(r"\bkeras\w*\.src\b", path.read_text("utf-8"))
                assert not private_names, f"{path.relative_to(ROOT)} uses {private_names[0]}, which is private"


def test_every_imported_package_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    names = ["jax", "mteb", "onnx", "parquet", "plots", "scale", "search", "serve", "testing", "torch", "translation"]
    requirements = [*project["dependencies"], *(r for name in [*names, "vectors"] for r in extras[name])]
    declared = {re.match(r"[\w-]+", requirement)[0].replace("-", "_") for requirement in requirements}
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
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Import):
                imported.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(node.module.partition(".")[0])
    assert "numpy" in imported
    assert imported - sys.stdlib_module_names - {"lmzoo", "lmzoo_cli"} - declared == set()


# "sklearn" itself is not in the list, because Keras imports it for its wrappers.
HEAVY = ["keras_hub", "ray", "sklearn.metrics", "starlette", "tensorflow_text", "torch", "transformers"]


@pytest.mark.parametrize(("backend", "forbidden"), [("tensorflow", HEAVY), ("jax", ["tensorflow", *HEAVY])])
def test_the_import_loads_no_heavy_package(backend: str, forbidden: list[str]) -> None:
    code = f"import sys, lmzoo; print(*(name for name in {forbidden} if name in sys.modules))"
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**{k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}, "KERAS_BACKEND": backend},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == "", f"`import lmzoo` on {backend} also imports {process.stdout}"
    assert without_tensorflow_lines(process.stderr) == ""


def modules() -> list[ModuleType]:
    import lmzoo
    import lmzoo_cli

    packages = (lmzoo, lmzoo_cli)
    names = [info.name for p in packages for info in pkgutil.walk_packages(p.__path__, f"{p.__name__}.")]
    return [*packages, *(importlib.import_module(name) for name in names if "__main__" not in name)]


def public_objects() -> Iterator[tuple[str, object]]:
    """Iterate over public functions, classes and methods, each in the module that defines it."""
    for module in modules():
        for name, value in vars(module).items():
            if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
                continue
            if inspect.isfunction(value):
                yield f"{module.__name__}.{name}", value
            elif inspect.isclass(value):
                yield f"{module.__name__}.{name}", value
                for member, attribute in vars(value).items():
                    attribute = attribute.fget if isinstance(attribute, property) else getattr(value, member)
                    is_lambda = getattr(attribute, "__name__", "") == "<lambda>"  # documented as a value
                    if not member.startswith("_") and inspect.isroutine(attribute) and not is_lambda:
                        yield f"{module.__name__}.{name}.{member}", attribute


def test_every_public_object_has_a_docstring() -> None:
    # `getdoc` inherits docstrings: an override needs its own only if it differs for the caller.
    objects = dict(public_objects())
    assert objects
    assert [name for name, value in objects.items() if not inspect.getdoc(value)] == []


def test_every_public_function_is_typed() -> None:
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
