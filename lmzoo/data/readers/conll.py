"""CoNLL files: one word per line with its labels in columns, and a blank line after each sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lmzoo.data.readers.text_files import (
    Source,
    check_label,
    lines_of,
    name_of,
    near_names,
    numbered_lines,
    read_text,
    suffix_of,
)
from lmzoo.errors import NoExamplesError

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_DOCUMENT = "-DOCSTART-"


def read_conll(
    path: Source,
    word: int | str | None = None,
    label: int | str | None = None,
    labelled: bool = True,
    labels: Sequence[str] | None = None,
    conllu: bool | None = None,
    encoding: str = "utf-8",
) -> tuple[list[list[str]], list[list[str]] | None]:
    r"""Reads words and their labels from columns.

    Columns are separated by tabs in lines that contain tabs, otherwise by spaces. Sentences are separated by blank
    lines and lines of `-DOCSTART-`. In CoNLL-U, lines that begin with "#" are comments, and the lines of multi-word
    tokens ("1-2") and empty nodes ("8.1") are left out: the words are the syntactic words.

    Args:
        path: a file, or a file object open in binary mode; it may be compressed by gzip or xz.
        word: column of the words, counted from 0, or from the end if negative; in CoNLL-U also its name. By default the
            first column, or FORM in CoNLL-U.
        label: column of the labels, by default the last one, or UPOS in CoNLL-U.
        labelled: False to read words only.
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
    word = _number(word, "form" if conllu else 0, conllu)
    label = _number(label, "upos" if conllu else -1, conllu)
    sentences: list[list[str]] = []
    tags: list[list[str]] = []
    width, inside = len(CONLLU) if conllu else None, False
    for number, line in numbered_lines(lines_of(read_text(path, encoding))):
        where, cells = f"{name}, line {number}", _split(line)
        if not line.strip() or (cells[0] == _DOCUMENT and not conllu):
            inside = False
            continue
        if conllu and (line.startswith("#") or re.fullmatch(r"\d+[-.]\d+", cells[0])):
            continue
        width = width or len(cells)
        if len(cells) != width:
            raise ValueError(f"{where} has {len(cells)} columns, other lines have {width}.")
        for column in {word, label} if labelled else {word}:
            if not -width <= column < width:
                raise ValueError(f"{name} has {width} columns, numbered from 0, and no column {column}.")
        if labelled and word % width == label % width:
            raise ValueError(f"{name}: column {label} of {width} holds the words, not labels.")
        if not inside:
            sentences.append([])
            tags.append([])
            inside = True
        sentences[-1].append(cells[word])
        if labelled:
            check_label(cells[label], labels, where)
            tags[-1].append(cells[label])
    if not sentences:
        raise NoExamplesError(f"{name} holds no words.")
    return sentences, tags if labelled else None


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
