"""The documents to train on, and those that are held out."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmzoo.data.corpora.documents import read_documents, split_documents, text_files
from lmzoo.data.corpora.tokenized_documents import check_documents
from lmzoo.files.urls import absolute, open_to_read, size_of
from lmzoo.text.word_splitting import words_of

_HELD_OUT = 100  # one of so many documents is held out
_HEAD = 1 << 16  # bytes at the beginning of a file that are compared, in addition to its name and size


class TextSource:
    """Documents in files or in memory, which can be iterated over several times.

    `source` is files, folders or patterns, or documents, each a list of sentences; for `field` and `split` see
    `lmzoo.data.corpora.read_documents`.

    Raises:
        TypeError: for a source that can be iterated over only once, or not at all.
    """

    def __init__(self, source: Any, field: str = "text", split: bool = True) -> None:
        if isinstance(source, Iterator):
            raise TypeError(
                f"Text is read several times, which a {type(source).__name__} does not allow: pass a list, or an "
                "object whose `__iter__` starts from the beginning."
            )
        listed = [source] if isinstance(source, (str, Path)) else source
        check_documents(listed)
        self.in_files = isinstance(next(iter(listed), None), (str, Path))
        self._source, self._field, self._split = listed, field, split

    def __iter__(self) -> Iterator[list[str]]:
        """The documents as lists of sentences."""
        if self.in_files:
            return read_documents(self._source, self._field, self._split)
        return split_documents(self._source, self._field, self._split)

    def files(self) -> list[str]:
        """The files; none if the documents are in memory."""
        return [path for source in self._source for path in text_files(source)] if self.in_files else []

    def identity(self) -> dict[str, object]:
        """Identifies the text: by the names, sizes and beginnings of files, or by all documents in memory.

        Raises:
            FileNotFoundError: if a file does not exist.
        """
        digest = hashlib.sha256()
        found: dict[str, object] = {}
        if self.in_files:
            paths, size = self.files(), 0
            for path in paths:
                with open_to_read(path) as file:
                    digest.update(f"{os.path.basename(path)}\n{size_of(path)}\n".encode() + file.read(_HEAD))
                size += size_of(path)
            found = {"files": len(paths), "bytes": size}
        else:
            for document in self:
                digest.update("\n".join([*document, "\n"]).encode())
        return {**found, "sha256": digest.hexdigest()[:16]}


class TrainingDocuments:
    """The documents of a text, or the one of `every` that is held out (`held`), or the others."""

    def __init__(self, text: TextSource, every: int | None = None, held: bool = False) -> None:
        self.text, self.every, self.held = text, every, held

    def __iter__(self) -> Iterator[list[str]]:
        """The documents as lists of sentences."""
        for i, document in enumerate(self.text):
            if self.every is None or (i % self.every == self.every - 1) == self.held:
                yield document


def split_held_out(corpus: TextSource, validation: TextSource | None) -> tuple[TrainingDocuments, TrainingDocuments]:
    """Returns the documents to train on and those to evaluate on.

    Without `validation`, one of every hundred documents is held out, or the last one if there are fewer than a hundred.

    Raises:
        ValueError: if one of both has no words, or both have a file in common.
    """
    if validation is not None:
        known = set(map(absolute, corpus.files()))
        if both := [path for path in validation.files() if absolute(path) in known]:
            raise ValueError(f"{', '.join(both)}: text to train on and to evaluate on (`validation`) must differ.")
        train, held = TrainingDocuments(corpus), TrainingDocuments(validation)
    else:
        count = sum(1 for _ in itertools.islice(corpus, _HELD_OUT))
        if count == 1:
            raise ValueError(
                "The corpus holds 1 document, too few to hold any out: pass text to evaluate on (`validation`), or put "
                "blank lines between documents."
            )
        train, held = (TrainingDocuments(corpus, count, side) for side in (False, True))
    for documents, name in ((train, "corpus"), (held, "text to evaluate on (`validation`)")):
        if not any(words_of(sentence) for document in documents for sentence in document):
            raise ValueError(f"There are no words in the {name}.")
    return train, held
