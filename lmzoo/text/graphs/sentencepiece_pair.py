"""Marian's tokenizer as TensorFlow ops."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf
import tensorflow_text as tf_text

from lmzoo.text.graphs.tokenizer_registry import graph_tokenizer
from lmzoo.text.tokenizers.sentencepiece_pair import MarianTokenizer

_CUT = b"\xff"  # a byte that UTF-8 does not have


class MarianGraph(tf.Module):
    """See `lmzoo.text.graphs.graph_tokenizer`."""

    def __init__(self, tokenizer: MarianTokenizer) -> None:
        super().__init__()
        tokens, special = tokenizer.vocabulary, tokenizer.special_tokens
        self._unknown = tokenizer.token_to_id(tokenizer.unk_token)
        self._ids = _table(tokens, range(len(tokens)), self._unknown)
        self._languages, self._marks = (
            _table(tokens, map(tokenizer.token_to_id, tokens), -1) for tokens in (tokenizer.languages, special)
        )
        self._code = "^>>[^<>\\pZ\\s]+<<"
        self._special = "(" + "|".join(_escaped(token) for token in sorted(special, key=len, reverse=True)) + ")"
        self._pieces = tf_text.SentencepieceTokenizer(tokenizer.model, out_type=tf.string)

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Return ids, int32 (n, None), of texts, `tf.string` (n,)."""
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        rest = tf.strings.regex_replace(texts, self._code, "")
        length = tf.strings.length(texts) - tf.strings.length(rest)  # (n,)
        code = tf.strings.substr(texts, tf.zeros_like(length), length)
        language = self._languages.lookup(code)  # (n,)
        rest = tf.where(language >= 0, rest, texts)
        cut = tf.strings.regex_replace(rest, self._special, _CUT + b"\\1" + _CUT)
        parts = tf.strings.split(cut, _CUT)  # (n, None)
        mark = self._marks.lookup(parts.values)  # (p,)
        pieces = self._pieces.tokenize(tf.where(mark >= 0, "", parts.values))  # (p, None)
        found = pieces.with_values(self._ids.lookup(pieces.values))
        found = parts.with_values(tf.concat([_at_most_one(mark), found], axis=1)).merge_dims(1, 2)  # (n, None)
        return tf.concat([_at_most_one(language), found], axis=1)


def _at_most_one(ids: tf.Tensor) -> tf.RaggedTensor:
    """Return rows of an id each, int32 (n, None), of int32 (n,); an empty one for -1."""
    given = ids >= 0
    return tf.RaggedTensor.from_row_lengths(tf.boolean_mask(ids, given), tf.cast(given, tf.int64), validate=False)


def _table(keys: Iterable[str], values: Iterable[int], default: int) -> tf.lookup.StaticHashTable:
    # TensorFlow has no empty tables.
    content = tf.lookup.KeyValueTensorInitializer([*keys] or [""], [*values] or [default], tf.string, tf.int32)
    return tf.lookup.StaticHashTable(content, default)


def _escaped(token: str) -> str:
    """Return a pattern of RE2 for a token."""
    return "".join(c if c.isalnum() or ord(c) > 127 else f"\\{c}" for c in token)


graph_tokenizer.register(MarianTokenizer, MarianGraph)
