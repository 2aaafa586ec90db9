"""Reader of SQuAD's JSON files."""

from __future__ import annotations

import json
from typing import Any, TypedDict

from lmzoo.data.readers.text_files import Source, get_name, read_text
from lmzoo.errors import NoExamplesError


class Answer(TypedDict):
    """A labeled answer in a SQuAD file.

    Attributes:
        text: str, text of the answer.
        answer_start: int, offset of the answer's first character in the context.
    """

    text: str
    answer_start: int


def read_squad(
    path: Source, labeled: bool = True, encoding: str = "utf-8"
) -> tuple[tuple[list[str], list[str]], list[list[Answer]] | None]:
    """Read questions, contexts and answers from a file in the format of SQuAD 1.1 or 2.0.

    Args:
        path: path of a file, or a file object open in binary mode; it may be compressed with gzip or xz.
        labeled: bool, whether to read answers; if False, the file need not have any.
        encoding: str, encoding of the file.

    Returns:
        `(questions, contexts), answers`, which `lmzoo.models.QuestionAnswerer` takes as `x` and `y`. The answers of a
        question are a list of `{"text": str, "answer_start": int}`, empty if the question has none. `answers` is None
        if `labeled` is False.

    Raises:
        ValueError: If the file is not in the SQuAD format, holds no questions or is in another encoding.

    Example:

    ```python
    import json
    from pathlib import Path
    from lmzoo.data.readers import read_squad

    question = {"id": "1", "question": "Who met Bob?", "answers": [{"text": "Ada", "answer_start": 0}]}
    paragraph = {"context": "Ada met Bob.", "qas": [question]}
    Path("train.json").write_text(json.dumps({"data": [{"title": "", "paragraphs": [paragraph]}]}))
    (questions, contexts), answers = read_squad("train.json")
    ```
    """
    text = read_text(path, encoding)
    name = get_name(path)
    try:
        articles = json.loads(text)["data"]
        rows: list[Any] = [
            (entry["question"], paragraph["context"], _get_answers(entry) if labeled else None)
            for article in articles
            for paragraph in article["paragraphs"]
            for entry in paragraph["qas"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{name} is not in the format of SQuAD, data[] → paragraphs[] → context, qas[] → question, answers[]: "
            f"{type(error).__name__}: {error}"
        ) from None
    if not rows:
        raise NoExamplesError(f"{name} holds no questions.")
    questions, contexts, answers = ([row[i] for row in rows] for i in range(3))
    return (questions, contexts), answers if labeled else None


def _get_answers(entry: dict[str, Any]) -> list[Answer]:
    """Return the answers of a question, or an empty list if it is marked as impossible."""
    if entry.get("is_impossible"):
        return []
    return [{"text": answer["text"], "answer_start": answer["answer_start"]} for answer in entry["answers"]]
