"""The answers of `lmzoo predict`: each with its input, as lines of JSON, or rows of CSV or Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import PurePath
from typing import Any, BinaryIO, TypeAlias

from lmzoo.data.readers.parquet import import_pyarrow
from lmzoo_cli.examples import Inputs
from lmzoo_cli.output import rounded
from lmzoo_cli.task_kinds import Kind

# What an answer belongs to: the id or the parts of the input, and its label if there is one.
Origin: TypeAlias = dict[str, Any]


def origins(kind: Kind, x: Inputs, kept: Mapping[str, Sequence[Any]]) -> list[Origin]:
    """What each answer is written with.

    Args:
        kind: of the task.
        x: the inputs.
        kept: cells from the file by name, see `lmzoo_cli.examples.read_kept`; ids replace the inputs.
    """
    parts = x if isinstance(x, tuple) else ([_first(example) for example in x],)
    columns = {**({} if "id" in kept else dict(zip(kind.inputs, parts, strict=False))), **kept}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _first(example: Any) -> str:
    """A text; of a prompt with choices the prompt; of words all of them."""
    if isinstance(example, tuple):
        return example[0]
    return example if isinstance(example, str) else " ".join(example)


class AnswerFormat(StrEnum):
    """The formats of answers."""

    jsonl = "jsonl"
    csv = "csv"
    parquet = "parquet"


class JsonLines:
    """Writes an object for each example."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, origins: Iterable[Origin], answers: Iterable[Any]) -> None:
        """Writes the lines of some examples."""
        for origin, answer in zip(origins, answers, strict=True):
            line = json.dumps(_joined(origin, answer), ensure_ascii=False, default=str)
            self._file.write(f"{line}\n".encode(errors="replace"))

    def close(self) -> None:
        """Does nothing: all is written."""


class CsvRows:
    """Writes a row for each answer, and one with empty cells for an example without answers.

    The columns are those of the first answer. A field whose name the origin has, too, is called `answer_...`.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._names: list[str] | None = None
        self._waiting: list[Origin] = []  # rows without answers, before the columns are known

    def write(self, origins: Iterable[Origin], answers: Iterable[Any]) -> None:
        """Writes the rows of some examples."""
        for origin, answer in zip(origins, answers, strict=True):
            rows = [
                {**origin, **{f"answer_{name}" if name in origin else name: value for name, value in fields.items()}}
                for fields in (rounded(_fields(one)) for one in _flat(answer))
            ]
            if rows and self._names is None:
                self._start(list(rows[0]))
            if self._names is None:
                self._waiting.append(origin)
            for row in rows or [origin]:
                if self._names is not None:
                    self._write([row.get(name, "") for name in self._names])

    def close(self) -> None:
        """Writes what is left, if no example had an answer."""
        if self._names is None and self._waiting:
            self._start(list(self._waiting[0]))

    def _start(self, names: list[str]) -> None:
        self._names = names
        self._write(names)
        for origin in self._waiting:
            self._write([origin.get(name, "") for name in names])

    def _write(self, cells: list[Any]) -> None:
        line = io.StringIO()
        cells = [json.dumps(x, ensure_ascii=False) if isinstance(x, (dict, list)) else x for x in cells]
        csv.writer(line, lineterminator="\n").writerow(cells)
        self._file.write(line.getvalue().encode(errors="replace"))


class ParquetRows:
    """Writes a row for each example, with the columns that `JsonLines` has as keys."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._rows: list[dict[str, Any]] = []

    def write(self, origins: Iterable[Origin], answers: Iterable[Any]) -> None:
        """Keeps the rows of some examples: the types of columns are known only with all of them."""
        self._rows += [_joined(*pair) for pair in zip(origins, answers, strict=True)]

    def close(self) -> None:
        """Writes the file."""
        pyarrow, parquet = import_pyarrow()
        names = dict.fromkeys(name for row in self._rows for name in row)
        table = pyarrow.table({name: [row.get(name) for row in self._rows] for name in names})
        parquet.write_table(table, self._file, write_page_checksum=True)


Writer: TypeAlias = JsonLines | CsvRows | ParquetRows
WRITERS: dict[str, Callable[[BinaryIO], Writer]] = {"jsonl": JsonLines, "csv": CsvRows, "parquet": ParquetRows}


def format_of_answers(to: str | None, output: str | None, format: str | None) -> str:
    """The format to write: the given one, that of the suffix, CSV if that is given for the examples, or JSON lines.

    Args:
        to: the format given for answers.
        output: the file to write; None for the standard output or a folder.
        format: the format given for examples.
    """
    suffix = PurePath(output or "").suffix.lower().removeprefix(".")
    return to or (suffix if suffix in WRITERS else "csv" if format == "csv" else "jsonl")


def _joined(origin: Origin, answer: Any) -> dict[str, Any]:
    """The fields of an answer behind its origin; several answers to one example are a list."""
    fields = {"answers": answer} if isinstance(answer, list) else _fields(answer)
    return {**origin, **rounded(fields)}


def _flat(answer: Any) -> Iterator[Any]:
    """The answers in nested lists of them."""
    for part in answer if isinstance(answer, list) else [answer]:
        if isinstance(part, list):
            yield from _flat(part)
        else:
            yield part


def _fields(answer: Any) -> dict[str, Any]:
    """The fields of one answer: a dict, a text, a number or a vector."""
    if isinstance(answer, Mapping):
        return dict(answer)
    if isinstance(answer, str):
        return {"answer": answer}
    return {"vector" if getattr(answer, "ndim", 0) else "score": answer}
