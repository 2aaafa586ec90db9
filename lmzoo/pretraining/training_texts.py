"""The documents that a run learns from, and those that are held out."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmzoo.data.corpora.documents import read_documents, split_documents, text_files
from lmzoo.data.corpora.tokenized_documents import check_documents
from lmzoo.text.word_splitting import words_of

_HELD_OUT = 100  # one document of so many is evaluated on
_HEAD = 1 << 16  # bytes of a file that are compared, beside its name and size


class Text:
    """Documents out of files, or given as they are; they can be gone through again and again.

    Args:
        source: files, folders or patterns, see `lmzoo.data.corpora.read_documents`; or documents, each a list of
            sentences.
        field: the key of the text in JSON lines.
        split: whether lines are split into sentences.

    Raises:
        TypeError: for what can be gone through only once, or not at all.
    """

    def __init__(self, source: Any, field: str = "text", split: bool = True) -> None:
        if isinstance(source, Iterator):
            raise TypeError(
                f"Text is read several times, which a {type(source).__name__} does not allow: pass a list, or an "
                "object whose `__iter__` begins anew."
            )
        listed = [source] if isinstance(source, (str, Path)) else source
        check_documents(listed)
        self.in_files = isinstance(next(iter(listed), None), (str, Path))
        self._source, self._field, self._split = listed, field, split

    def __iter__(self) -> Iterator[list[str]]:
        """Documents as lists of sentences."""
        if self.in_files:
            return read_documents(self._source, self._field, self._split)
        return split_documents(self._source, self._field, self._split)

    def files(self) -> list[Path]:
        """The files, none where documents were given."""
        return [path for source in self._source for path in text_files(source)] if self.in_files else []

    def identity(self) -> dict[str, Any]:
        """What tells the text from others: of files names, sizes and beginnings, else all documents.

        Raises:
            FileNotFoundError: if there is no such file.
        """
        digest = hashlib.sha256()
        found: dict[str, Any] = {}
        if self.in_files:
            paths, size = self.files(), 0
            for path in paths:
                with path.open("rb") as file:
                    digest.update(f"{path.name}\n{path.stat().st_size}\n".encode() + file.read(_HEAD))
                size += path.stat().st_size
            found = {"files": len(paths), "bytes": size}
        else:
            for document in self:
                digest.update("\n".join([*document, "\n"]).encode())
        return {**found, "sha256": digest.hexdigest()[:16]}


class TrainingDocuments:
    """The documents of a text, or some of them.

    Args:
        text: where they come from.
        every: int, one document of so many is held out; None if all are taken.
        held: whether to take those that are held out, or the others.
    """

    def __init__(self, text: Text, every: int | None = None, held: bool = False) -> None:
        self.text, self.every, self.held = text, every, held

    def __iter__(self) -> Iterator[list[str]]:
        """Documents as lists of sentences."""
        for i, document in enumerate(self.text):
            if self.every is None or (i % self.every == self.every - 1) == self.held:
                yield document


def divided(corpus: Text, validation: Text | None) -> tuple[TrainingDocuments, TrainingDocuments]:
    """Documents to train on and documents to evaluate on, with a look at the first ones of both.

    Without `validation` one document of a hundred is held out; of fewer than a hundred it is the last one.

    Args:
        corpus: text to train on.
        validation: text to evaluate on, or None for a part of the corpus.

    Raises:
        ValueError: if there are no words on one of both sides, or a file is on both.
    """
    if validation is not None:
        known = {path.resolve() for path in corpus.files()}
        if both := [str(path) for path in validation.files() if path.resolve() in known]:
            raise ValueError(
                f"{', '.join(both)}: text to train on and to evaluate on (`validation`); it can be one only."
            )
        train, held = TrainingDocuments(corpus), TrainingDocuments(validation)
    else:
        count = sum(1 for _ in itertools.islice(corpus, _HELD_OUT))
        if count == 1:
            raise ValueError(
                "The corpus holds 1 document, too few to hold any out: give text to evaluate on (`validation`), or put "
                "blank lines between documents."
            )
        train, held = (TrainingDocuments(corpus, count, side) for side in (False, True))
    for documents, name in ((train, "corpus"), (held, "text to evaluate on (`validation`)")):
        if not any(words_of(sentence) for document in documents for sentence in document):
            raise ValueError(f"There are no words in the {name}.")
    return train, held
