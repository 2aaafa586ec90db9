"""Reader of multiple-choice tables, such as SWAG's CSV files."""

from __future__ import annotations

from collections.abc import Sequence

from lmzoo.data.readers.tables import Column, open_table
from lmzoo.data.readers.text_files import Source, check_label

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def read_choices(
    path: Source,
    prompt: Column | Sequence[Column] = "sent1",
    start: Column | None = "sent2",
    choices: Column | Sequence[Column] = ("ending0", "ending1", "ending2", "ending3"),
    label: Column | None = "label",
    header: bool = True,
    format: str | None = None,
    encoding: str = "utf-8",
) -> tuple[list[tuple[str, list[str]]], list[int] | None]:
    r"""Read prompts, their choices and the right choice from the columns of a table, by default SWAG's columns.

    Args:
        path: path of a file, or a file object open in binary mode; see `read_table`.
        prompt: column of the prompts, a name or an index from 0, or several columns, which are joined by spaces.
        start: column of the words that every choice begins with, or None.
        choices: columns of the choices, or one column of lists of choices (in JSON lines and Parquet).
        label: column of the right choice, which is an index from 0 or a letter from A. None to read no labels.
        header: bool, whether the first line of CSV and TSV files names the columns.
        format: str, a format of `read_table`; by default determined by the file's suffix.
        encoding: str, encoding of the file.

    Returns:
        `x, y` for `lmzoo.models.MultipleChoice.fit`. `x` is a list of `(prompt, [choice, ...])`. `y` is a list of the
        indices of the right choices, or None if `label` is None.

    Raises:
        ValueError: If the table is invalid (see `read_table`), a label is not one of the choices, or a single
            column of choices holds anything but lists of strings.

    Example:

    ```python
    from pathlib import Path
    from lmzoo.data.readers import read_choices

    Path("swag.csv").write_text(
        "sent1,sent2,ending0,ending1,ending2,ending3,label\n"
        "A man sits down.,He,flies away.,opens a book.,is a tree.,rains.,1\n"
    )
    x, y = read_choices("swag.csv")
    x[0]  # ("A man sits down.", ["He flies away.", "He opens a book.", "He is a tree.", "He rains."])
    y  # [1]
    ```
    """
    table = open_table(path, header, format, encoding)
    prompt_columns = [prompt] if isinstance(prompt, (str, int)) else prompt
    prompts = [" ".join(row) for row in zip(*map(table.texts, prompt_columns), strict=True)]
    if isinstance(choices, (str, int)):
        choice_rows = table.column(choices)
        for i, row in enumerate(choice_rows):
            if not isinstance(row, list) or not all(isinstance(choice, str) for choice in row):
                raise ValueError(f"{table.where(i)}: {choices!r} must be a list of strings, got {row!r:.60}.")
    else:
        choice_rows = [list(row) for row in zip(*map(table.texts, choices), strict=True)]
    if start is not None:
        choice_rows = [
            [f"{beginning} {c}" for c in row] for beginning, row in zip(table.texts(start), choice_rows, strict=True)
        ]
    x = list(zip(prompts, choice_rows, strict=True))
    if label is None:
        return x, None
    return x, [
        _find_choice_index(choice_label, choice_rows[i], table.where(i))
        for i, choice_label in enumerate(table.labels(label))
    ]


def _find_choice_index(label: str, choices: Sequence[str], location: str) -> int:
    """Return the index of the right choice from its label, an index or a letter.

    Raises:
        ValueError: If the label is not one of the choices. The message starts with `location`.
    """
    allowed_labels = [*map(str, range(len(choices))), *_LETTERS[: len(choices)]]
    check_label(label, allowed_labels, location)
    return allowed_labels.index(label) % len(choices)
