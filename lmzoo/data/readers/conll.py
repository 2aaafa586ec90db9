"""CoNLL files: one word per line with its labels in columns, and a blank line after each sentence."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence

from lmzoo.common.arguments import near_names
from lmzoo.data.readers.text_files import (
    Source,
    check_label,
    name_of,
    numbered_lines,
    read_text,
    suffix_of,
)
from lmzoo.errors import NoExamplesError

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_DOCUMENT = "-DOCSTART-"
_COMMENT = "#"
_Line = tuple[int, list[str]]  # its number and its cells


def read_conll(
    path: Source,
    word: int | str | None = None,
    label: int | str | None = None,
    labeled: bool = True,
    labels: Sequence[str] | None = None,
    conllu: bool | None = None,
    encoding: str = "utf-8",
) -> tuple[list[list[str]], list[list[str]] | None]:
    r"""Read words and their labels from columns.

    Columns are separated by tabs in lines that contain tabs, otherwise by spaces. Sentences are separated by blank
    lines and lines of `-DOCSTART-`. Lines before a sentence whose first column is "#" are comments, as MultiCoNER's
    `# id ...`, unless they are words: of as many columns as other lines, and with a label that also other words have.
    In CoNLL-U, all lines that begin with "#" are comments, and the lines of multi-word tokens ("1-2") and empty nodes
    ("8.1") are left out: the words are the syntactic words.

    Args:
        path: a file, or a file object open in binary mode; it may be compressed by gzip or xz.
        word: column of the words, counted from 0, or from the end if negative; in CoNLL-U also its name. By default the
            first column, the second one if the first one numbers the words of each sentence, as in GermEval's files, or
            FORM in CoNLL-U.
        label: column of the labels, by default the last one, or UPOS in CoNLL-U.
        labeled: False to read words only.
        labels: the allowed labels; None to allow any.
        conllu: whether the file is CoNLL-U; by default decided by its suffix.
        encoding: encoding of the file.

    Returns:
        `x, y` as `lmzoo.models.TokenClassifier.fit` takes them: for each sentence a list of its words, and a list of
        their labels; `y` is None without labels.

    Raises:
        ValueError: naming the file, and the line if there is one: for a column that does not exist, a row with another
            number of cells than the first, another encoding, a label that is missing or not allowed, or an empty file.

    Example:

    ```python
    from pathlib import Path
    from lmzoo.data.readers import read_conll

    Path("train.conll").write_text("Ada NNP B-PER\ncame VBD O\n\nHello UH O\n")
    read_conll("train.conll")  # [["Ada", "came"], ["Hello"]], [["B-PER", "O"], ["O"]]
    read_conll("train.conll", label=1)[1]  # [["NNP", "VBD"], ["UH"]]
    ```
    """
    name = name_of(path)
    if conllu is None:
        conllu = suffix_of(path) == ".conllu"
    label = _number(label, "upos" if conllu else -1, conllu)
    lines = [(number, _split(line)) for number, line in numbered_lines(read_text(path, encoding).split("\n"))]
    width = len(CONLLU) if conllu else _count_columns(lines)
    keep = _is_conllu_word if conllu else _word_test(lines, width, label, labels)
    rows = _group_rows(lines, keep, None if conllu else _DOCUMENT)
    if not rows:
        raise NoExamplesError(f"{name} holds no words.")
    if labeled and word == label:
        raise ValueError(f"{name}: column {label} of {width} holds the words, not labels.")
    for number, cells in itertools.chain(*rows):
        if len(cells) != width:
            raise ValueError(f"{name}, line {number} has {len(cells)} columns, other lines have {width}.")
    if word is None and not conllu and width > 1 + labeled and _is_numbered(rows):
        word = 1
    word = _number(word, "form" if conllu else 0, conllu)
    for column in {word, label} if labeled else {word}:
        if not -width <= column < width:
            raise ValueError(f"{name} has {width} columns, numbered from 0, and no column {column}.")
    sentences = [[cells[word] for _, cells in of_sentence] for of_sentence in rows]
    if not labeled:
        return sentences, None
    if word % width == label % width:
        raise ValueError(f"{name}: column {label} of {width} holds the words, not labels.")
    for number, cells in itertools.chain(*rows):
        check_label(cells[label], labels, f"{name}, line {number}")
    return sentences, [[cells[label] for _, cells in of_sentence] for of_sentence in rows]


def _count_columns(lines: Sequence[_Line]) -> int:
    """Return the number of columns of the first line that may hold a word, preferably one that is no comment."""
    counts = {cells[0] == _COMMENT: len(cells) for _, cells in reversed(lines) if cells[0] != _DOCUMENT and any(cells)}
    return counts.get(False, counts.get(True, 0))


def _word_test(
    lines: Sequence[_Line], width: int, label: int, labels: Sequence[str] | None
) -> Callable[[list[str], bool], bool]:
    """Return a function that tells a word from a comment, by its cells and whether it is within a sentence."""
    known = {*(labels or ())}
    if width > 1 and -width <= label < width:  # in a single column there are words
        known |= {cells[label] for _, cells in lines if len(cells) == width and cells[0] != _COMMENT}

    def is_word(cells: list[str], inside: bool) -> bool:
        return inside or cells[0] != _COMMENT or (len(cells) == width and (not known or cells[label] in known))

    return is_word


def _is_conllu_word(cells: list[str], inside: bool) -> bool:
    """Return whether a line of CoNLL-U is a syntactic word."""
    return not (cells[0].startswith(_COMMENT) or re.fullmatch(r"\d+[-.]\d+", cells[0]))


def _group_rows(
    lines: Sequence[_Line], is_word: Callable[[list[str], bool], bool], document: str | None
) -> list[list[_Line]]:
    """Return the lines of the words of each sentence; blank lines and those of `document` are between sentences."""
    rows: list[list[_Line]] = []
    inside = False
    for number, cells in lines:
        if not "".join(cells).strip() or cells[0] == document:
            inside = False
        elif is_word(cells, inside):
            rows += [] if inside else [[]]
            rows[-1].append((number, cells))
            inside = True
    return rows


def _is_numbered(rows: Sequence[Sequence[_Line]]) -> bool:
    """Return whether the first column counts the words of each sentence from 1, in sentences of several words."""
    counts = all(cells[0] == str(i) for of_sentence in rows for i, (_, cells) in enumerate(of_sentence, 1))
    return counts and max(map(len, rows)) > 1


def _number(column: int | str | None, default: int | str, conllu: bool) -> int:
    column = default if column is None else column
    if isinstance(column, int):
        return column
    if not conllu:
        raise ValueError(f"Only the columns of CoNLL-U have names: pass the number of the column, got {column!r}.")
    if column.lower() not in CONLLU:
        raise ValueError(f"CoNLL-U has no column {column!r}.{near_names(column.lower(), CONLLU)}")
    return CONLLU.index(column.lower())


def _split(line: str) -> list[str]:
    # Not `split()`: other kinds of space belong to words, and a cell between tabs may be empty.
    return [cell.strip(" ") for cell in line.split("\t")] if "\t" in line else re.split(" +", line.strip(" "))
