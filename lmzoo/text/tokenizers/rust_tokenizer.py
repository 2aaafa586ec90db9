"""Base class of tokenizers that run on Hugging Face's `tokenizers`, which is written in Rust."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lmzoo.text.tokenizers.added_tokens import AddedToken
from lmzoo.text.tokenizers.garbage_collection import pause_collection
from lmzoo.text.tokenizers.tokenizer import Tokenizer, TokenSpan
from lmzoo.text.tokenizers.word_ids import WordIds
from lmzoo.text.validate_text import clean_texts

if TYPE_CHECKING:
    import tokenizers
    from tokenizers.normalizers import Normalizer

# Only one thread looks up cached words; with more threads than this, `tokenizers` is faster on long texts.
_MAX_CACHED_THREADS = 4
_LONG_TEXTS_CHARACTERS = 1 << 16  # total length from which texts count as long


def _encode_batch(backend: tokenizers.Tokenizer, texts: list[str]) -> list[list[int]]:
    """Return the token ids of each text, without special tokens around them."""
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


def _count_threads() -> int:
    """Return the number of threads that `tokenizers` uses."""
    limit = os.environ.get("RAYON_NUM_THREADS", "")
    return int(limit) if limit.isdecimal() and int(limit) else os.cpu_count() or 1


class RustTokenizer(Tokenizer):
    """Base class of tokenizers that run on a `tokenizers.Tokenizer`, which subclasses pass to `_set_backend`."""

    takes_added_tokens = True
    _backend: tokenizers.Tokenizer

    def _set_backend(self, backend: tokenizers.Tokenizer) -> None:
        """Set the `tokenizers.Tokenizer`, and prepare to match `text_tokens` in texts."""
        self._backend = backend
        self._prepare_text_tokens()

    def _prepare_text_tokens(self) -> None:
        self._separate_equal_forms()
        tokens = sorted(self.text_tokens, key=lambda token: self._ids[token.content])
        self._backend.add_tokens([token.to_library() for token in tokens])
        self._word_ids = WordIds(partial(_encode_batch, self._backend))
        self._can_cache = not any(map(self._crosses_words, tokens))

    def _make_token_normalizer(self) -> Normalizer | None:
        normalizer: Normalizer | None = self._backend.normalizer
        return normalizer

    def _crosses_words(self, token: AddedToken) -> bool:
        """Return whether a token may match across the end of a word."""
        normalizer = self._backend.normalizer if token.normalized else None
        content = token.content if normalizer is None else normalizer.normalize_str(token.content)
        return any(map(str.isspace, content))

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """The `tokenizers.Tokenizer` that splits texts into tokens.

        Do not change it, since the ids of words are cached. Change a copy: `Tokenizer.from_str(backend.to_str())`.
        """
        self._require_vocabulary()
        return self._backend

    def tokenize(self, texts: Iterable[str | bytes]) -> list[list[int]]:
        self._require_vocabulary()
        cleaned_texts = clean_texts(texts)
        if self._can_cache and (
            _count_threads() <= _MAX_CACHED_THREADS or sum(map(len, cleaned_texts)) < _LONG_TEXTS_CHARACTERS
        ):
            return self._word_ids.of(map(self._split_in_cacheable_parts, cleaned_texts))
        return _encode_batch(self._backend, cleaned_texts)

    def _split_in_cacheable_parts(self, text: str) -> list[str]:
        """Split a text into parts whose ids, concatenated, are the ids of the text.

        Only called if no special or added token crosses the ends of words.
        """
        return text.split(" ")

    @pause_collection()
    def tokenize_with_offsets(self, texts: Iterable[str | bytes]) -> list[list[TokenSpan]]:
        """Return the tokens of each text with their offsets in it; see `Tokenizer.tokenize_with_offsets`.

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
        offsets = itertools.chain.from_iterable(encoding.offsets for encoding in encodings)
        spans = np.fromiter(itertools.chain.from_iterable(offsets), "int64", 2 * sum(map(len, ids)))
        return ids, spans.reshape(-1, 2)
