"""WordPiece as TensorFlow ops."""

from __future__ import annotations

import re
from collections.abc import Sequence

import tensorflow as tf
import tensorflow_text as tf_text

from lmzoo.text.graphs.token_ops import ends_in_bytes, indices_in_rows, shift
from lmzoo.text.graphs.tokenizer_registry import graph_tokenizer
from lmzoo.text.graphs.unicode_map import BLOCKER, FIRST_SIGN, NOTHING, RANK_UNIT, character_map
from lmzoo.text.tokenizers.wordpiece import WordPieceTokenizer

_SPACE = 0x20


class CleanWordsGraph(tf.Module):
    """Texts cleaned and split into words as by BERT.

    Args:
        special_tokens: tokens that are words by themselves.
        unknown: the one that stands for words that are too long.
        longest: the most characters of a word; None for no limit.
        lowercase: whether to lower-case text.
        strip_accents: whether to strip accents; None does what `lowercase` says.
    """

    def __init__(
        self,
        special_tokens: Sequence[str],
        unknown: str,
        longest: int | None = None,
        lowercase: bool = True,
        strip_accents: bool | None = None,
    ) -> None:
        super().__init__()
        # A special token is represented by a private-use character. Those that texts contain are replaced.
        self._signs = {token: chr(FIRST_SIGN + index) for index, token in enumerate(special_tokens)}
        self._map = character_map(lowercase, strip_accents, isolated=len(self._signs))
        self._unknown = self._signs[unknown]
        self._longest = 2**31 - 1 if longest is None else longest

    def words(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """The words of texts, `tf.string` (n,), which are then split into tokens: `tf.string` (n, None).

        They are normalised; special tokens and words that are too long are private-use characters.
        """
        return self._words(texts)[0]

    def _words(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.Tensor]:
        """See `words`; also their letters, int32 (m, None), and the characters that these came from, int32 (l, 2)."""
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        signs = "".join(self._signs.values())
        dropped = chr(FIRST_SIGN + len(signs))  # by the map
        texts = tf.strings.regex_replace(texts, f"[{signs}]", dropped)
        for token in sorted(self._signs, key=len, reverse=True):  # one may begin with another
            sign = self._signs[token]
            texts = tf.strings.regex_replace(texts, re.escape(token), sign + dropped * (len(token) - 1))  # as long
        # The space separates texts where neighbours matter.
        codes = tf.strings.unicode_decode(tf.strings.join([" ", texts]), "UTF-8")
        sign = codes.values - FIRST_SIGN + 1  # (c,)
        sign = tf.where((sign > 0) & (sign <= len(signs)), sign, 0)
        start = indices_in_rows(codes) - 1  # (c,)
        place = tf.stack([start, start + tf.gather([1, *map(len, self._signs)], sign)], axis=1)  # (c, 2)
        codes, source = self._normalize(codes)
        words, letters, inside = self._split(codes)
        return words, letters, tf.gather(place, tf.boolean_mask(source, inside))

    def _normalize(self, texts: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Maps code points (n, None) one by one, then sorts combining marks if there are any.

        Returns:
            Code points, int32 (n, None), and for their flat values the index of the one that each came from, int32.
        """
        characters = texts.values  # (c,)
        run = tf.searchsorted(self._map.starts, characters, side="right") - 1  # (c,)
        mapped = tf.gather(self._map.base, run) + tf.gather(self._map.step, run) * characters[:, None]  # (c, w)
        width = self._map.base.shape[1]
        codes = tf.RaggedTensor.from_row_splits(tf.reshape(mapped, [-1]), texts.row_splits * width, validate=False)
        source = tf.repeat(tf.range(tf.size(characters)), width)  # (c * w,)
        there = codes.values != NOTHING
        codes, source = _select(codes, there), tf.boolean_mask(source, there)
        marked = tf.reduce_any(codes.values >= RANK_UNIT)
        codes = tf.cond(marked, lambda: _sort_marks(codes), lambda: codes)
        solid = codes.values > BLOCKER
        return _select(codes, solid), tf.boolean_mask(source, solid)

    def _split(self, codes: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.Tensor]:
        """Splits code points (n, None) at spaces.

        Returns:
            Words, `tf.string` (n, None), their letters, int32 (m, None), and which code points are letters, bool.
        """
        inside = codes.values != _SPACE  # (c,)
        begins = inside & ~shift(inside, 1, False)  # (c,)
        places = tf.where(tf.boolean_mask(begins, inside))[:, 0]  # (m,)
        letters = tf.RaggedTensor.from_row_starts(tf.boolean_mask(codes.values, inside), places, validate=False)
        words = tf.strings.unicode_encode(letters, "UTF-8")  # (m,)
        words = tf.where(letters.row_lengths() > self._longest, self._unknown, words)
        splits = _count(begins, codes.row_splits)
        return tf.RaggedTensor.from_row_splits(words, splits, validate=False), letters, inside


class WordPieceGraph(CleanWordsGraph):
    """See `lmzoo.text.graphs.graph_tokenizer`."""

    def __init__(self, tokenizer: WordPieceTokenizer) -> None:
        settings = tokenizer.max_characters_per_word, tokenizer.lowercase, tokenizer.strip_accents
        super().__init__(tokenizer.special_tokens, tokenizer.unk_token, *settings)
        ids = {token: index for index, token in enumerate(tokenizer.vocabulary) if token}
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

    def with_offsets(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Ids, int32 (n, None), and the characters that they came from, int32 (n, None, 2)."""
        words, letters, places = self._words(texts)
        pieces, start, end = self._pieces.tokenize_with_offsets(words.values)  # (m, None), bytes within the word
        # A word that is too long has become one character, whose token covers the whole word.
        long = tf.repeat(letters.row_lengths() > self._longest, pieces.row_lengths())
        after = ends_in_bytes(letters.values)  # (l,)
        before = tf.concat([[0], after], axis=0)  # (l + 1,)
        first, last = (  # of each piece's word, (p,)
            tf.repeat(at, pieces.row_lengths()) for at in (letters.row_starts(), letters.row_limits() - 1)
        )
        from_byte, to_byte = (tf.gather(before, first) + tf.cast(x.values, tf.int64) for x in (start, end))
        first = tf.where(long, first, tf.searchsorted(after, from_byte, side="right", out_type=tf.int64))
        last = tf.where(long, last, tf.searchsorted(after, to_byte - 1, side="right", out_type=tf.int64))
        span = tf.stack([tf.gather(places[:, 0], first), tf.gather(places[:, 1], last)], axis=1)  # (p, 2)
        ids = words.with_values(pieces).merge_dims(1, 2)
        return ids, ids.with_values(span)


def _count(mask: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Number of true values of `mask`, bool (c,), before each place."""
    return tf.gather(tf.concat([[0], tf.cumsum(tf.cast(mask, places.dtype))], axis=0), places)


def _select(rows: tf.RaggedTensor, keep: tf.Tensor) -> tf.RaggedTensor:
    """The values where `keep`, bool over the flat values, is true."""
    values = tf.boolean_mask(rows.values, keep)
    return tf.RaggedTensor.from_row_splits(values, _count(keep, rows.row_splits), validate=False)


def _sort_marks(codes: tf.RaggedTensor) -> tf.RaggedTensor:
    """Sorts adjacent combining marks by their ranks, then removes the ranks."""
    rank = codes.values // RANK_UNIT  # (c,)
    group = tf.cumsum(tf.cast(rank == 0, tf.int64))  # a character and the marks after it
    order = tf.argsort(group * RANK_UNIT + tf.cast(rank, tf.int64), stable=True)
    return codes.with_values(tf.gather(codes.values, order) % RANK_UNIT)


graph_tokenizer.register(WordPieceTokenizer, WordPieceGraph)
