"""Documents as words in a file, of which any can be read at any time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmzoo.files.atomic import atomic_file
from lmzoo.progress import progress_over
from lmzoo.text.word_splitting import words_of

_BLOCK = 1 << 24  # bytes searched at once


class StoredDocuments(Sequence[list[list[str]]]):
    """Documents, each a list of sentences, each a list of words; memory holds where they begin.

    Args:
        path: a file that `store` has written.
    """

    def __init__(self, path: Path) -> None:
        self._bytes = np.memmap(path, "uint8", "r")
        blocks = range(0, len(self._bytes), _BLOCK)  # to compare all at once would take as much memory as the file
        ends = [begin + np.flatnonzero(self._bytes[begin : begin + _BLOCK] == ord("\n")) for begin in blocks]
        self._ends = np.concatenate(ends)

    @classmethod
    def store(cls, documents: Iterable[list[str]], path: Path, verbose: bool = True) -> StoredDocuments:
        """Splits the sentences of documents into words and writes them, if that has not been done.

        Args:
            documents: lists of sentences.
            path: of the file, which holds a document a line.
            verbose: whether to show progress.

        Raises:
            ValueError: if there are none.
        """
        if not path.exists():
            with atomic_file(path) as temporary, open(temporary, "w", encoding="ascii") as file:
                with progress_over(documents, "Splitting words", "documents", verbose) as read:
                    for document in read:
                        file.write(json.dumps([words_of(sentence) for sentence in document]) + "\n")
                if not file.tell():
                    raise ValueError("The text holds no documents.")
        return cls(path)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        """The document at `index`."""
        index = range(len(self))[index]
        start = self._ends[index - 1] + 1 if index else 0
        return json.loads(self._bytes[start : self._ends[index]].tobytes())
