"""Reads the examples of the commands: a file, and the options that describe it, become `x` and `y`."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from lmzoo.data.readers import TableStream, read_choices, read_conll, read_squad, read_table
from lmzoo.data.readers.tables import FORMATS, label_parts, open_table, table_format
from lmzoo.data.readers.text_files import Source, name_of, suffix_of

WORDS = ("conll", "conllu", "iob", "bio")  # suffixes of files with one word per line
_WITH_LABEL = re.compile(r"\S\s+(O|[BIES]-\S+)\s*$")

# Examples as tasks take them: a list or, for pairs of texts, a tuple of two.
Inputs: TypeAlias = list[Any] | tuple[list[Any], ...]
# A label for each example, of a type that depends on the task; None where there are no labels.
Labels: TypeAlias = list[Any] | None
Examples: TypeAlias = tuple[Inputs, Labels]
# The labels that there may be; None for any.
Allowed: TypeAlias = Sequence[str] | None


@dataclass(frozen=True)
class Columns:
    """Options of the command line: which columns hold the examples, and how the file is written."""

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    choices: str | None = None
    format: str | None = None
    header: bool = True
    encoding: str = "utf-8"
    scale: float = 1.0


# Its last two arguments: whether to read labels, and which are allowed.
Reader: TypeAlias = Callable[[Source, Columns, bool, Allowed], Examples]


@dataclass(frozen=True)
class Stream:
    """The texts and labels in several files, which are read when they are needed.

    Attributes:
        table: the files.
        text: the column of the texts, or two for pairs.
        label: the column of the labels, or None.
    """

    table: TableStream
    text: Any
    label: int | str | None

    @classmethod
    def of(
        cls,
        source: Path,
        columns: Columns,
        text: Any,
        label: int | str | None,
        label_type: Callable[[str], object],
        separator: str | None,
    ) -> Stream:
        """Opens files; the other arguments are those of `read_texts`."""

        def convert(cell: Any) -> Any:
            if separator is None and (cell in (None, "") or isinstance(cell, (dict, list))):
                raise ValueError("no label, or several")
            parts = [cell] if separator is None else label_parts(cell, separator)
            found = [label_type(part if isinstance(part, str) else json.dumps(part)) for part in parts]
            return found[0] if separator is None else found

        convert.__name__ = "label"
        options = (columns.format, columns.header, columns.encoding)
        names = TableStream(source, *options).column_names

        def named(column: int | str) -> Any:
            if isinstance(column, str):
                return column
            if not -len(names) <= column < len(names):
                raise ValueError(f"{source} has {len(names)} columns, numbered from 0, and no column {column}.")
            return names[column]

        text = tuple(map(named, text)) if isinstance(text, tuple) else named(text)
        label = None if label is None else named(label)
        types = {} if label is None else {label: convert}
        return cls(TableStream(source, *options, types), text, label)

    def __len__(self) -> int:
        """Number of examples."""
        return self.table.count_rows()

    def labels(self) -> Iterator[Any]:
        """Iterates over the labels."""
        return (row[self.label] for row in self.table.select_columns([self.label]))  # type: ignore[index, list-item]

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `fit` and `evaluate`."""
        return {"x": self.table, "text": self.text, **({} if self.label is None else {"label": self.label})}


def is_several(source: Path) -> bool:
    """Whether a path stands for several files: a folder or a pattern."""
    source = source.expanduser()
    return source.is_dir() or (glob.has_magic(str(source)) and not source.exists())


def read_texts(
    source: Source,
    columns: Columns,
    labelled: bool,
    labels: Allowed = None,
    label_type: Callable[[str], object] = str,
    separator: str | None = None,
) -> Examples:
    """Reads texts or pairs, and names of classes; those of several files only when they are needed."""
    text, pair = _column(columns.text or "text"), columns.pair and _column(columns.pair)
    label = _column(columns.label or "label") if labelled else None
    if isinstance(source, Path) and is_several(source):
        stream = Stream.of(source, columns, text if pair is None else (text, pair), label, label_type, separator)
        return stream, None if label is None else stream.labels()  # type: ignore[return-value]
    return read_table(
        source,
        text,
        pair,
        label,
        label_type,
        labels,
        columns.header,
        columns.format,
        columns.encoding,
        separator,
    )


def read_label_sets(source: Source, columns: Columns, labelled: bool, labels: Allowed = None) -> Examples:
    """Reads texts or pairs, and for each a list of names of classes."""
    return read_texts(source, columns, labelled, labels, separator="|")


def read_numbers(source: Source, columns: Columns, labelled: bool, labels: Allowed = None) -> Examples:
    """Reads texts or pairs, and numbers."""
    if not columns.scale > 0:
        raise ValueError(f"--scale must be above 0, got {columns.scale:g}.")

    def number(label: str) -> float:  # errors call labels by its name
        return float(label) / columns.scale

    return read_texts(source, columns, labelled, label_type=number)


def read_pairs(source: Source, columns: Columns, labelled: bool, labels: Allowed = None) -> Examples:
    """Reads pairs and, if a column of labels is named, numbers; without labels also single texts."""
    if labelled and columns.pair is None:
        raise ValueError("This task learns from pairs: name the column of the second texts (--pair).")
    return read_numbers(source, columns, labelled and columns.label is not None)


def read_translations(source: Source, columns: Columns, labelled: bool, labels: Allowed = None) -> Examples:
    """Reads sources and their translations; without labels also sources alone."""
    if not labelled:
        return read_texts(source, replace(columns, pair=None), labelled=False)
    if columns.pair is None:
        raise ValueError("Translation is learned from pairs: name the column of the translations (--pair).")
    return read_texts(source, columns, labelled=False)


def read_texts_alone(source: Source, columns: Columns, labelled: bool, labels: Allowed = None) -> Examples:
    """Reads texts without labels."""
    return read_texts(source, columns, labelled=False)


def read_words(source: Source, columns: Columns, labelled: bool, labels: Allowed = None) -> Examples:
    """Reads lists of words and their labels; without labels also texts, from files of other formats."""
    format = columns.format or suffix_of(source).lstrip(".")
    if not labelled and format not in WORDS:
        texts, _ = read_texts(source, columns, labelled)
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
    word, label = (column and _column(column) for column in (columns.text, columns.label))
    return read_conll(source, word, label, labelled, labels, format == "conllu", columns.encoding)


def read_questions(source: Source, columns: Columns, labelled: bool, labels: Allowed = None) -> Examples:
    """Reads questions, contexts and answers; without answers also from tables."""
    if labelled or (columns.format or suffix_of(source)) in ("squad", ".json"):
        return read_squad(source, labelled)
    columns = replace(columns, text=columns.text or "question", pair=columns.pair or "context")
    return read_texts(source, columns, labelled)


def read_prompts(source: Source, columns: Columns, labelled: bool, labels: Allowed = None) -> Examples:
    """Reads prompts, their choices, and the index of each right choice."""
    names = [_column(name) for name in (columns.choices or "ending0,ending1,ending2,ending3").split(",")]
    start = columns.pair or (None if columns.choices else "sent2")
    return read_choices(
        source,
        _column(columns.text or "sent1"),
        start and _column(start),
        names[0] if len(names) == 1 else names,
        _column(columns.label or "label") if labelled else None,
        columns.header,
        columns.format,
        columns.encoding,
    )


def read_kept(source: Source, columns: Columns, ids: str | None) -> dict[str, list[Any]]:
    """Reads the cells that answers repeat: `id`, if its column is named, and `actual`, the labels if there are any.

    Labels are in the column that is named or in "label"; they are repeated as they are, not checked.

    Raises:
        ValueError: if a column is named that does not exist, or the file is not a table.
    """
    if table_format(source, columns.format) not in FORMATS:
        if ids or columns.label:
            raise ValueError(f"--id and --label name columns of tables, which {name_of(source)} is not.")
        return {}
    table = open_table(source, columns.header, columns.format, columns.encoding)
    named = {"id": ids, "actual": columns.label or ("label" if table.has("label") else None)}
    return {name: table.column(_column(column)) for name, column in named.items() if column is not None}


def read_columns(source: Source, columns: Columns, names: Sequence[str]) -> dict[str, list[Any]]:
    """Reads the cells of columns, by name.

    Raises:
        ValueError: for a column that does not exist, or if the file is not a table.
    """
    if names and table_format(source, columns.format) not in FORMATS:
        raise ValueError(f"--by names columns of tables, which {name_of(source)} is not.")
    table = open_table(source, columns.header, columns.format, columns.encoding) if names else None
    return {name: table.column(_column(name)) for name in names} if table else {}


def _column(name: str) -> int | str:
    return int(name) if re.fullmatch(r"-?\d+", name) else name
