"""Reader of CoNLL files: one word per line with its labels in columns, and a blank line after each sentence."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence

from lmzoo.common.arguments import near_names
from lmzoo.data.readers.text_files import (
    Source,
    check_label,
    get_name,
    get_suffix,
    read_numbered_lines,
    read_text,
)
from lmzoo.errors import NoExamplesError

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_DOCUMENT = "-DOCSTART-"
_COMMENT = "#"
_Line = tuple[int, list[str]]  # line number and cells


def read_conll(
    path: Source,
    word: int | str | None = None,
    label: int | str | None = None,
    labeled: bool = True,
    labels: Sequence[str] | None = None,
    conllu: bool | None = None,
    encoding: str = "utf-8",
) -> tuple[list[list[str]], list[list[str]] | None]:
    r"""Read words and their labels from the columns of a CoNLL file.

    Columns are separated by tabs in lines that contain tabs, otherwise by spaces. Sentences are separated by blank
    lines and `-DOCSTART-` lines. A line before a sentence is a comment if its first column is "#", such as
    MultiCoNER's `# id ...`, unless it has as many columns as other lines and a label that other words also have. In
    CoNLL-U, all lines that begin with "#" are comments, and the lines of multi-word tokens ("1-2") and empty nodes
    ("8.1") are skipped: the words are the syntactic words.

    Args:
        path: path of a file, or a file object open in binary mode; it may be compressed with gzip or xz.
        word: int or str, column of the words: its index from 0, or from the end if negative; or its name, in CoNLL-U.
            By default FORM in CoNLL-U; in other files the first column, or the second if the first numbers the words
            of each sentence, as in GermEval's files.
        label: int or str, column of the labels, an index or a name like `word`; by default the last column, or UPOS
            in CoNLL-U.
        labeled: bool, whether to read labels; if False, only words are read.
        labels: list of strings, the allowed labels; None to allow any.
        conllu: bool, whether the file is CoNLL-U; by default determined by its suffix.
        encoding: str, encoding of the file.

    Returns:
        `x, y` for `lmzoo.models.TokenClassifier.fit`: for each sentence a list of its words, and a list of
        their labels; `y` is None if `labeled` is False.

    Raises:
        ValueError: If a column does not exist, words and labels are the same column, rows differ in their number of
            cells, the file is empty or in another encoding, or a label is missing or not allowed; the message names the
            file and, where possible, the line.

    Example:

    ```python
    from pathlib import Path
    from lmzoo.data.readers import read_conll

    Path("train.conll").write_text("Ada NNP B-PER\ncame VBD O\n\nHello UH O\n")
    read_conll("train.conll")  # [["Ada", "came"], ["Hello"]], [["B-PER", "O"], ["O"]]
    read_conll("train.conll", label=1)[1]  # [["NNP", "VBD"], ["UH"]]
    ```
    """
    name = get_name(path)
    if conllu is None:
        conllu = get_suffix(path) == ".conllu"
    label = _find_column_index(label, "upos" if conllu else -1, conllu)
    lines = [
        (line_number, _split_cells(line))
        for line_number, line in read_numbered_lines(read_text(path, encoding).split("\n"))
    ]
    num_columns = len(CONLLU) if conllu else _count_columns(lines)
    is_word = _is_conllu_word if conllu else _make_word_test(lines, num_columns, label, labels)
    sentence_rows = _group_rows(lines, is_word, None if conllu else _DOCUMENT)
    if not sentence_rows:
        raise NoExamplesError(f"{name} holds no words.")
    if labeled and word == label:
        raise ValueError(f"{name}: column {label} of {num_columns} holds the words, not labels.")
    for line_number, cells in itertools.chain(*sentence_rows):
        if len(cells) != num_columns:
            raise ValueError(f"{name}, line {line_number} has {len(cells)} columns, other lines have {num_columns}.")
    if word is None and not conllu and num_columns > 1 + labeled and _is_numbered(sentence_rows):
        word = 1
    word = _find_column_index(word, "form" if conllu else 0, conllu)
    for column in {word, label} if labeled else {word}:
        if not -num_columns <= column < num_columns:
            raise ValueError(f"{name} has {num_columns} columns, numbered from 0, and no column {column}.")
    sentences = [[cells[word] for _, cells in sentence] for sentence in sentence_rows]
    if not labeled:
        return sentences, None
    if word % num_columns == label % num_columns:
        raise ValueError(f"{name}: column {label} of {num_columns} holds the words, not labels.")
    for line_number, cells in itertools.chain(*sentence_rows):
        check_label(cells[label], labels, f"{name}, line {line_number}")
    return sentences, [[cells[label] for _, cells in sentence] for sentence in sentence_rows]


def _count_columns(lines: Sequence[_Line]) -> int:
    """Return the number of columns in the first line that is not a comment, else in the first comment.

    Empty lines and lines that begin a document are skipped. Return 0 if no lines remain.
    """
    column_counts = {
        cells[0] == _COMMENT: len(cells) for _, cells in reversed(lines) if cells[0] != _DOCUMENT and any(cells)
    }
    return column_counts.get(False, column_counts.get(True, 0))


def _make_word_test(
    lines: Sequence[_Line], num_columns: int, label: int, labels: Sequence[str] | None
) -> Callable[[list[str], bool], bool]:
    """Return a function that tells whether a line is a word, not a comment.

    The function takes the cells of a line, and whether the line is inside a sentence.

    Args:
        lines: numbered lines of the file.
        num_columns: int, number of columns in the line of a word.
        label: int, index of the label column.
        labels: the allowed labels, or None.
    """
    word_labels = {*(labels or ())}
    if num_columns > 1 and -num_columns <= label < num_columns:  # a single column holds words
        word_labels |= {cells[label] for _, cells in lines if len(cells) == num_columns and cells[0] != _COMMENT}

    def is_word(cells: list[str], in_sentence: bool) -> bool:
        return (
            in_sentence
            or cells[0] != _COMMENT
            or (len(cells) == num_columns and (not word_labels or cells[label] in word_labels))
        )

    return is_word


def _is_conllu_word(cells: list[str], in_sentence: bool) -> bool:
    """Return whether a line of CoNLL-U is a syntactic word."""
    return not (cells[0].startswith(_COMMENT) or re.fullmatch(r"\d+[-.]\d+", cells[0]))


def _group_rows(
    lines: Sequence[_Line], is_word: Callable[[list[str], bool], bool], document_marker: str | None
) -> list[list[_Line]]:
    """Group the lines of words by sentence; a blank line or `document_marker` as first cell ends a sentence."""
    sentences: list[list[_Line]] = []
    in_sentence = False
    for line_number, cells in lines:
        if not "".join(cells).strip() or cells[0] == document_marker:
            in_sentence = False
        elif is_word(cells, in_sentence):
            sentences += [] if in_sentence else [[]]
            sentences[-1].append((line_number, cells))
            in_sentence = True
    return sentences


def _is_numbered(sentence_rows: Sequence[Sequence[_Line]]) -> bool:
    """Return whether the first column numbers the words of each sentence from 1, and a sentence has several words."""
    is_numbered = all(cells[0] == str(i) for sentence in sentence_rows for i, (_, cells) in enumerate(sentence, 1))
    return is_numbered and max(map(len, sentence_rows)) > 1


def _find_column_index(column: int | str | None, default_column: int | str, conllu: bool) -> int:
    """Return the index of a column from its index or name; `default_column` replaces None.

    Raises:
        ValueError: If the column has an unknown name, or a name in a file that is not CoNLL-U.
    """
    column = default_column if column is None else column
    if isinstance(column, int):
        return column
    if not conllu:
        raise ValueError(f"Only the columns of CoNLL-U have names: pass the number of the column, got {column!r}.")
    if column.lower() not in CONLLU:
        raise ValueError(f"CoNLL-U has no column {column!r}.{near_names(column.lower(), CONLLU)}")
    return CONLLU.index(column.lower())


def _split_cells(line: str) -> list[str]:
    """Split a line into cells at tabs, or at spaces if it has no tabs; split lines that begin with "# " at both."""
    # `split()` would be wrong: other kinds of space belong to words, and a cell between tabs may be empty.
    if re.match("# +[^ \t]", line):  # a comment, in which MultiCoNER's files have a tab, or a word among spaces
        return re.split("[ \t]+", line.strip(" \t"))
    return [cell.strip(" ") for cell in line.split("\t")] if "\t" in line else re.split(" +", line.strip(" "))
