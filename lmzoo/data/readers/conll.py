"""CoNLL's columns: a word to a line, with its labels, and a blank line after each sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lmzoo.data.readers.text_files import Source, check_label, name_of, near_names, numbered_lines, read_text, suffix_of

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
    r"""Words and their labels from columns.

    Columns are separated by tabs in a line that has any, otherwise by spaces. Blank lines, and lines of `-DOCSTART-`,
    stand between sentences. In CoNLL-U, lines that begin with "#" are comments, and the lines of multi-word tokens
    ("1-2") and of empty nodes ("8.1") are left out: the words are the syntactic ones.

    Args:
        path: a file, or an open one in binary mode; it may be compressed by gzip or xz.
        word: number of the words' column, from 0 on, negative ones from the end; in CoNLL-U also its name. By default
            the first one; FORM in CoNLL-U.
        label: that of the labels. By default the last one; UPOS in CoNLL-U.
        labelled: False for words alone.
        labels: those that there may be; None for any.
        conllu: whether the file is CoNLL-U; by default its suffix says it.
        encoding: of the file.

    Returns:
        `x, y` as `lmzoo.models.TokenClassifier.fit` takes them: for each sentence a list of its words, and a list of
        their labels; None for `y` without labels.

    Raises:
        ValueError: naming the file, and the line where there is one: a column that is not there, a row of another
            number of cells than the first, bytes in another encoding, a label that is missing or none of `labels`, an
            empty file.

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
    for number, line in numbered_lines(read_text(path, encoding)):
        where, cells = f"{name}, line {number}", _split(line)
        if not line.strip() or (cells[0] == _DOCUMENT and not conllu):
            inside = False
            continue
        if conllu and (line.startswith("#") or re.fullmatch(r"\d+[-.]\d+", cells[0])):
            continue
        width = width or len(cells)
        if len(cells) != width:
            raise ValueError(f"{where} has {len(cells)} columns, others have {width}.")
        for column in {word, label} if labelled else {word}:
            if not -width <= column < width:
                raise ValueError(f"{name} has {width} columns, numbered from 0: {column} is none of them.")
        if labelled and word % width == label % width:
            raise ValueError(f"{name}: column {label} of {width} is that of the words, and has no labels.")
        if not inside:
            sentences.append([])
            tags.append([])
            inside = True
        sentences[-1].append(cells[word])
        if labelled:
            check_label(cells[label], labels, where)
            tags[-1].append(cells[label])
    if not sentences:
        raise ValueError(f"{name} holds no words.")
    return sentences, tags if labelled else None


def _number(column: int | str | None, default: int | str, conllu: bool) -> int:
    column = default if column is None else column
    if isinstance(column, int):
        return column
    if not conllu:
        raise ValueError(f"The columns of CoNLL's files have no names but in CoNLL-U: number them, got {column!r}.")
    if column.lower() not in CONLLU:
        raise ValueError(f"CoNLL-U has no column {column!r}.{near_names(column.lower(), CONLLU)}")
    return CONLLU.index(column.lower())


def _split(line: str) -> list[str]:
    # Not `split()`: other kinds of space are parts of words, and a cell between tabs may be empty.
    return [cell.strip(" ") for cell in line.split("\t")] if "\t" in line else re.split(" +", line.strip(" "))
