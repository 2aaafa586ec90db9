"""Examples from tables of pandas, polars, pyarrow, Hugging Face's `datasets` or Grain, none of which is imported."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from lmzoo.common.arguments import is_integer, near_names, require
from lmzoo.data.readers.table_streams import Row
from lmzoo.files.urls import get_size

SHUFFLE_BUFFER = 10_000  # number of examples

_COMPARED_ROWS = 100  # number of leading rows that must be equal in each pass
_MAX_BUFFER_CHARACTERS = 1 << 26


def column_names(table: object) -> list[Any] | None:
    """Return the names of a table's columns, or None if `table` is not a table."""
    names = getattr(table, "column_names", None)  # takes precedence, since pyarrow's `columns` are not names
    names = getattr(table, "columns", None) if names is None else names
    return None if names is None else [*names]


def from_table(
    table: Any, text: str | tuple[str, str] | list[str] = "text", label: str | None = None
) -> tuple[list[Any] | tuple[list[Any], list[Any]], list[Any] | None]:
    """Return the texts and the labels in the columns of a table, for `fit`.

    Args:
        table: a DataFrame of pandas or polars, a table of pyarrow, or a Hugging Face dataset.
        text: str, name of the text column, or a tuple or list of two names for pairs.
        label: str, name of the label column; None to return no labels.

    Returns:
        `(texts, labels)`: a list of texts, or a tuple of two lists for pairs; and a list of labels, or None.

    Raises:
        TypeError: If `table` is not a table in memory, or is a dict of several tables.
        ValueError: If `table` lacks one of the columns, or has several columns of that name.

    Example:

    ```python
    import lmzoo

    class Table(dict):
        columns = ["review", "stars"]

    table = Table(review=["A fine film.", "Dull."], stars=[1, 0])
    texts, labels = lmzoo.data.from_table(table, "review", "stars")  # ["A fine film.", "Dull."], [1, 0]
    ```
    """
    names = column_names(table)
    if names is None or not hasattr(table, "__len__"):
        raise TypeError(
            f"Expected a table in memory, got {type(table).__name__}. `lmzoo.data.stream` reads rows on demand."
        )
    if isinstance(table, Mapping) and all(column_names(subtable) is not None for subtable in table.values()):
        raise TypeError(f"Expected one table, got all of {names!r:.200}: pass one, such as `data[{names[0]!r}]`.")
    texts: Any
    if isinstance(text, (tuple, list)):
        texts = tuple(_read_cells(table, name, "text") for name in text)
    else:
        texts = _read_cells(table, text, "text")
    return texts, None if label is None else _read_cells(table, label, "label")


def _read_cells(table: Any, name: Any, argument: str) -> list[Any]:
    """Return the values of a column as a list.

    Args:
        table: table in memory.
        name: name of the column.
        argument: str, name of the parameter that selects the column, for error messages.

    Raises:
        ValueError: If the table lacks the column, or has several columns of that name.
    """
    names = column_names(table) or []
    if name not in names:
        raise ValueError(f"The table has no column {name!r}: pass one of {names!r:.200} as `{argument}`.")
    if names.count(name) > 1:
        raise ValueError(f"The table has several columns {name!r}. Rename all but one of them.")
    values = table[name]
    # Scalars of pandas and pyarrow become Python objects.
    return values.to_pylist() if hasattr(values, "to_pylist") else list(values)


def stream(
    rows: Iterable[Mapping[Any, Any]],
    text: Any = "text",
    label: Any = None,
    shuffle_buffer: int = SHUFFLE_BUFFER,
) -> ExampleStream:
    r"""Create a stream of examples for `fit` and `evaluate`; the examples need not fit into memory.

    Args:
        rows: iterable over rows, each a dict; every iteration must start from the beginning, as for a
            `lmzoo.data.readers.TableStream`, a Hugging Face `IterableDataset`, a dataset of Grain, or a
            `tf.data.Dataset` of dicts.
        text: name of the text column, or a tuple or list of two names for pairs.
        label: name of the label column; None for examples without labels.
        shuffle_buffer: int, number of examples held in memory to shuffle and to batch by length; fewer if they have
            more than 67 million characters.

    Raises:
        TypeError: If `rows` can be iterated over only once, or not at all.
        ValueError: If `shuffle_buffer` is not a positive integer.

    Example:

    ```python
    from pathlib import Path

    import lmzoo
    from lmzoo.data.readers import TableStream

    Path("reviews.csv").write_text("review,stars\nA fine film.,1\nDull.,0\n")
    reviews = lmzoo.data.stream(TableStream("reviews.csv", types={"stars": int}), "review", "stars")
    classifier = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", num_classes=2)
    classifier.fit(reviews, epochs=1, verbose=0)
    ```
    """
    require(is_integer(shuffle_buffer, 1), "shuffle_buffer", "an integer of at least 1", shuffle_buffer)
    if isinstance(rows, Iterator) or not hasattr(rows, "__iter__"):
        raise TypeError(
            f"Expected rows that can be read again for each epoch, got {rows!r:.60} ({type(rows).__name__}). Pass an "
            "object whose `__iter__` begins anew."
        )
    return ExampleStream(rows, tuple(text) if isinstance(text, list) else text, label, shuffle_buffer)


@dataclass(frozen=True)
class ExampleStream:
    """Stream of examples from the rows of a table, created by `lmzoo.data.stream`.

    If the table has these methods of `lmzoo.data.readers.TableStream`, the stream calls them: `skip`, `select_columns`,
    `set_epoch`, `shuffle_files` and `count_rows`. A Hugging Face `IterableDataset` has the first three.

    Attributes:
        table: iterable over rows, each a dict; every iteration starts from the beginning.
        text: name of the text column, or a tuple of two names.
        label: name of the label column; None for examples without labels.
        shuffle_buffer: int, number of examples in memory, rounded up to whole batches; fewer if the texts are very
            long.

    Example: see `lmzoo.data.stream`.
    """

    table: Any
    text: Any
    label: Any = None
    shuffle_buffer: int = SHUFFLE_BUFFER

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the texts, which are tuples if there are several text columns."""
        stream_of_texts = replace(self, label=None)
        for numbered_row in enumerate(self.rows()):
            texts, _ = stream_of_texts.examples([numbered_row])
            yield tuple(column[0] for column in texts) if isinstance(self.text, tuple) else texts[0]

    @property
    def columns_read(self) -> list[Any]:
        """Names of the text columns and of the label column, if any."""
        texts = [*self.text] if isinstance(self.text, tuple) else [self.text]
        return texts if self.label is None else [*texts, self.label]

    def shuffled(self, seed: int) -> Self:
        """Return a stream that shuffles the table's files for each epoch, or this stream if the table has no files."""
        return replace(self, table=self.table.shuffle_files(seed)) if hasattr(self.table, "shuffle_files") else self

    def rows(self, epoch: int = 0, first: int = 0) -> Iterator[Mapping[Any, Any]]:
        """Iterate over the rows of an epoch, starting with the row at index `first`."""
        table = self.table
        if hasattr(table, "select_columns"):
            table = table.select_columns(self.columns_read)
        use_skip = first > 0 and hasattr(table, "skip")
        if use_skip:
            table = table.skip(first)
        if hasattr(table, "set_epoch"):
            table.set_epoch(epoch)
        rows = table.as_numpy_iterator() if hasattr(table, "as_numpy_iterator") else iter(table)
        return rows if use_skip else itertools.islice(rows, first, None)

    def buffers(self, epoch: int, first: int, batch_size: int) -> Iterator[list[Any]]:
        """Yield lists of about `shuffle_buffer` rows with their indices, `(i, row)`; fewer if the texts are very long.

        Every list except the last holds whole batches. Rows from files are sorted in the order of the files.
        """
        rows = enumerate(self.rows(epoch, first), first)
        while True:
            buffer: list[Any] = []
            num_characters = 0
            while len(buffer) < self.shuffle_buffer and num_characters < _MAX_BUFFER_CHARACTERS:
                batch = [*itertools.islice(rows, batch_size)]
                if not batch:
                    break
                num_characters += sum(_count_characters(row) for _, row in batch)
                buffer += batch
            if not buffer:
                return
            if isinstance(buffer[0][1], Row):
                buffer.sort(key=lambda indexed_row: indexed_row[1].place)
            yield buffer

    def examples(self, numbered: Sequence[tuple[int, Any]]) -> tuple[Any, Any]:
        """Return the texts and the labels of indexed rows, for `fit`; labels are None if there is no label column.

        Raises:
            TypeError: If a row is not a dict; the message names it.
            ValueError: If a row lacks one of the columns; the message names it.
        """

        def get_cells(name: Any, argument: str) -> list[Any]:
            return [self._cell(row, name, argument, i) for i, row in numbered]

        labels = None if self.label is None else get_cells(self.label, "`label`")
        if isinstance(self.text, tuple):
            return tuple(get_cells(name, "`text`") for name in self.text), labels
        return get_cells(self.text, "`text`"), labels

    def count(self, verbose: bool = True) -> int | None:
        """Return the number of rows, or None if it is unknown."""
        table = self.table
        if hasattr(table, "count_rows"):
            return table.count_rows(verbose)
        if hasattr(table, "cardinality"):
            cardinality = int(table.cardinality())
            return cardinality if cardinality >= 0 else None
        return len(table) if hasattr(table, "__len__") else None

    def identity(self) -> dict[str, Any]:
        """Return properties by which a resumed run recognizes the examples; they are quick to compute.

        Raises:
            ValueError: If two passes begin with different rows.
        """
        first_pass, second_pass = (
            repr([dict(row) for row in itertools.islice(self.rows(), _COMPARED_ROWS)]) for _ in range(2)
        )
        if first_pass != second_pass:
            raise ValueError(
                f"This {type(self.table).__name__} is in another order each time it is read, so that a run on it could "
                "not be resumed. Leave the shuffling to `fit`, or shuffle it with a seed that repeats the order."
            )
        file_sizes = [(Path(path).name, get_size(path)) for path in getattr(self.table, "files", [])]
        files_digest = {"files": hashlib.sha256(repr(file_sizes).encode()).hexdigest()} if file_sizes else {}
        return {"shuffle buffer": self.shuffle_buffer, **files_digest}

    @staticmethod
    def where(i: int, row: Any) -> str:
        """Return the location of a row for messages: its file and line, or its index."""
        return row.where if isinstance(row, Row) else f"row {i} of the stream"

    def _cell(self, row: Any, name: Any, argument: str, i: int) -> Any:
        """Return the value of a column in a row; error messages name the parameter `argument`.

        Raises:
            TypeError: If the row is not a dict.
            ValueError: If the row lacks the column.
        """
        if not isinstance(row, Mapping):
            raise TypeError(f"{self.where(i, row)} must be a dict with the columns of the table, got {row!r:.60}.")
        if name not in row:
            suggestion = near_names(str(name), [*map(str, row)])
            raise ValueError(f"{self.where(i, row)} has no column {name!r}: name another as {argument}.{suggestion}")
        return row[name]


def _count_characters(row: Any) -> int:
    """Return the number of characters of the texts in a row, including nested lists."""
    cells = row.values() if isinstance(row, Mapping) else row if isinstance(row, (list, tuple)) else ()
    return sum(len(cell) if isinstance(cell, (str, bytes)) else _count_characters(cell) for cell in cells)
