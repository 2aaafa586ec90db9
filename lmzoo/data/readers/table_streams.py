"""Streaming of tables from files, row by row, without loading them into memory."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TextIO

from lmzoo.common.arguments import near_names
from lmzoo.common.progress import progress_bar
from lmzoo.data.readers.parquet import count_parquet_rows, import_pyarrow, read_numbered_parquet_rows
from lmzoo.data.readers.tables import (
    HEADED,
    SUFFIXES,
    Column,
    check_width,
    choose_file_format,
    count_rows,
    line_ends,
    pop_names,
    read_numbered_rows,
)
from lmzoo.data.readers.text_files import list_files, open_text

NumberedRows = Iterator[tuple[int, dict[Column, Any]]]


class Row(dict[Column, Any]):
    """A row as a dict from column names to cells, with its location in the files.

    Attributes:
        place: tuple of ints, index of the file and line number, a sort key that restores the order of the files.
        where: str, file and line, for messages.
    """

    __slots__ = ("place", "where")

    def __init__(self, cells: Mapping[Column, Any], place: tuple[int, int], where: str) -> None:
        super().__init__(cells)
        self.place = place
        self.where = where


class TableStream:
    r"""A table that is streamed from any number of files and need not fit into memory.

    Iterating over the table yields a dict for each row; `lmzoo.data.stream` turns these into examples for `fit` and
    `evaluate`. The formats are the same as for `lmzoo.data.readers.read_table`.

    Args:
        files: a file; a directory, whose files with the suffixes `.jsonl`, `.ndjson`, `.parquet`, `.csv`, `.tsv` and
            `.txt` are read in the order of their paths (with `format`, files with any suffix), except files whose names
            begin with "." or "_"; a pattern such as `"reviews/*.jsonl"`; or several of these. Text files may be
            compressed with gzip or xz.
        format: str, a format of `read_table`; by default determined by each file's suffix.
        header: bool, whether the first line of CSV and TSV files names the columns; if not, columns have indices.
        encoding: str, encoding of text files.
        types: dict from names of columns to functions that convert their cells, such as `{"stars": int}`; text files
            other than JSON lines hold only strings.

    Raises:
        FileNotFoundError: If a file does not exist, or a directory holds no such files.
        ImportError: If there are Parquet files and pyarrow is not installed.
        ValueError: If `files` is empty or a format is unknown; while reading, if the encoding is unknown or wrong, a
            line has the wrong format, rows differ in their number of cells, a column does not exist or shares its name
            with another column, or a cell cannot be converted; the message then names the file and, where possible, the
            line.

    Example:

    ```python
    from pathlib import Path
    from lmzoo.data.readers import TableStream

    Path("reviews").mkdir()
    Path("reviews/1.csv").write_text('text,stars\n"Good, really.",5\n')
    Path("reviews/2.csv").write_text("text,stars\nDull.,1\nFine.,4\n")
    stream = TableStream("reviews/*.csv", types={"stars": int})
    next(iter(stream))  # {"text": "Good, really.", "stars": 5}
    [part["text"] for part in stream.iter(batch_size=2)]  # [["Good, really.", "Dull."], ["Fine."]]
    ```
    """

    def __init__(
        self,
        files: str | Path | Iterable[str | Path],
        format: str | None = None,
        header: bool = True,
        encoding: str = "utf-8",
        types: Mapping[Column, Callable[[str], Any]] | None = None,
    ) -> None:
        paths: list[Any] = [files] if isinstance(files, (str, Path)) else list(files)
        self.files = [file for path in paths for file in list_files(path, None if format else SUFFIXES)]
        if not self.files:
            raise ValueError("A TableStream needs at least one file, got an empty list.")
        self.header = header
        self.encoding = encoding
        self.types = dict(types or {})
        self._formats = [choose_file_format(file, format) for file in self.files]
        if "parquet" in self._formats:
            import_pyarrow()
        self._columns: list[Column] | None = None
        self._counts: dict[int, int] = {}  # number of rows by index of the file
        self._first = 0
        self._epoch = 0
        self._seed: int | None = None

    # These names match Hugging Face's `IterableDataset`, so that both are used in the same way.

    @property
    def column_names(self) -> list[Column]:
        """Names of the selected columns, or of all columns of the first file with rows, including repeated names."""
        if self._columns is not None:
            return [*self._columns]
        return next((names for file_index in self._order() if (names := self._read_column_names(file_index))), [])

    def __iter__(self) -> Iterator[Row]:
        """Iterate over the rows of all files."""
        skip = self._first
        for file_index in self._order():
            if skip and skip >= (num_rows := self._count(file_index)):
                skip -= num_rows
                continue
            path = self.files[file_index]
            unit = "row" if self._formats[file_index] == "parquet" else "line"
            for number, cells in self._rows(file_index, skip):
                where = f"{path}, {unit} {number}"
                yield Row(self._convert(cells, where), (file_index, number), where)
            skip = 0

    def iter(self, batch_size: int) -> Iterator[dict[Column, list[Any]]]:
        """Yield batches of rows, each a dict from columns to lists of `batch_size` cells, or fewer in the last batch.

        Args:
            batch_size: int, number of rows in a batch.
        """
        rows = iter(self)
        while batch := list(itertools.islice(rows, batch_size)):
            yield {
                name: [row.get(name) for row in batch] for name in dict.fromkeys(itertools.chain.from_iterable(batch))
            }

    def skip(self, n: int) -> Self:
        """Return the same table without its first `n` rows; skipped files that have been counted are not read again.

        Args:
            n: int, number of rows to skip.
        """
        return self._with(_first=self._first + n)

    def select_columns(self, column_names: Sequence[Column]) -> Self:
        """Return the same table with only some columns; other columns of Parquet files are not read.

        Args:
            column_names: names of the columns to keep.
        """
        return self._with(_columns=[*column_names])

    def shuffle_files(self, seed: int) -> Self:
        """Return the same table with its files in a new order for each epoch.

        `fit` calls this method unless `shuffle=False`.

        Args:
            seed: int, seed of the order.
        """
        return self._with(_seed=seed)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the order of shuffled files.

        Args:
            epoch: int, index of the epoch.
        """
        self._epoch = epoch

    def count_rows(self, verbose: bool = True) -> int:
        """Count the rows of the table; text files are read once, without decoding JSON.

        Args:
            verbose: bool, whether to show progress.
        """
        with progress_bar("Counting rows", len(self.files), "files", verbose) as advance:
            for file_index in range(len(self.files)):
                self._count(file_index)
                advance(1)
        return max(0, sum(self._counts.values()) - self._first)

    # === Files ===

    def _with(self, **changes: Any) -> Self:
        """Return a shallow copy with some attributes changed."""
        table = copy.copy(self)
        vars(table).update(changes)
        return table

    def _order(self) -> list[int]:
        """Return the indices of the files in the order in which the current epoch reads them."""
        indices = [*range(len(self.files))]
        if self._seed is not None:
            random.Random(f"{self._seed}, epoch {self._epoch}").shuffle(indices)
        return indices

    def _count(self, file_index: int) -> int:
        """Return the number of rows of a file, counting them on first use."""
        if file_index not in self._counts:
            path = self.files[file_index]
            format = self._formats[file_index]
            if format == "parquet":
                self._counts[file_index] = count_parquet_rows(path)
            else:
                with open_text(path, self.encoding, line_ends(format)) as file:
                    num_rows = count_rows(file, format, path)
                self._counts[file_index] = max(0, num_rows - (self.header and format in HEADED))
        return self._counts[file_index]

    def _rows(self, file_index: int, skip: int) -> NumberedRows:
        """Yield the rows of a file with their line numbers (row numbers for Parquet), without the first `skip` rows."""
        path = self.files[file_index]
        format = self._formats[file_index]
        if format == "parquet":
            yield from read_numbered_parquet_rows(path, skip, self._columns)
            return
        with open_text(path, self.encoding, line_ends(format)) as file:
            if format == "jsonl":
                yield from read_numbered_rows(file, format, path, skip)
                return
            names, rows = self._split_header(file, path, format)
            selected_names = names if self._columns is None else self._columns
            if repeated_names := [name for name in selected_names if names.count(name) > 1]:
                raise ValueError(
                    f"{path} has several columns {repeated_names[0]!r}. Rename all but one of them, or select other "
                    "columns (`select_columns`)."
                )
            for line, cells in itertools.islice(rows, skip, None):
                names = names or [*range(len(cells))]
                check_width(f"{path}, line {line}", cells, names, format)
                yield line, dict(zip(names, cells, strict=True))

    def _read_column_names(self, file_index: int) -> list[Column]:
        """Return the names of a file's columns, including repeated names, or an empty list for a file without rows."""
        path = self.files[file_index]
        format = self._formats[file_index]
        if format in ("jsonl", "parquet"):
            return next(([*row] for _, row in self._rows(file_index, 0)), [])
        with open_text(path, self.encoding, line_ends(format)) as file:
            names, rows = self._split_header(file, path, format)
            return next((names or [*range(len(cells))] for _, cells in rows), [])

    def _split_header(self, file: TextIO, path: str, format: str) -> tuple[list[Column], Iterator[tuple[int, Any]]]:
        """Return a text file's column names, or [] if columns have only indices, and an iterator over its rows."""
        rows = read_numbered_rows(file, format, path)
        first_rows = list(itertools.islice(rows, 1))
        names: list[Column] = [*(pop_names(first_rows, format, self.header) or [])]
        return names, itertools.chain(first_rows, rows)

    def _convert(self, cells: dict[Column, Any], where: str) -> dict[Column, Any]:
        """Select the columns of a row and convert its cells; `where` names the row in messages.

        Raises:
            ValueError: If a column does not exist, or a cell cannot be converted.
        """
        for name in self._columns or ():
            if name not in cells:
                raise ValueError(f"{where} has no column {name!r}.{near_names(str(name), [*map(str, cells)])}")
        if self._columns is not None:
            cells = {name: cells[name] for name in self._columns}
        for name in self.types.keys() & cells.keys():
            try:
                cells[name] = self.types[name](cells[name])
            except (KeyError, TypeError, ValueError):
                type_name = getattr(self.types[name], "__name__", "value")
                raise ValueError(
                    f"{where}: {name!r} is {cells[name]!r:.60}, which is not a valid {type_name}."
                ) from None
        return cells
