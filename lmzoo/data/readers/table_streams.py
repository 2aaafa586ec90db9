"""Tables in files that need not fit into memory: they are read row by row, each time from the beginning."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from lmzoo.common.arguments import near_names
from lmzoo.common.progress import progress_bar
from lmzoo.data.readers.parquet import count_parquet_rows, import_pyarrow, numbered_parquet_rows
from lmzoo.data.readers.tables import (
    HEADED,
    SUFFIXES,
    Column,
    check_width,
    count_rows,
    known_format,
    line_ends,
    numbered_rows,
    pop_names,
)
from lmzoo.data.readers.text_files import list_files, open_text

NumberedRows = Iterator[tuple[int, dict[Column, Any]]]


class Row(dict[Column, Any]):
    """The cells of a row by the names of their columns, and where it was read.

    Attributes:
        place: number of the file and of the line; sorted by it, rows are in the order of the files.
        where: the file and the line, for messages.
    """

    __slots__ = ("place", "where")

    def __init__(self, cells: Mapping[Column, Any], place: tuple[int, int], where: str) -> None:
        super().__init__(cells)
        self.place, self.where = place, where


class TableStream:
    r"""A table in any number of files, which is read on demand and need not fit into memory.

    Iterating over it yields a dict for each row; `lmzoo.data.stream` makes examples of these for `fit` and `evaluate`.
    The formats are those of `lmzoo.data.readers.read_table`.

    Args:
        files: a file; a folder, whose files with the suffixes `.jsonl`, `.ndjson`, `.parquet`, `.csv`, `.tsv` and
            `.txt` are read in the order of their paths; a pattern such as `"reviews/*.jsonl"`; or several of these.
            Text files may be compressed by gzip or xz.
        format: a format of `read_table`; by default decided by each file's suffix.
        header: whether the first line of CSV and TSV files names the columns. Without it, columns have numbers.
        encoding: encoding of text files.
        types: converts the cells of columns, by their names; text files other than JSON lines hold only strings:
            `{"stars": int}`.

    Raises:
        FileNotFoundError: if a file does not exist, or a folder holds none.
        ImportError: for Parquet files without pyarrow.
        ValueError: for an unknown format or encoding; while reading, naming the file and line: for a line in another
            format, a row with another number of cells than the first, a column that does not exist, or a cell that
            cannot be converted.

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
        listed: list[Any] = [files] if isinstance(files, (str, Path)) else list(files)
        self.files = [file for path in listed for file in list_files(path, SUFFIXES)]
        if not self.files:
            raise ValueError("A TableStream needs at least one file, got an empty list.")
        self.header, self.encoding, self.types = header, encoding, dict(types or {})
        self._formats = [known_format(file, format) for file in self.files]
        if "parquet" in self._formats:
            import_pyarrow()
        self._columns: list[Column] | None = None
        self._counts: dict[int, int] = {}  # rows of files that have been counted
        self._first, self._epoch = 0, 0
        self._seed: int | None = None

    # Named as in Hugging Face's `IterableDataset`, so that both are used in the same way.

    @property
    def column_names(self) -> list[Column]:
        """The names of the columns of the first row."""
        return next(([*row] for row in self._with(_first=0)), [])

    def __iter__(self) -> Iterator[Row]:
        """Iterate over the rows of all files."""
        skip = self._first
        for number in self._order():
            if skip and skip >= (count := self._count(number)):
                skip -= count
                continue
            path, unit = self.files[number], "row" if self._formats[number] == "parquet" else "line"
            for line, cells in self._rows(number, skip):
                where = f"{path}, {unit} {line}"
                yield Row(self._converted(cells, where), (number, line), where)
            skip = 0

    def iter(self, batch_size: int) -> Iterator[dict[Column, list[Any]]]:
        """Iterate over parts of the table, each a dict of columns with `batch_size` cells; the last may be shorter.

        Args:
            batch_size: int.
        """
        rows = iter(self)
        while some := list(itertools.islice(rows, batch_size)):
            yield {name: [row.get(name) for row in some] for name in dict.fromkeys(itertools.chain.from_iterable(some))}

    def skip(self, n: int) -> Self:
        """Return the same table without its first rows; files before them, once counted, are not read again.

        Args:
            n: int, number of rows.
        """
        return self._with(_first=self._first + n)

    def select_columns(self, column_names: Sequence[Column]) -> Self:
        """Return the same table with fewer columns; of Parquet files the others are not read.

        Args:
            column_names: those to keep.
        """
        return self._with(_columns=[*column_names])

    def shuffle_files(self, seed: int) -> Self:
        """Return the same table with its files in another order for each epoch. `fit` calls it, unless `shuffle=False`.

        Args:
            seed: int.
        """
        return self._with(_seed=seed)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, on which the order of shuffled files depends.

        Args:
            epoch: int.
        """
        self._epoch = epoch

    def count_rows(self, verbose: bool = True) -> int:
        """Return number of rows of all files. Text files are read once for it, but JSON is not decoded.

        Args:
            verbose: whether to show progress.
        """
        with progress_bar("Counting rows", len(self.files), "files", verbose) as advance:
            for number in range(len(self.files)):
                self._count(number)
                advance(1)
        return max(0, sum(self._counts.values()) - self._first)

    # === Files ===

    def _with(self, **changes: Any) -> Self:
        changed = copy.copy(self)
        vars(changed).update(changes)
        return changed

    def _order(self) -> list[int]:
        numbers = [*range(len(self.files))]
        if self._seed is not None:
            random.Random(f"{self._seed}, epoch {self._epoch}").shuffle(numbers)
        return numbers

    def _count(self, number: int) -> int:
        if number not in self._counts:
            path, format = self.files[number], self._formats[number]
            if format == "parquet":
                self._counts[number] = count_parquet_rows(path)
            else:
                with open_text(path, self.encoding, line_ends(format)) as file:
                    rows = count_rows(file, format, path)
                self._counts[number] = max(0, rows - (self.header and format in HEADED))
        return self._counts[number]

    def _rows(self, number: int, skip: int) -> NumberedRows:
        """Yield the rows of a file from a certain one on, with the numbers of their lines."""
        path, format = self.files[number], self._formats[number]
        if format == "parquet":
            yield from numbered_parquet_rows(path, skip, self._columns)
            return
        with open_text(path, self.encoding, line_ends(format)) as file:
            if format == "jsonl":
                yield from numbered_rows(file, format, path, skip)
                return
            rows = numbered_rows(file, format, path)
            first = list(itertools.islice(rows, 1))
            names = pop_names(first, format, self.header)
            for line, cells in itertools.islice(itertools.chain(first, rows), skip, None):
                names = names or [*range(len(cells))]
                check_width(f"{path}, line {line}", cells, names, format)
                yield line, dict(zip(names, cells, strict=True))

    def _converted(self, cells: dict[Column, Any], where: str) -> dict[Column, Any]:
        for name in self._columns or ():
            if name not in cells:
                raise ValueError(f"{where} has no column {name!r}.{near_names(str(name), [*map(str, cells)])}")
        if self._columns is not None:
            cells = {name: cells[name] for name in self._columns}
        for name in self.types.keys() & cells.keys():
            try:
                cells[name] = self.types[name](cells[name])
            except (TypeError, ValueError):
                kind = getattr(self.types[name], "__name__", "value")
                raise ValueError(f"{where}: {name!r} is {cells[name]!r:.60}, which is not a valid {kind}.") from None
        return cells
