"""Reader of tables: CSV, TSV, JSON lines, Parquet and lines of text."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from lmzoo.common.arguments import near_names
from lmzoo.data.readers.parquet import read_numbered_parquet_rows
from lmzoo.data.readers.text_files import (
    Source,
    check_label,
    get_name,
    get_suffix,
    json_objects,
    read_numbered_lines,
    read_text,
)
from lmzoo.errors import ArgumentError, NoExamplesError

FORMATS = ("csv", "tsv", "jsonl", "parquet", "txt", "labeled")
SUFFIXES = {f".{format}": format for format in FORMATS[:-1]} | {".ndjson": "jsonl"}
HEADED = ("csv", "tsv")  # formats whose first line may name the columns
_DICT_FORMATS = ("jsonl", "parquet")  # formats whose rows are dicts
_MAX_CELL_CHARACTERS = 1 << 28  # a document may be longer than the csv module's limit of 128 KiB

Column = int | str


def read_table(
    path: Source,
    text: Column = "text",
    pair: Column | None = None,
    label: Column | None = None,
    label_type: Callable[[str], Any] = str,
    labels: Sequence[str] | None = None,
    header: bool = True,
    format: str | None = None,
    encoding: str = "utf-8",
    separator: str | None = None,
) -> tuple[list[str] | tuple[list[str], list[str]], list[Any] | None]:
    r"""Read texts, or pairs of texts, and labels from the columns of a table.

    The formats are:

    * `"csv"`: cells separated by commas; cells in double quotes may hold commas, line breaks and doubled quotes.
    * `"tsv"`: cells separated by tabs; quotes have no meaning, as in GLUE's files.
    * `"jsonl"`: one object per line, whose keys are the columns.
    * `"parquet"`: Apache Parquet, which requires `pip install 'lmzoo[parquet]'`.
    * `"txt"`: one text per line, in the column `text`.
    * `"labeled"`: a label, a space and a text per line, in the columns `label` and `text`.

    In a CSV or TSV file with one column, an empty line before the last row is a row with an empty cell. Empty lines at
    the beginning or end of a file, or in a file with several columns, are skipped.

    Args:
        path: path of a file, or a file object open in binary mode; it may be compressed with gzip or xz.
        text: column of the texts: its name, or its index from 0, or from the end if negative.
        pair: column of the second texts of pairs; None for single texts.
        label: column of the labels; None to read no labels.
        label_type: callable that converts a label: `str`, `int`, `float` or another function of a string.
        labels: list of strings, the allowed labels as the file spells them; None to allow any.
        header: bool, whether the first line of CSV and TSV names the columns; if not, columns have only indices.
        format: str, one of the above; by default determined by the file's suffix.
        encoding: str, encoding of the file.
        separator: str, separator of the labels in a cell, for texts with any number of labels; in JSON lines, a cell
            may also be a list of labels. None if each text has one label.

    Returns:
        `x, y` for `fit`. `x` is a list of texts, or `(texts, second texts)`. `y` is a list of labels, with `separator`
        a list of lists of labels, or None if `label` is None.

    Raises:
        ValueError: If a column does not exist or shares its name with another column, rows differ in their number of
            cells, the file is empty or in another format or encoding, or a label is missing, not allowed or cannot be
            converted; the message names the file and, where possible, the line.

    Example:

    ```python
    from pathlib import Path
    from lmzoo.data.readers import read_table

    Path("reviews.csv").write_text('id,review,stars\n1,"Good, really.",5\n2,Dull.,1\n')
    read_table("reviews.csv", text="review", label="stars")  # ["Good, really.", "Dull."], ["5", "1"]
    read_table("reviews.csv", text=1, label=-1, label_type=float)[1]  # [5.0, 1.0]
    ```
    """
    table = open_table(path, header, format, encoding)
    texts = table.texts(text)
    x = texts if pair is None else (texts, table.texts(pair))
    return x, None if label is None else table.labels(label, label_type, labels, separator)


@dataclass(frozen=True)
class Table:
    """The rows of a table file, with the names of its columns.

    Attributes:
        path: str, name of the file in messages.
        format: str, one of `FORMATS`.
        names: list of strings, names of the columns; None if the columns have only indices.
        rows: list of lists of cells, or of dicts for JSON lines and Parquet.
        lines: list of ints, number of the line at which each row begins; for Parquet, number of the row.
    """

    path: str
    format: str
    names: list[str] | None
    rows: list[Any]
    lines: list[int]

    def where(self, row: int) -> str:
        """Return the file and line of a row, for messages."""
        return f"{self.path}, {'row' if self.format == 'parquet' else 'line'} {self.lines[row]}"

    def has(self, name: str) -> bool:
        """Return whether the table has one column `name`, with a cell in every row."""
        return (
            all(name in row for row in self.rows)
            if self.format in _DICT_FORMATS
            else (self.names or []).count(name) == 1
        )

    def column(self, column: Column) -> list[Any]:
        """Return the cells of a column.

        Raises:
            ValueError: If the column does not exist or is ambiguous.
        """
        if self.format in _DICT_FORMATS:
            for i, row in enumerate(self.rows):
                if column not in row:
                    raise ValueError(f"{self.where(i)} has no {column!r}.{near_names(str(column), list(row))}")
            return [row[column] for row in self.rows]
        index = self._find_column_index(column)
        return [row[index] for row in self.rows]

    def _find_column_index(self, column: Column) -> int:
        """Return the index of a column in the rows, from its name or index.

        Raises:
            ValueError: If the column does not exist or is ambiguous.
        """
        num_columns = len(self.rows[0])
        if isinstance(column, int):
            if not -num_columns <= column < num_columns:
                raise ValueError(f"{self.path} has {num_columns} columns, numbered from 0, and no column {column}.")
            return column
        if self.names is None:
            raise ValueError(f"{self.path} is read without a header: give columns by number, 0 to {num_columns - 1}.")
        if column not in self.names:
            header_hint = " If its first line is not a header, say so (`header`)." if self.format in HEADED else ""
            raise ArgumentError(
                f"{self.path}, read as {self.format}, has no column {column!r}."
                f"{near_names(column, self.names)}{header_hint}",
                "header" if header_hint else None,
            )
        if self.names.count(column) > 1:
            raise ValueError(f"{self.path} has several columns {column!r}: give the number of one, from 0.")
        return self.names.index(column)

    def texts(self, column: Column) -> list[str]:
        """Return the cells of a column after checking that they are strings.

        Raises:
            ValueError: If the column does not exist, or a cell is not text; the message names the line.
        """
        cells = self.column(column)
        for i, cell in enumerate(cells):
            if not isinstance(cell, str):
                raise ValueError(f"{self.where(i)}: {column!r} must be a string, got {_convert_cell_to_json(cell)}.")
        return cells

    def labels(
        self,
        column: Column,
        label_type: Callable[[str], Any] = str,
        labels: Sequence[str] | None = None,
        separator: str | None = None,
    ) -> list[Any]:
        """Return the cells of a column as labels; see `read_table`.

        Raises:
            ValueError: If the column does not exist, the first line holds a label instead of the column's name, or a
                label is missing, not allowed or cannot be converted.
        """
        cells = self.column(column)
        if (
            isinstance(column, int)
            and self.names is not None
            and _looks_like_label(self.names[column], cells, label_type)
        ):
            raise ArgumentError(
                f"{self.path}: the first line should name the columns, but holds a label, {self.names[column]!r}. If "
                "it is an example, say so (`header`).",
                "header",
            )
        if separator is None:
            return [self._label(i, column, cell, label_type, labels) for i, cell in enumerate(cells)]
        return [
            [self._label(i, column, cell_label, label_type, labels) for cell_label in label_parts(cell, separator)]
            for i, cell in enumerate(cells)
        ]

    def _label(
        self, row: int, column: Column, cell: Any, label_type: Callable[[str], Any], labels: Sequence[str] | None
    ) -> Any:
        """Convert a cell to a label.

        Raises:
            ValueError: If the label is missing, not allowed, or cannot be converted.
        """
        if isinstance(cell, (dict, list)):
            raise ValueError(f"{self.where(row)}: {column!r} must be one label, got {_convert_cell_to_json(cell)}.")
        label = convert_cell_to_label(cell)
        check_label(label, labels, self.where(row))
        try:
            return label_type(label)
        except (KeyError, ValueError):
            type_name = getattr(label_type, "__name__", "label")
            raise ValueError(f"{self.where(row)}: the label {label!r} is not a valid {type_name}.") from None


def convert_cell_to_label(cell: Any) -> str:
    """Return a cell as a string, numbers as in JSON lines and "" for None; Parquet also has bytes, dates and decimals.

    Invalid UTF-8 is replaced.
    """
    if cell is None:
        return ""
    if isinstance(cell, bytes):
        return cell.decode(errors="replace")
    return json.dumps(cell) if isinstance(cell, (bool, int, float)) else str(cell)


def _convert_cell_to_json(cell: Any) -> str:
    """Return a cell as JSON."""
    return json.dumps(cell, default=str)  # Parquet has more types than JSON, such as dates and bytes


def _looks_like_label(name: str, cells: Sequence[Any], label_type: Callable[[str], Any]) -> bool:
    """Return whether a column's name is one of its labels or, if `label_type` is not `str`, converts to a label."""
    if label_type is str:
        return name in cells
    try:
        label_type(name)
    except (KeyError, TypeError, ValueError):
        return False
    return True


def label_parts(cell: Any, separator: str) -> list[Any]:
    """Return the labels in a cell, which may be a string of labels between `separator`s, a list, one label or None."""
    if isinstance(cell, str):
        return [part.strip() for part in cell.split(separator)] if cell.strip() else []
    return cell if isinstance(cell, list) else [] if cell is None else [cell]


def table_format(path: Source, format: str | None = None) -> str | None:
    """Return `format` if it is set, else the format for the file's suffix, or None if no format has this suffix."""
    return format or SUFFIXES.get(get_suffix(path))


def choose_file_format(path: Source, format: str | None = None) -> str:
    """Return `format` if it is set, else the format for the file's suffix.

    Raises:
        ValueError: If `format` is unknown, or is None and no format has the file's suffix.
    """
    format_name = table_format(path, format)
    if format_name is not None and format_name in FORMATS:
        return format_name
    problem = (
        f"There is no format {format_name!r}."
        if format_name
        else f"The name of {get_name(path)} does not tell its format."
    )
    raise ArgumentError(f"{problem} Pass one of these as `format`: {', '.join(FORMATS)}.", "format")


def open_table(path: Source, header: bool = True, format: str | None = None, encoding: str = "utf-8") -> Table:
    """Read the rows of a table file; see `read_table`.

    Raises:
        ValueError: If the format or encoding is unknown, or the file is empty or in another format or encoding.
    """
    name = get_name(path)
    format = choose_file_format(path, format)
    if format == "parquet":
        rows_with_lines = list(read_numbered_parquet_rows(path))
    else:
        text = read_text(path, encoding)
        rows_with_lines = list(read_numbered_rows(io.StringIO(text, newline=line_ends(format)), format, name))
    names = pop_names(rows_with_lines, format, header)
    if not rows_with_lines:
        raise NoExamplesError(f"{name} holds no examples.")
    for line, row in rows_with_lines:
        check_width(f"{name}, line {line}", row, names or rows_with_lines[0][1], format)
    return Table(name, format, names, [row for _, row in rows_with_lines], [line for line, _ in rows_with_lines])


def line_ends(format: str) -> str:
    """Return the `newline` argument for opening a file of this format."""
    return "" if format == "csv" else "\n"


def pop_names(rows: list[tuple[int, Any]], format: str, header: bool) -> list[str] | None:
    """Remove the header, if any, from the rows, and return the columns' names, or None if columns have only indices.

    Args:
        rows: list of `(line number, row)`; changed in place.
        format: str, one of `FORMATS`.
        header: bool, whether the first line of CSV and TSV names the columns.
    """
    if rows and header and format in HEADED:
        return rows.pop(0)[1]
    return {"txt": ["text"], "labeled": ["label", "text"]}.get(format)


def check_width(where: str, row: Collection[Any], first: Collection[Any], format: str) -> None:
    """Check that a row has as many cells as the first line, unless the rows of the format are dicts.

    Raises:
        ValueError: If the numbers of cells differ; the message begins with `where`, the location of the row.
    """
    if format not in _DICT_FORMATS and len(row) != len(first):
        raise ValueError(f"{where}, read as {format}, has {len(row)} cells, the first line has {len(first)}.")


def read_numbered_rows(file: TextIO, format: str, name: str, skip: int = 0) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a file with their line numbers.

    Args:
        file: text file, opened with `newline=line_ends(format)`; it is read as the iterator advances.
        format: str, one of `FORMATS` except "parquet".
        name: str, name of the file in messages.
        skip: int, number of rows to skip, including the header; skipped JSON is not decoded.

    Raises:
        ValueError: If a line is not in this format; the message names the line.
    """
    rows = itertools.islice(_SPLITTERS[format](file, name), skip, None)
    return json_objects(rows, name) if format == "jsonl" else rows


def count_rows(file: TextIO, format: str, name: str) -> int:
    """Return the number of rows of a file, including the header, without decoding JSON; see `read_numbered_rows`."""
    return sum(1 for _ in _SPLITTERS[format](file, name))


def _read_csv(file: TextIO, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file with the numbers of the lines at which they begin; an empty line has no cells.

    Raises:
        ValueError: If quotes are unbalanced or misplaced; the message begins with `name`, the name of the file.
    """
    reader = csv.reader(file, strict=True)
    line_number = 1
    while True:
        previous_limit = csv.field_size_limit(_MAX_CELL_CHARACTERS)
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise ValueError(f"{name}, line {line_number}: the quotes are wrong: {error}.") from None
        finally:
            csv.field_size_limit(previous_limit)
        if row is None:
            return
        yield line_number, row
        line_number = reader.line_num + 1


def _fill_empty_lines(rows: Iterable[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """Skip rows without cells or, in a table with one column, turn rows without cells into rows with an empty cell.

    Rows without cells at the beginning and the end are always skipped.
    """
    first_width = 0
    empty_lines: list[int] = []  # since the last row that has cells, in a table with one column
    for line_number, row in rows:
        if row:
            first_width = first_width or len(row)
            for empty_line in empty_lines:
                yield empty_line, [""]
            empty_lines.clear()
            yield line_number, row
        elif first_width == 1:
            empty_lines.append(line_number)


def _read_tsv(file: TextIO) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a TSV file with their line numbers; an empty line has no cells."""
    return ((number, line.split("\t") if line else []) for number, line in read_numbered_lines(file))


# Functions that take a file and its name and yield numbered rows; rows of JSON lines are not yet decoded.
_SPLITTERS: dict[str, Callable[[TextIO, str], Iterator[tuple[int, Any]]]] = {
    "csv": lambda file, name: _fill_empty_lines(_read_csv(file, name)),
    "tsv": lambda file, name: _fill_empty_lines(_read_tsv(file)),
    "jsonl": lambda file, name: ((number, line) for number, line in read_numbered_lines(file) if line.strip()),
    "txt": lambda file, name: ((number, [line]) for number, line in read_numbered_lines(file)),
    "labeled": lambda file, name: ((number, line.split(" ", 1)) for number, line in read_numbered_lines(file) if line),
}
