"""Readers that turn a command's files and options into examples, `x` and `y`."""

from __future__ import annotations

import glob
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from lmzoo.common.progress import progress_bar
from lmzoo.data.examples import ExampleStream, stream
from lmzoo.data.readers import TableStream, read_choices, read_conll, read_squad, read_table
from lmzoo.data.readers.tables import FORMATS, convert_cell_to_label, label_parts, open_table, table_format
from lmzoo.data.readers.text_files import Source, get_name, get_suffix
from lmzoo.files.urls import NamedBytes, read_source_file
from lmzoo_cli.options import Columns

WORDS = ("conll", "conllu", "iob", "bio")  # suffixes of files with one word per line
_BATCHES_PER_PART = 16  # number of batches between updates of the progress bar
_LABELED_LINE = re.compile(r"\S\s+(O|[BIES]-\S+)\s*$")

# Inputs of tasks: a list of examples or, for pairs of texts, a tuple of two lists.
Inputs: TypeAlias = list[Any] | tuple[list[Any], ...]
# A label for each example, whose type depends on the task, or None without labels.
Labels: TypeAlias = list[Any] | None
Examples: TypeAlias = tuple[Inputs, Labels]
# Allowed labels, or None for any.
Allowed: TypeAlias = Sequence[str] | None


# Function of the source, the columns, whether to read labels, and the allowed labels.
Reader: TypeAlias = Callable[[Source, Columns, bool, Allowed], Examples]


def open_stream(
    source: Path,
    columns: Columns,
    text: Any,
    label: int | str | None,
    label_type: Callable[[str], object],
    separator: str | None,
) -> tuple[ExampleStream, Iterator[Any] | None]:
    """Return a stream of the examples in several files, and an iterator over their labels (None if `label` is None).

    Args:
        source: directory or glob pattern.
        columns: options for the columns and the format.
        text: column of the texts, or a tuple of two columns for pairs.
        label: column of the labels, or None.
        label_type: function that converts the text of a label to the label.
        separator: separator between the labels in a cell, or None for one label per cell.

    Raises:
        ValueError: If a column does not exist.
    """

    def convert(cell: Any) -> Any:
        parts = [cell] if separator is None else label_parts(cell, separator)
        label_texts = [convert_cell_to_label(part) for part in parts]
        if "" in label_texts or any(isinstance(part, (dict, list)) for part in parts):
            raise ValueError("a label is missing or a list")
        labels = [label_type(label_text) for label_text in label_texts]
        return labels[0] if separator is None else labels

    convert.__name__ = "label"  # errors name labels after this function
    column_names = TableStream(source, **columns.file_options).column_names

    def get_column_name(column: int | str) -> Any:
        if isinstance(column, str):
            return column
        if not -len(column_names) <= column < len(column_names):
            raise ValueError(f"{source} has {len(column_names)} columns, numbered from 0, and no column {column}.")
        return column_names[column]

    text = tuple(map(get_column_name, text)) if isinstance(text, tuple) else get_column_name(text)
    if label is None:
        return stream(TableStream(source, **columns.file_options), text), None
    label_column = get_column_name(label)
    table = TableStream(source, **columns.file_options, types={label_column: convert})
    return stream(table, text, label_column), (row[label_column] for row in table.select_columns([label_column]))


def is_several(source: Path) -> bool:
    """Return whether a path stands for several files: a directory or a glob pattern."""
    source = source.expanduser()
    return source.is_dir() or (glob.has_magic(str(source)) and not source.exists())


def read_texts(
    source: Source,
    columns: Columns,
    labeled: bool,
    labels: Allowed = None,
    label_type: Callable[[str], object] = str,
    separator: str | None = None,
) -> Examples:
    """Read texts or pairs of texts and, if `labeled`, their labels.

    Several files are opened as a stream. The model checks the stream's labels; if the allowed `labels` are the names of
    classes without names, "0", "1" and so on, the labels of the stream are integers.
    """
    text_column = _parse_column(columns.text or "text")
    pair_column = columns.pair and _parse_column(columns.pair)
    label_column = _parse_column(columns.label or "label") if labeled else None
    if isinstance(source, Path) and is_several(source):
        text_columns = text_column if pair_column is None else (text_column, pair_column)
        if labels is not None and [*labels] == [str(class_number) for class_number in range(len(labels))]:
            label_type = int
        return open_stream(source, columns, text_columns, label_column, label_type, separator)  # type: ignore[return-value]
    return read_table(
        source, text_column, pair_column, label_column, label_type, labels, separator=separator, **columns.file_options
    )


def read_label_sets(source: Source, columns: Columns, labeled: bool, labels: Allowed = None) -> Examples:
    """Read texts or pairs of texts and, if `labeled`, a list of class names for each."""
    return read_texts(source, columns, labeled, labels, separator="|")


def read_numbers(source: Source, columns: Columns, labeled: bool, labels: Allowed = None) -> Examples:
    """Read texts or pairs of texts and, if `labeled`, numbers as labels, which are divided by `columns.scale`."""
    if not columns.scale > 0:
        raise ValueError(f"--scale must be above 0, got {columns.scale:g}.")

    def number(label: str) -> float:  # errors name labels after this function
        return float(label) / columns.scale

    return read_texts(source, columns, labeled, label_type=number)


def read_pairs(source: Source, columns: Columns, labeled: bool, labels: Allowed = None) -> Examples:
    """Read pairs of texts and, if `labeled` and a label column is set, numbers as labels.

    If not `labeled`, single texts are also accepted.
    """
    if labeled and columns.pair is None:
        raise ValueError("This task learns from pairs: name the column of the second texts (--pair).")
    return read_numbers(source, columns, labeled and columns.label is not None)


def read_translations(source: Source, columns: Columns, labeled: bool, labels: Allowed = None) -> Examples:
    """Read sources and their translations, or only sources if not `labeled`."""
    if not labeled:
        return read_texts(source, replace(columns, pair=None), labeled=False)
    if columns.pair is None:
        raise ValueError("Translation is learned from pairs: name the column of the translations (--pair).")
    return read_texts(source, columns, labeled=False)


def read_texts_alone(source: Source, columns: Columns, labeled: bool, labels: Allowed = None) -> Examples:
    """Read texts, or pairs of texts, without labels."""
    return read_texts(source, columns, labeled=False)


def read_words(source: Source, columns: Columns, labeled: bool, labels: Allowed = None) -> Examples:
    """Read lists of words and, if `labeled`, their labels; if not `labeled`, also accept texts in other formats."""
    format = columns.format or get_suffix(source).lstrip(".")
    if not labeled and format not in WORDS:
        texts, _ = read_texts(source, columns, labeled)
        lines = [*filter(str.strip, texts)]
        # Files with columns have the same number of words in each line.
        have_same_length = len(lines) > 1 and len({len(line.split()) for line in lines}) == 1
        if columns.format is None and have_same_length and all(map(_LABELED_LINE.search, lines)):
            raise ValueError(
                "Every line ends in a label, as in files with one word per line: pass --format conll, or txt if the "
                "lines are texts."
            )
        return texts, None
    if columns.format not in (None, *WORDS):
        raise ValueError(f"Words and their labels are read from conll or conllu, not from {columns.format}.")
    word_column = columns.text and _parse_column(columns.text)
    label_column = columns.label and _parse_column(columns.label)
    return read_conll(source, word_column, label_column, labeled, labels, format == "conllu", columns.encoding)


def read_questions(source: Source, columns: Columns, labeled: bool, labels: Allowed = None) -> Examples:
    """Read questions, contexts and, if `labeled`, answers; if not `labeled`, also accept tables."""
    if labeled or (columns.format or get_suffix(source)) in ("squad", ".json"):
        return read_squad(source, labeled, columns.encoding)
    columns = replace(columns, text=columns.text or "question", pair=columns.pair or "context")
    return read_texts(source, columns, labeled)


def read_prompts(source: Source, columns: Columns, labeled: bool, labels: Allowed = None) -> Examples:
    """Read prompts, their choices and, if `labeled`, the index of each prompt's right choice."""
    choice_columns = [_parse_column(name) for name in (columns.choices or "ending0,ending1,ending2,ending3").split(",")]
    start_column = columns.pair or (None if columns.choices else "sent2")
    return read_choices(
        source,
        _parse_column(columns.text or "sent1"),
        start_column and _parse_column(start_column),
        choice_columns[0] if len(choice_columns) == 1 else choice_columns,
        _parse_column(columns.label or "label") if labeled else None,
        **columns.file_options,
    )


def read_origins(source: Source, columns: Columns, ids: str | None) -> dict[str, list[Any]]:
    """Read the cells to write with answers: "id" if `ids` is set, and "actual" if the table has labels.

    Labels are not checked. Their column is the label option, by default "label".

    Args:
        source: file of the examples.
        columns: options for the columns and the format.
        ids: column of the ids, or None.

    Raises:
        ValueError: If a column does not exist, or a column is set but the file is not a table.
    """
    if table_format(source, columns.format) not in FORMATS:
        if ids or columns.label:
            raise ValueError(f"--id and --label name columns of tables, which {get_name(source)} is not.")
        return {}
    table = open_table(source, **columns.file_options)
    origin_columns = {"id": ids, "actual": columns.label or ("label" if table.has("label") else None)}
    return {name: table.column(_parse_column(column)) for name, column in origin_columns.items() if column is not None}


def read_columns(source: Source, columns: Columns, names: Sequence[str]) -> dict[str, list[Any]]:
    """Read the columns `names` of a table, and return their cells by name.

    Raises:
        ValueError: If a column does not exist, or the file is not a table.
    """
    if not names:
        return {}
    if table_format(source, columns.format) not in FORMATS:
        raise ValueError(f"--by names columns of tables, which {get_name(source)} is not.")
    table = open_table(source, **columns.file_options)
    return {name: table.column(_parse_column(name)) for name in names}


def _parse_column(name: str) -> int | str:
    """Return a column option as an index if it is an integer, else as a name."""
    return int(name) if re.fullmatch(r"-?\d+", name) else name


def open_input(data: str) -> Path | NamedBytes:
    """Return the source of a command's examples: a path, or the content of a URL or, for "-", of standard input."""
    return NamedBytes(sys.stdin.buffer.read(), "<stdin>") if data == "-" else read_source_file(data)


# === Parts of the examples ===


def count_examples(x: Inputs) -> int:
    """Return the number of examples."""
    if isinstance(x, ExampleStream):
        return x.count()
    return len(x[0] if isinstance(x, tuple) else x)


def take(x: Inputs, indices: Sequence[int]) -> Inputs:
    """Return the examples at `indices`."""
    return tuple([column[i] for i in indices] for column in x) if isinstance(x, tuple) else [x[i] for i in indices]


@contextmanager
def iterate_in_parts(x: Inputs, batch_size: int, show_progress: bool = True) -> Iterator[Iterator[Inputs]]:
    """Open an iterator over groups of a few batches of examples, with a progress bar if `show_progress`."""
    num_examples = count_examples(x)
    part_size = _BATCHES_PER_PART * batch_size
    with progress_bar("Predicting", num_examples, "examples", show_progress) as advance:

        def parts() -> Iterator[Inputs]:
            for start in range(0, num_examples, part_size):
                indices = range(start, min(start + part_size, num_examples))
                yield take(x, indices)
                advance(len(indices))

        yield parts()
