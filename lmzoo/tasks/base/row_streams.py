"""Examples in the rows of a table that is read on demand, of any library, none of which is imported."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmzoo.data.readers.table_streams import Row
from lmzoo.data.readers.text_files import near_names
from lmzoo.files.urls import size_of

_COMPARED = 100  # rows that should be the same in each pass
_CHARACTERS = 1 << 26  # the most that a buffer holds


@dataclass(frozen=True)
class RowStream:
    """The examples in the rows of a table that is read on demand.

    A table iterates over dicts, each time from the beginning. It may have methods of `lmzoo.data.readers.TableStream`:
    `skip`, `select_columns` and `set_epoch`, as Hugging Face's `IterableDataset` also has, `shuffle_files` and
    `count_rows`. A `tf.data.Dataset` of dicts is one, too.

    Attributes:
        table: such a table.
        text: the column of the texts, or a tuple of two.
        label: the column of the labels; None for none.
    """

    table: Any
    text: Any
    label: Any = None

    def __iter__(self) -> Iterator[Any]:
        """Iterates over the texts."""
        return (self._cell(row, self.text, "`text`", i) for i, row in enumerate(self.rows()))

    @property
    def columns_read(self) -> list[Any]:
        """The names of the columns that are read."""
        return [
            *(self.text if isinstance(self.text, tuple) else [self.text]),
            *([] if self.label is None else [self.label]),
        ]

    def shuffled(self, seed: int) -> RowStream:
        """The same examples with the files of the table in another order for each epoch, if it has files."""
        return replace(self, table=self.table.shuffle_files(seed)) if hasattr(self.table, "shuffle_files") else self

    def rows(self, epoch: int = 0, first: int = 0) -> Iterator[Mapping[Any, Any]]:
        """Iterates over the rows of an epoch, from one of them on."""
        table = self.table
        if hasattr(table, "select_columns"):
            table = table.select_columns(self.columns_read)
        skips = first > 0 and hasattr(table, "skip")
        if skips:
            table = table.skip(first)
        if hasattr(table, "set_epoch"):
            table.set_epoch(epoch)
        rows = table.as_numpy_iterator() if hasattr(table, "as_numpy_iterator") else iter(table)
        return rows if skips else itertools.islice(rows, first, None)

    def buffers(self, epoch: int, first: int, size: int, batch_size: int) -> Iterator[list[Any]]:
        """Iterates over lists of numbered rows, `(i, row)`: `size` of them, or fewer if their texts are very long.

        A list holds whole batches, except for the last one. Rows of files are in the order of the files.
        """
        rows = enumerate(self.rows(epoch, first), first)
        while True:
            some: list[Any] = []
            characters = 0
            while len(some) < size and characters < _CHARACTERS and (more := [*itertools.islice(rows, batch_size)]):
                characters += sum(_characters(row) for _, row in more)
                some += more
            if not some:
                return
            if isinstance(some[0][1], Row):
                some.sort(key=lambda numbered: numbered[1].place)
            yield some

    def examples(self, numbered: Sequence[tuple[int, Any]]) -> tuple[Any, Any]:
        """The texts and the labels of some rows, as `fit` takes them; None without labels.

        Raises:
            TypeError: naming a row that is not a dict.
            ValueError: naming a row without one of the columns.
        """

        def column(name: Any, argument: str) -> list[Any]:
            return [self._cell(row, name, argument, i) for i, row in numbered]

        if isinstance(self.text, tuple):
            texts: Any = tuple(column(name, "`text`") for name in self.text)
        else:
            texts = column(self.text, "`text`")
        return texts, None if self.label is None else column(self.label, "`label`")

    def count(self, verbose: bool = True) -> int | None:
        """Number of rows; None if the table does not tell."""
        table = self.table
        if hasattr(table, "count_rows"):
            return table.count_rows(verbose)
        if hasattr(table, "cardinality"):
            found = int(table.cardinality())
            return found if found >= 0 else None
        return len(table) if hasattr(table, "__len__") else None

    def identity(self) -> dict[str, str]:
        """What is quickly known of the table, to compare it with that of an interrupted run.

        Raises:
            ValueError: if two passes begin with different rows.
        """
        once, again = (repr([dict(row) for row in itertools.islice(self.rows(), _COMPARED)]) for _ in range(2))
        if once != again:
            raise ValueError(
                f"This {type(self.table).__name__} is in another order each time it is read, so that a run on it could "
                "not be resumed. Leave the shuffling to `fit`, or shuffle it with a seed that repeats the order."
            )
        files = [(Path(path).name, size_of(path)) for path in getattr(self.table, "files", [])]
        return {"files": hashlib.sha256(repr(files).encode()).hexdigest()} if files else {}

    @staticmethod
    def where(i: int, row: Any) -> str:
        """Where a row is, for messages: the file and line, or its number."""
        return row.where if isinstance(row, Row) else f"row {i} of the stream"

    def _cell(self, row: Any, name: Any, argument: str, i: int) -> Any:
        if not isinstance(row, Mapping):
            raise TypeError(f"{self.where(i, row)} must be a dict with the columns of the table, got {row!r:.60}.")
        if name not in row:
            there = near_names(str(name), [*map(str, row)])
            raise ValueError(f"{self.where(i, row)} has no column {name!r}: name another as {argument}.{there}")
        return row[name]


def _characters(row: Any) -> int:
    """The characters of the texts in a row, also in lists of them."""
    cells = row.values() if isinstance(row, Mapping) else row if isinstance(row, (list, tuple)) else ()
    return sum(len(cell) if isinstance(cell, (str, bytes)) else _characters(cell) for cell in cells)
