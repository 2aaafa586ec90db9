"""Cache of the token ids of words, since most words occur many times."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lmzoo.text.tokenizers.garbage_collection import pause_collection

_MAX_SIZE = 1 << 22  # total characters and ids of the cached words, about 40 MB
_SIZE_PER_WORD = 16  # overhead of a word, in the same unit


class WordIds:
    """Cache of the token ids of words; a word is encoded when it first occurs.

    Threads may share a cache. A cache that exceeds its maximum size is emptied, and a copy of a cache begins empty.

    Args:
        encode: callable that takes a list of words and returns the token ids of each.

    Example:

    ```python
    from lmzoo.text.tokenizers.word_ids import WordIds

    word_ids = WordIds(lambda words: [[len(word)] for word in words])
    word_ids.of([["a", "good", "film"], ["a"]])  # [[1, 4, 4], [1]]
    ```
    """

    def __init__(self, encode: Callable[[list[str]], Iterable[Iterable[int]]]) -> None:
        self._encode = encode
        self._cache: dict[str, tuple[int, ...]] = {}
        self._size = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return WordIds, (self._encode,)

    @pause_collection()
    def of(self, texts: Iterable[Sequence[str]]) -> list[list[int]]:
        """Return the concatenated token ids of each text, given as a sequence of words."""
        texts = list(texts)
        cache = self._cache  # another thread may replace `self._cache`
        if uncached_words := list(set().union(*texts).difference(cache)):
            new_ids = [tuple(word_ids) for word_ids in self._encode(uncached_words)]
            cache.update(zip(uncached_words, new_ids, strict=True))
            self._size += _SIZE_PER_WORD * len(uncached_words) + sum(map(len, uncached_words)) + sum(map(len, new_ids))
            if self._size > _MAX_SIZE:
                self._cache = {}
                self._size = 0
        return [list(itertools.chain.from_iterable(map(cache.__getitem__, words))) for words in texts]
