"""Keeps the ids of words that were tokenized before: most words of a text are repeated, and are only looked up then."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lmzoo.text.tokenizers.garbage_collection import paused_collection

_MOST = 1 << 22  # characters and ids of words that are kept, about 40 MB
_EACH = 16  # what a word itself counts


class WordIds:
    """The token ids of words, computed when a word is met for the first time.

    Threads may share it. All words are forgotten when they have become too many, and copies begin without any.

    Args:
        encode: returns the token ids of each of several words.

    Example:

    ```python
    from lmzoo.text.tokenizers.word_ids import WordIds

    word_ids = WordIds(lambda words: [[len(word)] for word in words])
    word_ids.of([["a", "good", "film"], ["a"]])  # [[1, 4, 4], [1]]
    ```
    """

    def __init__(self, encode: Callable[[list[str]], Iterable[Iterable[int]]]) -> None:
        self._encode = encode
        self._known: dict[str, tuple[int, ...]] = {}
        self._size = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return WordIds, (self._encode,)

    @paused_collection()
    def of(self, texts: Iterable[Sequence[str]]) -> list[list[int]]:
        """Return the joined ids of each text, which is split into words."""
        texts, known = list(texts), self._known  # another thread may replace it
        if new := list(set().union(*texts).difference(known)):
            ids = [tuple(found) for found in self._encode(new)]
            known.update(zip(new, ids, strict=True))
            self._size += _EACH * len(new) + sum(map(len, new)) + sum(map(len, ids))
            if self._size > _MOST:
                self._known, self._size = {}, 0
        return [list(itertools.chain.from_iterable(map(known.__getitem__, words))) for words in texts]
