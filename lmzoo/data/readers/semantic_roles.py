"""Reader of semantic roles in CoNLL-2012's format, as sentences with one marked predicate each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lmzoo.common.arguments import is_integer, require
from lmzoo.data.readers.text_files import Source, get_name, read_numbered_lines, read_text
from lmzoo.errors import NoExamplesError
from lmzoo.text.validate_text import clean_columns

_WORD = 3  # columns: document, part, word number, word, part of speech, parse, lemma, frameset, sense, speaker, name
_FIRST_ROLE = 11  # then one column for each predicate, and coreference
_CELL = re.compile(r"((?:\([^()*]+)?)\*(\)?)")
_PREDICATE = "V"
_Line = tuple[int, list[str]]  # line number and cells


def mark_predicate(words: Sequence[str], index: int, marker: str = "*") -> list[str]:
    """Return the words of a sentence with a marker before the predicate at `index`, as in `read_roles`.

    Raises:
        TypeError: If `words` is a single string, or a word is not a string; the message names its position.
        ValueError: If `index` is not the index of a word.

    Example:

    ```python
    from lmzoo.data.readers import mark_predicate

    mark_predicate(["Ada", "wrote", "programs"], 1)  # ["Ada", "*", "wrote", "programs"]
    ```
    """
    if isinstance(words, (str, bytes)):
        raise TypeError(f"`words` must be a list of strings, got one string. Pass its words: `{words!r:.40}.split()`.")
    (valid_words,) = clean_columns({"words": words})
    is_index = is_integer(index, 0) and index < len(valid_words)
    require(is_index, "index", f"an integer from 0 to {len(valid_words) - 1}", index)
    return [*valid_words[:index], marker, *valid_words[index:]]


def read_roles(path: Source, marker: str = "*", encoding: str = "utf-8") -> tuple[list[list[str]], list[list[str]]]:
    r"""Read sentences with semantic roles from a file in the format of CoNLL-2012.

    A sentence is returned once for each of its predicates, with a marker before the predicate, and labels for the roles
    of that predicate. Sentences without predicates are left out. He et al. (2017) mark the predicate by a feature of
    each word; a marker in the text serves the same purpose in any model that reads words.

    Args:
        path: path of a `_conll` file, or a file object open in binary mode; it may be compressed with gzip or xz.
        marker: str, word inserted before the predicate.
        encoding: str, encoding of the file.

    Returns:
        `x, y` for `lmzoo.models.TokenClassifier.fit`: for each predicate, the words of its sentence and the marker; and
        their BIO labels, such as "B-ARG0", "I-ARG0", "B-V", and "O" for the marker.

    Raises:
        ValueError: If a line has too few columns or a different number than the rest of its sentence, the brackets of
            a role column are not well-formed, a role column has no predicate, or the file has no predicates; the
            message names the file and, where possible, the line.

    Example:

    ```python
    from pathlib import Path
    from lmzoo.data.readers import read_roles

    rows = [("Ada", "-", "(ARG0*)"), ("wrote", "01", "(V*)"), ("programs", "-", "(ARG1*)")]
    lines = [f"doc 0 {i} {word} - * - {frame} - - * {role} -" for i, (word, frame, role) in enumerate(rows)]
    Path("roles.conll").write_text("\n".join(lines))
    x, y = read_roles("roles.conll")
    x  # [["Ada", "*", "wrote", "programs"]]
    y  # [["B-ARG0", "O", "B-V", "B-ARG1"]]
    ```
    """
    name = get_name(path)
    sentences: list[list[str]] = []
    labels: list[list[str]] = []
    for rows in _split_sentences(read_text(path, encoding)):
        _check_columns(name, rows)
        words = [cells[_WORD] for _, cells in rows]
        for column in range(_FIRST_ROLE, len(rows[0][1]) - 1):
            roles = _parse_role_column(name, rows, column)
            if f"B-{_PREDICATE}" not in roles:
                raise ValueError(
                    f"{name}, line {rows[0][0]}: no word of the sentence is the predicate, (V*), in column {column}."
                )
            predicate_index = roles.index(f"B-{_PREDICATE}")
            sentences.append(mark_predicate(words, predicate_index, marker))
            labels.append([*roles[:predicate_index], "O", *roles[predicate_index:]])
    if not sentences:
        raise NoExamplesError(f"{name} holds no predicates with roles.")
    return sentences, labels


def _split_sentences(text: str) -> Iterator[list[_Line]]:
    """Yield the lines of each sentence, split into cells; blank lines and comments ("#") end a sentence."""
    rows: list[_Line] = []
    for line_number, line in read_numbered_lines(text.split("\n")):
        cells = line.split()
        # Only comments begin with "#": a word "#" is in a later column.
        if cells and not cells[0].startswith("#"):
            rows.append((line_number, cells))
        elif rows:
            yield rows
            rows = []
    if rows:
        yield rows


def _check_columns(name: str, rows: Sequence[_Line]) -> None:
    """Check that all lines of a sentence have the same number of columns, and enough of them.

    Raises:
        ValueError: If a line has too few or too many columns; the message names the line.
    """
    num_columns = len(rows[0][1])
    for line_number, cells in rows:
        if len(cells) <= _FIRST_ROLE:
            raise ValueError(
                f"{name}, line {line_number} has {len(cells)} columns; CoNLL-2012's format has at least "
                f"{_FIRST_ROLE + 1}."
            )
        if len(cells) != num_columns:
            raise ValueError(
                f"{name}, line {line_number} has {len(cells)} columns, other lines of the sentence have {num_columns}."
            )


def _parse_role_column(name: str, rows: Sequence[_Line], column: int) -> list[str]:
    """Convert a role column, with brackets such as "(ARG0*", "*" and "*)", to BIO labels.

    Raises:
        ValueError: If the brackets are not well-formed; the message begins with `name`, the name of the file.
    """
    labels = []
    role = ""
    for line_number, cells in rows:
        match = _CELL.fullmatch(cells[column])
        opened_role = match[1][1:] if match else ""
        if match is None or (opened_role and role) or (match[2] and not (opened_role or role)):
            raise ValueError(
                f"{name}, line {line_number}, column {column}: {cells[column]!r} does not continue a list of roles "
                "such as (ARG0*, *, *)."
            )
        role = opened_role or role
        labels.append(f"{'B' if opened_role else 'I'}-{role}" if role else "O")
        if match[2]:
            role = ""
    if role:
        raise ValueError(f"{name}, line {rows[-1][0]}, column {column}: the role {role} has no closing bracket.")
    return labels
