"""The base class of tokenizers that run on Hugging Face's `tokenizers`, which is written in Rust."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lmzoo.text.tokenizers.added_tokens import AddedToken
from lmzoo.text.tokenizers.garbage_collection import paused_collection
from lmzoo.text.tokenizers.tokenizer import Tokenizer, TokenSpan
from lmzoo.text.tokenizers.word_ids import WordIds
from lmzoo.text.validate_text import clean_texts

if TYPE_CHECKING:
    import tokenizers

_FEW_THREADS = 4  # words are looked up in one thread; more threads than these tokenize long texts sooner
_SHORT = 1 << 16  # characters of texts that are not long


def _encode(backend: tokenizers.Tokenizer, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


def _threads() -> int:
    """Return the number of threads that `tokenizers` uses."""
    limit = os.environ.get("RAYON_NUM_THREADS", "")
    return int(limit) if limit.isdecimal() and int(limit) else os.cpu_count() or 1


class RustTokenizer(Tokenizer):
    """A tokenizer that runs on a `tokenizers.Tokenizer`, which the subclass makes and passes to `_set_backend`."""

    takes_added_tokens = True
    _backend: tokenizers.Tokenizer

    def _set_backend(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._set_text_tokens()

    def _set_text_tokens(self) -> None:
        tokens = sorted(self.text_tokens, key=lambda token: self._ids[token.content])
        self._backend.add_tokens([token.to_library() for token in tokens])
        self._word_ids = WordIds(partial(_encode, self._backend))
        self._has_words = not any(map(self._crosses_words, tokens))

    def _crosses_words(self, token: AddedToken) -> bool:
        """Return whether a token may be found across the end of a word."""
        normalizer = self._backend.normalizer if token.normalized else None
        content = token.content if normalizer is None else normalizer.normalize_str(token.content)
        return any(map(str.isspace, content))

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """The `tokenizers.Tokenizer` that does the work.

        Do not change it, since the ids of words are kept. Change a copy: `Tokenizer.from_str(backend.to_str())`.
        """
        self._require_vocabulary()
        return self._backend

    def tokenize(self, texts: Iterable[str | bytes]) -> list[list[int]]:
        self._require_vocabulary()
        cleaned = clean_texts(texts)
        if self._has_words and (_threads() <= _FEW_THREADS or sum(map(len, cleaned)) < _SHORT):
            return self._word_ids.of(map(self._words_of, cleaned))
        return _encode(self._backend, cleaned)

    def _words_of(self, text: str) -> list[str]:
        """Split a text where the ids of its parts, joined, are its own if no special token holds whitespace."""
        return text.split(" ")

    @paused_collection()
    def tokenize_with_offsets(self, texts: Iterable[str | bytes]) -> list[list[TokenSpan]]:
        """See `Tokenizer.tokenize_with_offsets`.

        Example:

        ```python
        from lmzoo.text import WordPieceTokenizer

        tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "cafe", "!"])
        tokenizer.tokenize_with_offsets(["Un café!"])[0][1]  # TokenSpan(id=5, token='cafe', start=3, end=7)
        ```
        """
        return [
            [TokenSpan(i, self._tokens[i], *span) for i, span in zip(encoding.ids, encoding.offsets, strict=True)]
            for encoding in self.backend.encode_batch(clean_texts(texts), add_special_tokens=False)
        ]

    def tokenize_with_spans(self, texts: Iterable[str | bytes]) -> tuple[list[list[int]], np.ndarray]:
        encodings = self.backend.encode_batch(clean_texts(texts), add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        pairs = itertools.chain.from_iterable(encoding.offsets for encoding in encodings)
        spans = np.fromiter(itertools.chain.from_iterable(pairs), "int64", 2 * sum(map(len, ids)))
        return ids, spans.reshape(-1, 2)
