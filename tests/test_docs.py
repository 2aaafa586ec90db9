"""Runs what the documentation shows: the Python blocks of README.md, of docs/ and of the docstrings.

The blocks of a page share their names and run from top to bottom in an empty folder that has the repository's
`examples/` in it. A block marked `notest` needs what a test cannot have (a network, a container): it is only compiled.
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
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.tf_only

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "presets").rglob("README.md"))]
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^\s*(python|py|\{\s*\.python\b)")


class Block(NamedTuple):
    """A piece of Python in a text: its source, the line it starts at, whether it is to be run."""

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
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks:
        # The blank lines in front make tracebacks name the line of the page.
        code = compile("\n" * (block.line - 1) + block.source, name, "exec")
        if block.run:
            exec(code, namespace)


def docstrings() -> Iterator[tuple[str, str, int]]:
    """(name, docstring, its first line) of everything in lmzoo whose docstring shows code."""
    for path in sorted((ROOT / "lmzoo").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
                name = f"{path.relative_to(ROOT)}::{getattr(node, 'name', 'module')}"
                if "```python" in text or ">>>" in text:
                    yield name, text, node.body[0].lineno


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "examples").symlink_to(ROOT / "examples", target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def page_parameters() -> Iterator[object]:
    """All pages. Those that train or export are slow, except for README, which does what most of them begin with."""
    for page in PAGES:
        slow = page.name != "README.md" and any(call in page.read_text("utf-8") for call in (".fit(", ".export("))
        yield pytest.param(page, id=page.relative_to(ROOT).as_posix(), marks=[pytest.mark.slow] * slow)


# A page may show what this warning is about; everywhere else a warning is an error.
@pytest.mark.filterwarnings("ignore:The head of .* is not used")
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("page", list(page_parameters()))
def test_page(page: Path) -> None:
    run(list(blocks_of(page.read_text("utf-8"))), str(page))


@pytest.mark.usefixtures("folder", "eager")
@pytest.mark.parametrize(("name", "text", "line"), [pytest.param(*d, id=d[0]) for d in docstrings()])
def test_docstring(name: str, text: str, line: int) -> None:
    run(list(blocks_of(text, line)), name)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    example = doctest.DocTestParser().get_doctest(text, {}, name, name, line)
    assert doctest.DocTestRunner(optionflags=flags).run(example).failed == 0


@pytest.mark.parametrize(
    "module",
    [
        "conversion",
        "data.corpora",
        "data.readers",
        "distribution",
        "evaluation",
        "layers",
        "models",
        "presets",
        "tasks",
        "text",
        "training",
    ],
)
def test_every_public_name_is_documented(module: str) -> None:
    pages = "".join(path.read_text("utf-8") for path in (ROOT / "docs" / "api").rglob("*.md"))
    names = importlib.import_module(f"lmzoo.{module}").__all__
    assert [name for name in names if not re.search(rf"^::: lmzoo\..*\b{name}$", pages, re.MULTILINE)] == []


def test_fences_are_found() -> None:
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


@pytest.mark.slow
def test_the_senses_of_words(tmp_path, capsys):
    """`examples/word_senses.py` prints a gap for each layer, with random weights beside it, and draws them."""
    senses = runpy.run_path(str(ROOT / "examples/word_senses.py"))
    senses["main"](["--plot", str(tmp_path / "senses.svg")])
    tables = capsys.readouterr().out.split("layer  within  between     gap  chance  random weights\n")[1:]
    assert len(tables) == len(senses["SENTENCES"])
    for table in tables:
        rows = [line.split() for line in table.split("\n\n")[0].splitlines()]
        assert [row[0] for row in rows] == [*"01234"]
        assert all(len({*row[1:]}) == 5 for row in rows)
    assert (tmp_path / "senses.svg").read_text("utf-8").startswith("<?xml")
