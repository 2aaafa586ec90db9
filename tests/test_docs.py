"""The Python blocks of README.md, docs/ and all docstrings run, and comments with values are right.

The blocks of a page share a namespace and run from top to bottom, in a directory that holds only a link to the
repository's `examples/`. A block marked `notest` needs a network or a container: it is only compiled.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import lmzoo
from lmzoo.layers import encoder_registry

pytestmark = pytest.mark.tf_only

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "presets").rglob("README.md"))]
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^\s*(python|py|\{\s*\.python\b)")


class Block(NamedTuple):
    """A block of Python in a text: its source, its first line, and whether to run it."""

    source: str
    line: int
    run: bool


def blocks_of(text: str, first_line: int = 1) -> Iterator[Block]:
    for match in FENCE.finditer(text):
        if PYTHON.match(info := match["info"]):
            indent = len(match["indent"])
            source = "".join(line[indent:] or "\n" for line in match["body"].splitlines(keepends=True))
            line = first_line + text.count("\n", 0, match.start("body"))
            yield Block(source, line, "notest" not in info)


def run(blocks: list[Block], name: str) -> None:
    """Run blocks, and check each comment after a statement that begins with a value or a shape."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        # Blank lines in front make tracebacks show the line number of the page.
        source = "\n" * (block.line - 1) + block.source
        compile(source, name, "exec")
        for statement in ast.parse(source).body if block.run else ():
            value = None
            if isinstance(statement, ast.Expr):
                value = eval(compile(ast.Expression(statement.value), name, "eval"), namespace)
            else:
                exec(compile(ast.Module([statement], []), name, "exec"), namespace)
                if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                    value = namespace[statement.targets[0].id]
            expected = read_comment(statement, block)
            if value is not None and expected is not None:
                line = f"{name}:{statement.end_lineno}"
                assert matches(value, expected), f"{line}: the comment says {expected}, but the value is {value!r}"


def read_comment(statement: ast.stmt, block: Block) -> Any:
    """Return the value or the shape at the start of the comment after a statement, or None if there is none."""
    line = block.source.splitlines()[statement.end_lineno - block.line].encode()[statement.end_col_offset :].decode()
    comment = re.match(r"\s+# (?:(?:float|int|bool|string)\d* )?(.+?)(?:[:;] .*)?$", line)
    try:
        return ast.literal_eval(comment[1]) if comment and "..." not in comment[1] else None
    except (SyntaxError, ValueError):
        return None


def matches(value: Any, expected: Any) -> bool:
    """Return whether a value equals the expected one, or has the expected shape."""
    if isinstance(expected, tuple) and hasattr(value, "shape"):
        return tuple(value.shape) == expected
    if isinstance(expected, (list, tuple)) and len(value) == len(expected):
        return all(map(matches, value, expected))
    return abs(value - expected) <= 0.01 * abs(expected) if isinstance(expected, float) else value == expected


def docstrings() -> Iterator[tuple[str, str, int]]:
    """Iterate over (name, docstring, first line) of all docstrings of lmzoo that contain code."""
    for path in sorted((ROOT / "lmzoo").rglob("*.py")):
        source = path.read_text("utf-8")
        for node in ast.walk(ast.parse(source)) if "```" in source or ">>>" in source else ():
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
                name = f"{path.relative_to(ROOT)}::{getattr(node, 'name', 'module')}"
                if any(blocks_of(text)) or ">>>" in text:
                    yield name, text, node.body[0].lineno


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "examples").symlink_to(ROOT / "examples", target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    # Other tests list the encoders, and must not see those of the examples.
    monkeypatch.setattr(encoder_registry, "_ENCODERS", dict(encoder_registry._ENCODERS))
    return tmp_path


def takes_long(text: str) -> bool:
    """Return whether an example trains, exports or loads a model, which is left to `make test-all`."""
    return any(call in text for call in (".fit(", ".export(", ".from_preset("))


def page_parameters() -> Iterator[object]:
    """Iterate over all pages; README always runs, because it shows what most pages begin with."""
    for page in PAGES:
        slow = page != ROOT / "README.md" and takes_long(page.read_text("utf-8"))
        yield pytest.param(page, id=page.relative_to(ROOT).as_posix(), marks=[pytest.mark.slow] * slow)


def docstring_parameters() -> Iterator[object]:
    for name, text, line in docstrings():
        yield pytest.param(name, text, line, id=name, marks=[pytest.mark.slow] * takes_long(text))


# Some pages show what causes these warnings; everywhere else a warning is an error.
@pytest.mark.filterwarnings(
    "ignore:The head of .* is not used",
    "ignore:The format 'KerasHub' holds no",
    "ignore:This model has the exact GELU",
)
@pytest.mark.usefixtures("folder", "eager")  # the quickstart, which also runs with the tests, covers compiled models
@pytest.mark.parametrize("page", list(page_parameters()))
def test_blocks_of_the_page_run(page: Path) -> None:
    run(list(blocks_of(page.read_text("utf-8"))), str(page))


@pytest.mark.usefixtures("folder", "eager")
@pytest.mark.parametrize(("name", "text", "line"), list(docstring_parameters()))
def test_examples_of_the_docstring_run(name: str, text: str, line: int) -> None:
    run(list(blocks_of(text, line)), name)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    example = doctest.DocTestParser().get_doctest(text, {}, name, name, line)
    assert doctest.DocTestRunner(optionflags=flags).run(example).failed == 0


PUBLIC_MODULES = [
    "data.corpora", "data.readers", "evaluation", "layers", "models", "parallel", "presets", "search", "text",
    "training",
]  # fmt: skip


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_every_public_name_is_on_an_api_page(module: str) -> None:
    pages = "".join(path.read_text("utf-8") for path in (ROOT / "docs" / "api").rglob("*.md"))
    names = importlib.import_module(f"lmzoo.{module}").__all__
    assert [name for name in names if not re.search(rf"^::: lmzoo\..*\b{name}$", pages, re.MULTILINE)] == []


API = "".join(path.read_text("utf-8") for path in sorted((ROOT / "docs/api").glob("*.md")))
ENTRIES = {name.rpartition(".")[2]: name for name in re.findall(r"^::: (\S+)$", API, re.MULTILINE)}


def find_object(name: str) -> Any:
    """Return the object that a name on an API page, or the last part of the name, stands for."""
    value = importlib.import_module("lmzoo")
    path = "lmzoo"
    for part in ENTRIES.get(name, name).split(".")[1:]:
        path += f".{part}"
        value = getattr(value, part) if hasattr(value, part) else importlib.import_module(path)
    return value


def has_example(value: Any) -> bool:
    if inspect.ismodule(value):
        return any(has_example(member) for member in vars(value).values() if inspect.getmodule(member) is value)
    text = inspect.getdoc(value) or ""
    reference = re.search(r"^Example: see `([\w.]+)`\.$", text, re.MULTILINE)
    return has_example(find_object(reference[1])) if reference else ">>>" in text or any(blocks_of(text))


def test_every_entry_has_an_example() -> None:
    """The docstring has an example, or names the entry whose example shows the object."""
    assert [name for name in ENTRIES.values() if not has_example(find_object(name))] == []


@pytest.mark.parametrize(
    ("value", "comment"),
    [
        ("1", "# 2"),
        ("np.zeros(2)", "# (3,)"),
        ("np.zeros(2)", "# float32 (3,): as long"),
        ('["a", "b"]', '# ["a", "c"]'),
        ("2 / 3", "# 0.5"),
    ],
)
def test_a_wrong_comment_is_found(value: str, comment: str) -> None:
    run([Block(f"import numpy as np\nx = {value}\n", 1, True)], "page")
    with pytest.raises(AssertionError, match=r"page:2: the comment says"):
        run([Block(f"import numpy as np\nx = {value}  {comment}\n", 1, True)], "page")


def test_fences_have_a_form_that_the_site_supports() -> None:
    """The site would show a block as a paragraph if a word followed the language."""
    paths = [path for folder in ("lmzoo", "docs") for path in (ROOT / folder).rglob("*.[pm][yd]")]
    assert [path.name for path in paths if "```python " in path.read_text("utf-8")] == []


def test_blocks_are_found_in_a_text() -> None:
    text = inspect.cleandoc(
        """
        ```python
        a = 1
        ```

        * in a list

            ```{.python .notest}
            a = 2

            b = 3
            ```

        ```console
        $ a = 4
        ```
        """
    )
    assert list(blocks_of(text)) == [Block("a = 1\n", 2, True), Block("a = 2\n\nb = 3\n", 8, False)]


def test_times_and_costs_of_the_table_follow_from_the_formula() -> None:
    """The table of docs/scale.md is rounded to two digits."""
    page = (ROOT / "docs/scale.md").read_text("utf-8")
    names: dict[str, Any] = {}
    for block in blocks_of(page):
        exec(block.source, names)
    unit = {"min": 1 / 60, "h": 1.0, "days": 24.0}
    table = page.partition("| | 16 GB, one pass, 8 × H200 |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert [row[0] for row in rows] == [*names["shapes"]]
    for model, *cells in rows:
        small, large = (names["hours"](model, "H200", 8, size) for size in (16, 160))
        on_pod = [names["hours"](model, "v5e", 256, size) for size in (16, 160)]
        expected = [small / 40, small, 8 * 3.5 * small, on_pod[0], large, 8 * 3.5 * large, on_pod[1]]
        for cell, value in zip(cells, expected, strict=True):
            number, _, unit_name = cell.lstrip("$").replace(",", "").partition(" ")
            assert float(number) * unit.get(unit_name, 1.0) == pytest.approx(value, rel=0.05), (model, cell)


@pytest.mark.slow
def test_word_senses_prints_and_draws_a_gap_for_each_layer(tmp_path, capsys):
    """The tables of `examples/word_senses.py` also show the gaps with random weights."""
    senses = runpy.run_path(str(ROOT / "examples/word_senses.py"))
    senses["main"](["--plot", str(tmp_path / "senses.svg")])
    tables = capsys.readouterr().out.split("layer  within  between     gap  chance  random weights\n")[1:]
    assert len(tables) == len(senses["SENTENCES"])
    layers = lmzoo.models.Backbone.from_preset("bert_nano_en_uncased", load_weights=False).num_layers
    for table in tables:
        rows = [line.split() for line in table.split("\n\n")[0].splitlines()]
        assert [row[0] for row in rows] == [*map(str, range(layers + 1))]
        for within, between, gap, chance, random in [map(float, row[1:]) for row in rows]:
            assert gap == pytest.approx(within - between, abs=0.0011)  # all three are rounded
            assert chance > 0
            assert abs(random) < within
        assert [row[3] for row in rows] != [row[5] for row in rows]
    assert (tmp_path / "senses.svg").read_text("utf-8").startswith("<?xml")
