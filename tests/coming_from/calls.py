"""Calls of another library and of lmzoo: rows of the tables in `docs/coming_from`, whose two sides tests run.

`python -m tests.coming_from.calls` writes the tables into the pages, between `<!-- calls: topic -->` and
`<!-- end of calls -->`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tests.reference.weights import difference, to_numpy

PAGES = Path(__file__).resolve().parents[2] / "docs/coming_from"
TOLERANCE = 2e-5
_TABLE = re.compile(r"(<!-- calls: (?P<topic>[\w ]+) -->\n).*?(<!-- end of calls -->)", re.DOTALL)


def _pair(theirs: Any, ours: Any) -> tuple[Any, Any]:
    return theirs, ours


@dataclass(frozen=True)
class Call:
    """A row of a table: a call of the other library and a call of lmzoo.

    Attributes:
        theirs: Code of the other library, or "" if it has no such call. Its last statement gives a value.
        ours: Code of lmzoo, or None for the same code.
        result: Difference of the results, in Markdown.
        compare: Function from both values to the values that must be equal, or None if the calls need only run.
        changes: Whether the code changes its objects, so that it needs new ones.
        slow: Whether only the slow tests run the code.
    """

    theirs: str
    ours: str | None = None
    result: str = "the same"
    compare: Callable[[Any, Any], tuple[Any, Any]] | None = _pair
    changes: bool = False
    slow: bool = False

    @property
    def codes(self) -> tuple[str, str]:
        """The code of both sides."""
        return self.theirs, self.theirs if self.ours is None else self.ours

    @property
    def cells(self) -> tuple[str, str, str]:
        """The row's cells in Markdown.

        Raises:
            ValueError: If one holds "|", which the site and GitHub would need in different spellings.
        """
        theirs, ours = (f"`{code}`" if code else "–" for code in self.codes)
        for cell in (theirs, ours, self.result):
            if "|" in cell:
                raise ValueError(f"A cell cannot hold '|', got {cell!r}. Write it without.")
        return theirs, ours, self.result


def names_in(code: str) -> set[str]:
    """Return the names that code reads or writes."""
    return {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}


def run(code: str, names: Mapping[str, Any]) -> Any:
    """Run code and return the value of its last statement, or None if that is not an expression."""
    namespace = dict(names)
    *statements, last = ast.parse(code).body
    exec(compile(ast.Module(statements, []), code, "exec"), namespace)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), code, "eval"), namespace)
    exec(compile(ast.Module([last], []), code, "exec"), namespace)
    return None


def assert_equal(theirs: Any, ours: Any) -> None:
    """Assert that two structures hold the same texts, and numbers that differ by 2e-5 at most."""
    if isinstance(theirs, (str, bool, type(None))):
        assert ours == theirs
        return
    if isinstance(theirs, dict):
        assert theirs.keys() == ours.keys()
        theirs, ours = ([value[name] for name in theirs] for value in (theirs, ours))
    if isinstance(theirs, (list, tuple)) and not all(isinstance(value, (int, float)) for value in theirs):
        assert len(theirs) == len(ours)
        for their_value, our_value in zip(theirs, ours, strict=True):
            assert_equal(their_value, our_value)
        return
    arrays = (to_numpy(keras.ops.convert_to_tensor(np.asarray(value))) for value in (theirs, ours))
    assert difference(*arrays) <= TOLERANCE


def table(calls: Iterable[Call], library: str) -> str:
    """Return calls as a table in Markdown."""
    rows = [(library, "lmzoo", "Result"), ("---",) * 3, *(call.cells for call in calls)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def with_tables(page: str, calls: Mapping[str, Iterable[Call]], library: str) -> str:
    """Return a page with the table of each topic.

    Raises:
        ValueError: If the page does not have one place for each topic of `calls`.
    """
    topics = [match["topic"] for match in _TABLE.finditer(page)]
    if sorted(topics) != sorted(calls):
        raise ValueError(f"The page has places for {', '.join(topics)}; there are calls for {', '.join(calls)}.")
    return _TABLE.sub(lambda match: f"{match[1]}\n{table(calls[match['topic']], library)}\n\n{match[3]}", page)


def main() -> None:
    """Write the tables into the pages."""
    from tests.coming_from.keras_hub_calls import CALLS

    page = PAGES / "keras_hub.md"
    page.write_text(with_tables(page.read_text("utf-8"), CALLS, "KerasHub"), "utf-8")


if __name__ == "__main__":
    main()
