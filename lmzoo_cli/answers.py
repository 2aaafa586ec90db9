"""Functions that write the answers of `lmzoo predict`, with their inputs, as JSON lines, CSV or Parquet."""

from __future__ import annotations

import codecs
import csv
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, BinaryIO, TypeAlias

import typer

from lmzoo.data.readers.parquet import import_pyarrow
from lmzoo.files.urls import is_url, whole_file
from lmzoo_cli.examples import Inputs
from lmzoo_cli.output import check_output, round_numbers
from lmzoo_cli.task_kinds import Kind

# Fields written before an answer: the id or the parts of the input, and the label if there is one.
Origin: TypeAlias = dict[str, Any]


def make_origins(kind: Kind, x: Inputs, cells: Mapping[str, Sequence[Any]]) -> list[Origin]:
    """Return the fields to write before each answer: the id or the input, and the label if there is one.

    Args:
        kind: kind of the task.
        x: inputs of the task.
        cells: columns of the file by field name, from `lmzoo_cli.examples.read_origins`; an "id" replaces the inputs.
    """
    columns = dict(cells)
    if "id" not in cells:
        inputs = x if isinstance(x, tuple) else ([_get_first_text(example) for example in x],)
        columns = {**dict(zip(kind.task_class.input_names, inputs, strict=False)), **cells}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _get_first_text(example: Any) -> str:
    """Return an example's text: the text itself, joined words, or the prompt of a multiple-choice example."""
    if isinstance(example, tuple):
        return example[0]
    return example if isinstance(example, str) else " ".join(example)


def write_json_lines(file: BinaryIO, pairs: Iterable[tuple[Origin, Any]]) -> None:
    """Write each `(origin, answer)` pair as a line with a JSON object."""
    for origin, answer in pairs:
        line = json.dumps(_make_row(origin, answer), ensure_ascii=False, default=str)
        file.write(f"{line}\n".encode(errors="replace"))


def write_csv(file: BinaryIO, pairs: Iterable[tuple[Origin, Any]]) -> None:
    """Write a CSV row for each answer, and a row with empty cells for an example without answers.

    The columns are the fields of the origin and of the first answer. A field of an answer is renamed `answer_...` if
    the origin has a field of the same name.
    """
    rows = chain.from_iterable(_iterate_csv_rows(*pair) for pair in pairs)
    first_rows: list[dict[str, Any]] = []  # up to the first row with an answer, which has the most fields
    for row, has_answer in rows:
        first_rows.append(row)
        if has_answer:
            break
    text_file = codecs.getwriter("utf-8")(file, "replace")
    field_names = max(first_rows, key=len, default={})
    writer = csv.DictWriter(text_file, field_names, restval="", extrasaction="ignore", lineterminator="\n")
    if first_rows:
        writer.writeheader()
    writer.writerows(chain(first_rows, (row for row, _ in rows)))


def _iterate_csv_rows(origin: Origin, answer: Any) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield `(cells, has_answer)` for each answer to an example, or once if the example has no answer."""
    answer_rows = [_add_origin(origin, round_numbers(_get_fields(single_answer))) for single_answer in _flatten(answer)]
    for row in answer_rows or [origin]:
        cells = {
            name: json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else value
            for name, value in row.items()
        }
        yield cells, bool(answer_rows)


def write_parquet(file: BinaryIO, pairs: Iterable[tuple[Origin, Any]]) -> None:
    """Write a Parquet file with a row for each example, whose columns are the fields that JSON lines have."""
    _, parquet = import_pyarrow()
    rows = [_make_row(*pair) for pair in pairs]  # the types of columns depend on all rows
    parquet.write_table(make_parquet_table(rows), file, write_page_checksum=True)


def make_parquet_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows, whose fields are the columns, as a pyarrow table.

    Raises:
        ValueError: If the values of a column differ in type.
    """
    pyarrow, _ = import_pyarrow()
    names = dict.fromkeys(name for row in rows for name in row)
    return pyarrow.table({name: _make_parquet_column(name, [row.get(name) for row in rows]) for name in names})


def _make_parquet_column(name: str, values: Sequence[Any]) -> Any:
    """Return the values of a column as a pyarrow array, with "?" in place of lone surrogates.

    Raises:
        ValueError: If the values differ in type.
    """
    pyarrow, _ = import_pyarrow()
    try:
        return pyarrow.array([x.encode(errors="replace").decode() if isinstance(x, str) else x for x in values])
    except pyarrow.ArrowException as error:
        raise ValueError(
            f"The values of {name!r} cannot be a column of Parquet, which has one type: {error}. Write JSON lines "
            "(--to jsonl)."
        ) from None


WRITERS = {"jsonl": write_json_lines, "csv": write_csv, "parquet": write_parquet}


def choose_format(to: str | None, output: str | None, format: str | None) -> str:
    """Choose the format of answers: `to`, else the suffix of `output`, else CSV if `format` is CSV, else JSON lines.

    Args:
        to: format of answers that the user set, or None.
        output: file to write, or None for the standard output or a directory.
        format: format of examples that the user set, or None.
    """
    if to is not None:
        return to
    suffix = PurePath(output or "").suffix.lower().removeprefix(".")
    if suffix in WRITERS:
        return suffix
    return "csv" if format == "csv" else "jsonl"


def check_answers(output: str | None, overwrite: bool) -> None:
    """Check that the file `output` can be written; a URL, or None for standard output, is not checked.

    Raises:
        OSError: If `output` exists and `overwrite` is False, or `output` cannot be written.
    """
    if output is not None and not is_url(output):
        check_output(Path(output), overwrite)


@contextmanager
def open_output(path: str | None) -> Iterator[BinaryIO]:
    """Yield a file that is written atomically, or standard output if `path` is None.

    Raises:
        typer.Exit: If the program that reads standard output has closed the pipe.
    """
    if path is not None:
        with whole_file(path) as file:
            yield file
        return
    try:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # for example `| head`; Python flushes the buffer at exit, which must not fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None


def _make_row(origin: Origin, answer: Any) -> dict[str, Any]:
    """Return the fields of an origin, followed by the fields of its answer or, for a list of answers, by "answers"."""
    fields = {"answers": answer} if isinstance(answer, list) else _get_fields(answer)
    return {**origin, **round_numbers(fields)}


def _add_origin(origin: Origin, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an origin, then an answer's, prefixed with `answer_` if the origin has the same name."""
    return {**origin, **{f"answer_{name}" if name in origin else name: value for name, value in fields.items()}}


def _flatten(answer: Any) -> Iterator[Any]:
    """Iterate over the answers in nested lists, or yield a single answer."""
    for item in answer if isinstance(answer, list) else [answer]:
        if isinstance(item, list):
            yield from _flatten(item)
        else:
            yield item


def _get_fields(answer: Any) -> dict[str, Any]:
    """Return the fields of one answer, which is a dict, a text, a number or a vector."""
    if isinstance(answer, Mapping):
        return dict(answer)
    if isinstance(answer, str):
        return {"answer": answer}
    return {"vector" if getattr(answer, "ndim", 0) else "score": answer}
