"""Columns of tables: of pandas, polars, pyarrow, or Hugging Face's `datasets`, none of which is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def columns_of(x: object) -> list[Any] | None:
    """The names of a table's columns; None for anything that is not a table."""
    names = getattr(x, "column_names", None)  # first, since pyarrow's `columns` are not names
    names = getattr(x, "columns", None) if names is None else names
    return None if names is None else [*names]


def examples_of(
    x: Any, y: Any, text: str | tuple[str, str] | None, label: str | None, needs_labels: bool
) -> tuple[Any, Any]:
    """Texts and labels of a table as lists; anything else stays as it is.

    Args:
        x: a table, or inputs of another kind.
        y: labels that are not in the table, or None.
        text: the column of the texts, or two for pairs; None for "text".
        label: the column of the labels; None for "label" if the task needs labels, else for none.
        needs_labels: whether the task needs labels.

    Raises:
        TypeError: for names of columns without a table, and for a dataset that has no length.
        ValueError: for a column that the table does not have, or labels in addition to a column of them.
    """
    names = columns_of(x)
    if names is None:
        if text is not None or label is not None:
            raise TypeError(f"`text` and `label` name columns of a table, got {type(x).__name__} instead of a table.")
        return x, y
    if isinstance(x, Mapping):
        raise TypeError(f"Expected one table, got all of {names!r:.200}: pass one, such as `data[{names[0]!r}]`.")
    if not hasattr(x, "__len__"):
        raise TypeError(
            f"This {type(x).__name__} is read on demand, without a length: pass a table in memory, a list, or a "
            "`tf.data.Dataset`."
        )
    if label is not None and y is not None:
        raise ValueError("Pass `y` or the name of a column as `label`, not both.")

    def column(name: str, argument: str) -> list[Any]:
        if name not in names:
            raise ValueError(f"The table has no column {name!r}: pass one of {names!r:.200} as `{argument}`.")
        values = x[name]
        # pandas' and pyarrow's own scalars become Python's.
        return values.to_pylist() if hasattr(values, "to_pylist") else list(values)

    chosen = "text" if text is None else text
    texts: Any = tuple(column(name, "text") for name in chosen) if isinstance(chosen, tuple) else column(chosen, "text")
    if label is None and y is None and needs_labels:
        label = "label"
    return texts, y if label is None else column(label, "label")
