"""WordPiece as TensorFlow ops."""

from __future__ import annotations

import re

import tensorflow as tf
import tensorflow_text as tf_text

from lmzoo.text.unicode_map import BLOCKER, NOTHING, RANK_UNIT, character_map
from lmzoo.text.wordpiece import WordPieceTokenizer

_SPACE = 0x20


class WordPieceGraph(tf.Module):
    """See `lmzoo.text.graph.graph_tokenizer`."""

    def __init__(self, tokenizer: WordPieceTokenizer) -> None:
        super().__init__()
        # A special token travels as one control character. Texts cannot bring these: their own are replaced.
        self._signs = {token: chr(1 + index) for index, token in enumerate(tokenizer.special_tokens)}
        self._map = character_map(tokenizer.lowercase, tokenizer.strip_accents, isolated=len(self._signs))
        self._unknown = self._signs[tokenizer.unk_token]
        self._longest = tokenizer.max_characters_per_word
        ids = {token: index for index, token in enumerate(tokenizer.vocabulary)}
        ids |= {sign: ids[token] for token, sign in self._signs.items()}
        entries = tf.lookup.KeyValueTensorInitializer(list(ids), list(ids.values()), tf.string, tf.int64)
        self._table = tf.lookup.StaticHashTable(entries, default_value=ids[self._unknown])
        self._pieces = tf_text.WordpieceTokenizer(
            self._table,
            suffix_indicator=tokenizer.continuation_prefix,
            max_bytes_per_word=4 * self._longest,  # never reached: `words` counts characters
            token_out_type=tf.int32,
            unknown_token=self._unknown,
        )

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Ids, int32 (n, None), of texts, `tf.string` (n,)."""
        return self._pieces.tokenize(self.words(texts)).merge_dims(1, 2)

    def words(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Words to split into pieces, `tf.string` (n, None), of texts, `tf.string` (n,).

        They are normalised; special tokens are control characters, and so are words that are too long.
        """
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        signs = "".join(self._signs.values())
        texts = tf.strings.regex_replace(texts, f"[{signs}]", chr(1 + len(signs)))  # one that the map drops
        for token, sign in self._signs.items():
            texts = tf.strings.regex_replace(texts, re.escape(token), sign)
        # The space keeps rows apart where neighbours matter.
        return self._split(self._normalize(tf.strings.unicode_decode(tf.strings.join([" ", texts]), "UTF-8")))

    def _normalize(self, texts: tf.RaggedTensor) -> tf.RaggedTensor:
        """Maps code points (n, None) one by one, then sorts combining marks if there are any."""
        characters = texts.values  # (c,)
        run = tf.searchsorted(self._map.starts, characters, side="right") - 1  # (c,)
        mapped = tf.gather(self._map.base, run) + tf.gather(self._map.step, run) * characters[:, None]  # (c, w)
        width = self._map.base.shape[1]
        codes = tf.RaggedTensor.from_row_splits(tf.reshape(mapped, [-1]), texts.row_splits * width, validate=False)
        marked = tf.reduce_any(codes.values >= RANK_UNIT)
        codes = tf.cond(marked, lambda: _sort_marks(codes), lambda: codes)
        return _select(codes, codes.values > BLOCKER)

    def _split(self, codes: tf.RaggedTensor) -> tf.RaggedTensor:
        """Splits code points (n, None) at spaces into words (n, None)."""
        inside = codes.values != _SPACE  # (c,)
        begins = inside & ~tf.concat([[False], inside[:-1]], axis=0)  # (c,)
        places = tf.where(tf.boolean_mask(begins, inside))[:, 0]  # (words,)
        letters = tf.RaggedTensor.from_row_starts(tf.boolean_mask(codes.values, inside), places, validate=False)
        words = tf.strings.unicode_encode(letters, "UTF-8")  # (words,)
        words = tf.where(letters.row_lengths() > self._longest, self._unknown, words)
        return tf.RaggedTensor.from_row_splits(words, _count(begins, codes.row_splits), validate=False)


def _count(mask: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """How many of `mask`, bool (c,), are true before each place."""
    return tf.gather(tf.concat([[0], tf.cumsum(tf.cast(mask, places.dtype))], axis=0), places)


def _select(rows: tf.RaggedTensor, keep: tf.Tensor) -> tf.RaggedTensor:
    """The values where `keep`, bool over the flat values, is true."""
    values = tf.boolean_mask(rows.values, keep)
    return tf.RaggedTensor.from_row_splits(values, _count(keep, rows.row_splits), validate=False)


def _sort_marks(codes: tf.RaggedTensor) -> tf.RaggedTensor:
    """Brings neighbouring combining marks into the order of their ranks, then takes the ranks off."""
    codes = _select(codes, codes.values != NOTHING)
    rank = codes.values // RANK_UNIT  # (c,)
    group = tf.cumsum(tf.cast(rank == 0, tf.int64))  # a character with the marks after it
    order = tf.argsort(group * RANK_UNIT + tf.cast(rank, tf.int64), stable=True)
    return codes.with_values(tf.gather(codes.values, order) % RANK_UNIT)
