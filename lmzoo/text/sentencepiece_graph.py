"""SentencePiece as TensorFlow ops."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import tensorflow as tf
import tensorflow_text as tf_text

from lmzoo.text.sentencepiece import SentencePieceTokenizer
from lmzoo.text.sentencepiece_text import QUOTES, character_map

_SIGN = b"\xff"  # in front of a special token: no byte of valid UTF-8
_FIRST = ord("0")


class SentencePieceGraph(tf.Module):
    """See `lmzoo.text.graph.graph_tokenizer`."""

    def __init__(self, tokenizer: SentencePieceTokenizer) -> None:
        super().__init__()
        self._special = tokenizer.special_tokens
        changes = character_map(tokenizer.lowercase, tokenizer.keep_accents).changes()
        self._characters = _Expansion({code: [ord(c) for c in after] for code, after in changes.items()})
        # A part's first token tells which special token stood there: -1 for none, -2 for the first, and so on.
        specials = {-2 - i: [tokenizer.token_to_id(token)] for i, token in enumerate(self._special)}
        self._tokens = _Expansion({-1: [], **specials, **tokenizer.splits})
        self._pieces = tf_text.SentencepieceTokenizer(tokenizer.model, out_type=tf.int32)

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Ids, int32 (n, None), of texts, `tf.string` (n,)."""
        signs, parts = self.parts(texts)
        pieces = self._pieces.tokenize(parts.values)  # (p, None)
        rows = self._tokens(tf.concat([-1 - signs.values[:, None], pieces], axis=1))  # (p, None)
        splits = tf.gather(rows.row_splits, parts.row_splits)
        return tf.RaggedTensor.from_row_splits(rows.values, splits, validate=False)

    def parts(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Texts cut before each special token, and cleaned.

        Args:
            texts: `tf.string` (n,).

        Returns:
            `signs`, int32 (n, None): the special token that a part begins with, counted from 1, or 0 for a row's first
            part; and `parts`, `tf.string` (n, None), what follows it.
        """
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        for quote in QUOTES:
            texts = tf.strings.regex_replace(texts, quote, '"')
        # Each part begins with one character that names its special token.
        texts = tf.strings.join([chr(_FIRST), texts])
        for index, token in enumerate(self._special):
            texts = tf.strings.regex_replace(texts, re.escape(token), _SIGN + bytes([_FIRST + 1 + index]))
        parts = tf.strings.split(texts, _SIGN)  # (n, None)
        codes = tf.strings.unicode_decode(parts.values, "UTF-8")  # (p, None)
        signs = tf.gather(codes.values, codes.row_starts()) - _FIRST  # (p,)
        cleaned = tf.strings.unicode_encode(self._characters(codes[:, 1:]), "UTF-8")  # (p,)
        cleaned = tf.strings.strip(tf.strings.regex_replace(cleaned, " +", " "))
        return parts.with_values(signs), parts.with_values(cleaned)


class _Expansion(tf.Module):
    """Replaces some integers in rows by none, one or several."""

    def __init__(self, changes: Mapping[int, Sequence[int]]) -> None:
        super().__init__()
        keys = sorted(changes)
        self._keys = tf.constant(keys, tf.int32)
        self._values = tf.ragged.constant([changes[key] for key in keys], dtype=tf.int32)

    def __call__(self, rows: tf.RaggedTensor) -> tf.RaggedTensor:
        """Int32 (n, None) to int32 (n, None)."""
        values = rows.values  # (c,)
        place = tf.minimum(tf.searchsorted(self._keys, values), tf.size(self._keys) - 1)  # (c,)
        changes = tf.gather(self._keys, place) == values  # (c,)
        begin = tf.where(changes, tf.gather(self._values.row_starts(), place), 0)  # (c,)
        length = tf.where(changes, tf.gather(self._values.row_lengths(), place), 1)  # (c,)
        index = tf.ragged.range(begin, begin + length).values  # (d,)
        replaced = tf.where(
            tf.repeat(changes, length), tf.gather(self._values.values, index), tf.repeat(values, length)
        )
        ends = tf.concat([[0], tf.cumsum(length)], axis=0)  # (c + 1,)
        return tf.RaggedTensor.from_row_splits(replaced, tf.gather(ends, rows.row_splits), validate=False)
