"""Columns of tables: of pandas, polars, pyarrow, Hugging Face's `datasets` or Grain, none of which is imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lmzoo.tasks.base.row_streams import RowStream


def columns_of(x: object) -> list[Any] | None:
    """The names of a table's columns; None for anything that is not a table."""
    names = getattr(x, "column_names", None)  # first, since pyarrow's `columns` are not names
    names = getattr(x, "columns", None) if names is None else names
    return None if names is None else [*names]


def is_table(x: object, text: object = None, label: object = None) -> bool:
    """Whether `x` is a table, in memory or read on demand; `text` and `label` may name columns."""
    return columns_of(x) is not None or _is_stream(x, text, label)


def _is_stream(x: Any, text: object, label: object) -> bool:
    """Whether a table is read on demand: it has no length or, if its columns are named, iterates over its rows."""
    if hasattr(x, "column_names"):
        return not hasattr(x, "__len__")
    if text is None and label is None:
        return False
    other = isinstance(x, (list, tuple, str, bytes, Mapping, Iterator)) or columns_of(x) is not None
    records = isinstance(getattr(x, "element_spec", {}), Mapping)  # of a `tf.data.Dataset`
    return records and not other and hasattr(x, "__iter__") and not hasattr(x, "shape")


def examples_of(
    x: Any, y: Any, text: str | tuple[str, str] | None, label: str | None, needs_labels: bool
) -> tuple[Any, Any]:
    """Texts and labels of a table as lists, or as a stream if it is read on demand; anything else stays as it is.

    Args:
        x: a table, or inputs of another kind.
        y: labels that are not in the table, or None.
        text: the column of the texts, or two for pairs; None for "text".
        label: the column of the labels; None for "label" if the task needs labels, else for none.
        needs_labels: whether the task needs labels.

    Raises:
        TypeError: for names of columns without a table.
        ValueError: for a column that the table does not have, or labels in addition to a column of them.
    """
    names = columns_of(x)
    if _is_stream(x, text, label):
        if y is not None:
            raise ValueError(f"The labels of a {type(x).__name__} are in a column: name it as `label`, without `y`.")
        return RowStream(x, text or "text", "label" if label is None and needs_labels else label), None
    if names is None:
        if text is not None or label is not None:
            raise TypeError(f"`text` and `label` name columns of a table, got {type(x).__name__} instead of a table.")
        return x, y
    if isinstance(x, Mapping):
        raise TypeError(f"Expected one table, got all of {names!r:.200}: pass one, such as `data[{names[0]!r}]`.")
    if label is not None and y is not None:
        raise ValueError("Pass `y` or the name of a column as `label`, not both.")

    chosen = "text" if text is None else text
    texts: Any = (
        tuple(_column(x, name, "text") for name in chosen) if isinstance(chosen, tuple) else _column(x, chosen, "text")
    )
    if label is None and y is None and needs_labels:
        label = "label"
    return texts, y if label is None else _column(x, label, "label")


def named_columns(x: Any, columns: Sequence[str] | Mapping[str, Sequence[Any]] | None) -> dict[str, Sequence[Any]]:
    """Columns of a table by name; those that are given as values stay as they are.

    Raises:
        TypeError: for names of columns without a table.
        ValueError: for a column that the table does not have.
    """
    if columns is None or isinstance(columns, Mapping):
        return dict(columns or {})
    if columns_of(x) is None or isinstance(columns, str):
        raise TypeError(
            "`columns` must be a list of names of a table's columns or, without a table, a dict of lists: got "
            f"{columns!r:.60} and {type(x).__name__}."
        )
    return {name: _column(x, name, "columns") for name in columns}


def _column(x: Any, name: str, argument: str) -> list[Any]:
    names = columns_of(x) or []
    if name not in names:
        raise ValueError(f"The table has no column {name!r}: pass one of {names!r:.200} as `{argument}`.")
    values = x[name]
    # pandas' and pyarrow's own scalars become Python's.
    return values.to_pylist() if hasattr(values, "to_pylist") else list(values)
