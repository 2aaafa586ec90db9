"""Examples of commands: files, and the options that describe them, become `x` and `y`."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from lmzoo.common.progress import progress_bar
from lmzoo.data.examples import ExampleStream, stream
from lmzoo.data.readers import TableStream, read_choices, read_conll, read_squad, read_table
from lmzoo.data.readers.tables import FORMATS, label_parts, open_table, table_format
from lmzoo.data.readers.text_files import Source, name_of, suffix_of
from lmzoo_cli.options import Columns

WORDS = ("conll", "conllu", "iob", "bio")  # suffixes of files with one word per line
_PART_BATCHES = 16  # between two updates of the progress bar
_WITH_LABEL = re.compile(r"\S\s+(O|[BIES]-\S+)\s*$")

# Examples as tasks take them: a list or, for pairs of texts, a tuple of two.
Inputs: TypeAlias = list[Any] | tuple[list[Any], ...]
# A label for each example, of a type that depends on the task; None where there are no labels.
Labels: TypeAlias = list[Any] | None
Examples: TypeAlias = tuple[Inputs, Labels]
# The labels that there may be; None for any.
Allowed: TypeAlias = Sequence[str] | None


# Its last two arguments: whether to read labels, and which are allowed.
Reader: TypeAlias = Callable[[Source, Columns, bool, Allowed], Examples]


def open_stream(
    source: Path,
    columns: Columns,
    text: Any,
    label: int | str | None,
    label_type: Callable[[str], object],
    separator: str | None,
) -> tuple[ExampleStream, Iterator[Any] | None]:
    """Open several files, and return their examples and labels, which are read when they are needed.

    The other arguments are those of `read_texts`; `text` is a tuple of two columns for pairs.
    """

    def convert(cell: Any) -> Any:
        if separator is None and (cell in (None, "") or isinstance(cell, (dict, list))):
            raise ValueError("no label, or several")
        parts = [cell] if separator is None else label_parts(cell, separator)
        labels = [label_type(part if isinstance(part, str) else json.dumps(part)) for part in parts]
        return labels[0] if separator is None else labels

    convert.__name__ = "label"
    names = TableStream(source, **columns.file_options).column_names

    def name_column(column: int | str) -> Any:
        if isinstance(column, str):
            return column
        if not -len(names) <= column < len(names):
            raise ValueError(f"{source} has {len(names)} columns, numbered from 0, and no column {column}.")
        return names[column]

    text = tuple(map(name_column, text)) if isinstance(text, tuple) else name_column(text)
    if label is None:
        return stream(TableStream(source, **columns.file_options), text), None
    name = name_column(label)
    table = TableStream(source, **columns.file_options, types={name: convert})
    return stream(table, text, name), (row[name] for row in table.select_columns([name]))


def is_several(source: Path) -> bool:
    """Return whether a path stands for several files: a directory or a pattern."""
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
    """Read texts or pairs, and names of classes; several files are read when they are needed."""
    text = _column(columns.text or "text")
    pair = columns.pair and _column(columns.pair)
    label = _column(columns.label or "label") if labeled else None
    if isinstance(source, Path) and is_several(source):
        texts = text if pair is None else (text, pair)
        return open_stream(source, columns, texts, label, label_type, separator)  # type: ignore[return-value]
    return read_table(source, text, pair, label, label_type, labels, separator=separator, **columns.file_options)


def read_label_sets(source: Source, columns: Columns, labeled: bool, labels: Allowed = None) -> Examples:
    """Read texts or pairs, and for each a list of names of classes."""
    return read_texts(source, columns, labeled, labels, separator="|")


def read_numbers(source: Source, columns: Columns, labeled: bool, labels: Allowed = None) -> Examples:
    """Read texts or pairs, and numbers."""
    if not columns.scale > 0:
        raise ValueError(f"--scale must be above 0, got {columns.scale:g}.")

    def number(label: str) -> float:  # errors name labels after this function
        return float(label) / columns.scale

    return read_texts(source, columns, labeled, label_type=number)


def read_pairs(source: Source, columns: Columns, labeled: bool, labels: Allowed = None) -> Examples:
    """Read pairs and, if a column of labels is named, numbers; without labels also single texts."""
    if labeled and columns.pair is None:
        raise ValueError("This task learns from pairs: name the column of the second texts (--pair).")
    return read_numbers(source, columns, labeled and columns.label is not None)


def read_translations(source: Source, columns: Columns, labeled: bool, labels: Allowed = None) -> Examples:
    """Read sources and their translations; without labels only sources."""
    if not labeled:
        return read_texts(source, replace(columns, pair=None), labeled=False)
    if columns.pair is None:
        raise ValueError("Translation is learned from pairs: name the column of the translations (--pair).")
    return read_texts(source, columns, labeled=False)


def read_texts_alone(source: Source, columns: Columns, labeled: bool, labels: Allowed = None) -> Examples:
    """Read texts without labels."""
    return read_texts(source, columns, labeled=False)


def read_words(source: Source, columns: Columns, labeled: bool, labels: Allowed = None) -> Examples:
    """Read lists of words and their labels; without labels also texts, from files of other formats."""
    format = columns.format or suffix_of(source).lstrip(".")
    if not labeled and format not in WORDS:
        texts, _ = read_texts(source, columns, labeled)
        lines = [*filter(str.strip, texts)]
        alike = len(lines) > 1 and len({len(line.split()) for line in lines}) == 1  # as columns are
        if columns.format is None and alike and all(map(_WITH_LABEL.search, lines)):
            raise ValueError(
                "Every line ends in a label, as in files with one word per line: pass --format conll, or txt if the "
                "lines are texts."
            )
        return texts, None
    if columns.format not in (None, *WORDS):
        raise ValueError(f"Words and their labels are read from conll or conllu, not from {columns.format}.")
    word = columns.text and _column(columns.text)
    label = columns.label and _column(columns.label)
    return read_conll(source, word, label, labeled, labels, format == "conllu", columns.encoding)


def read_questions(source: Source, columns: Columns, labeled: bool, labels: Allowed = None) -> Examples:
    """Read questions, contexts and answers; without answers also from tables."""
    if labeled or (columns.format or suffix_of(source)) in ("squad", ".json"):
        return read_squad(source, labeled)
    columns = replace(columns, text=columns.text or "question", pair=columns.pair or "context")
    return read_texts(source, columns, labeled)


def read_prompts(source: Source, columns: Columns, labeled: bool, labels: Allowed = None) -> Examples:
    """Read prompts, their choices, and the index of each right choice."""
    names = [_column(name) for name in (columns.choices or "ending0,ending1,ending2,ending3").split(",")]
    start = columns.pair or (None if columns.choices else "sent2")
    return read_choices(
        source,
        _column(columns.text or "sent1"),
        start and _column(start),
        names[0] if len(names) == 1 else names,
        _column(columns.label or "label") if labeled else None,
        **columns.file_options,
    )


def read_origins(source: Source, columns: Columns, ids: str | None) -> dict[str, list[Any]]:
    """Read the cells that answers repeat: `id` if its column is named, and `actual`, the labels, if there are any.

    Labels are in the column that is named or in "label"; they are repeated as they are, not checked.

    Raises:
        ValueError: if a column is named that does not exist, or the file is not a table.
    """
    if table_format(source, columns.format) not in FORMATS:
        if ids or columns.label:
            raise ValueError(f"--id and --label name columns of tables, which {name_of(source)} is not.")
        return {}
    table = open_table(source, **columns.file_options)
    named = {"id": ids, "actual": columns.label or ("label" if table.has("label") else None)}
    return {name: table.column(_column(column)) for name, column in named.items() if column is not None}


def read_columns(source: Source, columns: Columns, names: Sequence[str]) -> dict[str, list[Any]]:
    """Read the cells of columns, by name.

    Raises:
        ValueError: for a column that does not exist, or if the file is not a table.
    """
    if not names:
        return {}
    if table_format(source, columns.format) not in FORMATS:
        raise ValueError(f"--by names columns of tables, which {name_of(source)} is not.")
    table = open_table(source, **columns.file_options)
    return {name: table.column(_column(name)) for name in names}


def _column(name: str) -> int | str:
    return int(name) if re.fullmatch(r"-?\d+", name) else name


# === Parts of the examples ===


def count_examples(x: Inputs) -> int:
    """Return the number of examples."""
    if isinstance(x, ExampleStream):
        return x.count()
    return len(x[0] if isinstance(x, tuple) else x)


def take(x: Inputs, indices: Sequence[int]) -> Inputs:
    """Return the examples with these indices."""
    return tuple([part[i] for i in indices] for part in x) if isinstance(x, tuple) else [x[i] for i in indices]


@contextmanager
def iterate_in_parts(x: Inputs, batch_size: int, shown: bool = True) -> Iterator[Iterator[Inputs]]:
    """Yield an iterator over the examples, a few batches at a time, and show how many are done."""
    count = count_examples(x)
    size = _PART_BATCHES * batch_size
    with progress_bar("Predicting", count, "examples", shown) as advance:

        def parts() -> Iterator[Inputs]:
            for start in range(0, count, size):
                indices = range(start, min(start + size, count))
                yield take(x, indices)
                advance(len(indices))

        yield parts()
