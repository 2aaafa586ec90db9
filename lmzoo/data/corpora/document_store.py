"""Storage of documents split into words, in a file with random access."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmzoo.common.progress import progress_over
from lmzoo.files.atomic import atomic_file
from lmzoo.text.word_splitting import list_words

_BLOCK_BYTES = 1 << 24  # number of bytes searched at once


class StoredDocuments(Sequence[list[list[str]]]):
    """Documents in a file, each a list of sentences split into words; memory holds only the documents' positions.

    Args:
        path: path of a file written by `store`.
    """

    def __init__(self, path: Path) -> None:
        self._bytes = np.memmap(path, "uint8", "r")
        block_begins = range(0, len(self._bytes), _BLOCK_BYTES)  # comparing all bytes at once would double the memory
        line_ends = [
            block_begin + np.flatnonzero(self._bytes[block_begin : block_begin + _BLOCK_BYTES] == ord("\n"))
            for block_begin in block_begins
        ]
        self._ends = np.concatenate(line_ends)

    @classmethod
    def store(cls, documents: Iterable[list[str]], path: Path, verbose: bool = True) -> StoredDocuments:
        """Split documents into words, write these to a file if it does not exist, and open the file.

        Args:
            documents: iterable of lists of sentences.
            path: path of the file, which holds one document per line; an existing file is only opened.
            verbose: bool, whether to show progress.

        Raises:
            ValueError: If there are no documents.
        """
        if not path.exists():
            with atomic_file(path) as temporary, open(temporary, "w", encoding="ascii") as file:
                with progress_over(documents, "Splitting words", "documents", verbose) as tracked_documents:
                    for document in tracked_documents:
                        file.write(json.dumps([list_words(sentence) for sentence in document]) + "\n")
                if not file.tell():
                    raise ValueError("The text holds no documents.")
        return cls(path)

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        """Return the document at `index`, or a list of documents for a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        index = range(len(self))[index]
        start = self._ends[index - 1] + 1 if index else 0
        return json.loads(self._bytes[start : self._ends[index]].tobytes())
