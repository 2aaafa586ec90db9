"""WordPiece as TensorFlow ops."""

from __future__ import annotations

import tensorflow as tf
import tensorflow_text as tf_text

from lmzoo.text.graphs.added_tokens import CutTextsGraph
from lmzoo.text.graphs.token_ops import ends_in_bytes, indices_in_rows, join_letters, repeat, rows_of, shift
from lmzoo.text.graphs.tokenizer_registry import graph_tokenizer
from lmzoo.text.graphs.unicode_map import BLOCKER, NOTHING, PRIVATE_USE, RANK_UNIT, CharacterMap, character_map
from lmzoo.text.tokenizers.rust_tokenizer import RustTokenizer
from lmzoo.text.tokenizers.token_lists import ids_of
from lmzoo.text.tokenizers.wordpiece import WordPieceTokenizer

UNKNOWN_WORD = chr(PRIVATE_USE)  # which the normalizer drops, so that no word looks like it
_SPACE = 0x20


class CleanWordsGraph(CutTextsGraph):
    """Texts cleaned and split into words as by BERT.

    Args:
        tokenizer: the tokenizer.
        longest: the most characters of a word.
        lowercase: whether to lower-case text.
        strip_accents: whether to strip accents; None for those of lower-cased text.
        split_on_cjk: whether to split at Chinese characters.
    """

    def __init__(
        self, tokenizer: RustTokenizer, longest: int, lowercase: bool, strip_accents: bool | None, split_on_cjk: bool
    ) -> None:
        super().__init__(tokenizer, normalize_token=tokenizer.backend.normalizer.normalize_str)
        self._options = lowercase, strip_accents, split_on_cjk
        self._map = character_map(*self._options)
        self._longest = longest

    def normalize(self, codes: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        return _normalize(character_map(*self._options, split_punctuation=False), codes)

    def words(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Return the words of texts, `tf.string` (n,), which are then split into tokens: `tf.string` (n, None).

        They are normalized; those that are too long are a private-use character.
        """
        return self._words(texts)[0]

    def _words(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.Tensor]:
        """See `words`; also their letters, int32 (m, None), and the characters that these came from, int32 (l, 2)."""
        # The space separates texts where neighbors matter.
        codes = tf.strings.unicode_decode(tf.strings.join([" ", texts]), "UTF-8", errors="replace")
        start = indices_in_rows(codes) - 1  # (c,)
        codes, source = _normalize(self._map, codes)
        inside = codes.values != _SPACE  # (d,)
        begins = inside & ~shift(inside, 1, False)  # (d,)
        words, letters = join_letters(codes.values, rows_of(codes), begins, inside, codes.nrows())
        words = words.with_values(tf.where(letters.row_lengths() > self._longest, UNKNOWN_WORD, words.values))
        start = tf.gather(start, tf.boolean_mask(source, inside))  # (l,)
        return words, letters, tf.stack([start, start + 1], axis=1)


class WordPieceGraph(CleanWordsGraph):
    """See `lmzoo.text.graphs.graph_tokenizer`."""

    def __init__(self, tokenizer: WordPieceTokenizer) -> None:
        super().__init__(
            tokenizer,
            tokenizer.max_characters_per_word,
            tokenizer.lowercase,
            tokenizer.strip_accents,
            tokenizer.split_on_cjk,
        )
        unknown = tokenizer.token_to_id(tokenizer.unk_token)
        ids = {**ids_of(tokenizer.base_vocabulary), UNKNOWN_WORD: unknown}
        entries = tf.lookup.KeyValueTensorInitializer(list(ids), list(ids.values()), tf.string, tf.int64)
        self._table = tf.lookup.StaticHashTable(entries, default_value=unknown)
        self._pieces = tf_text.WordpieceTokenizer(
            self._table,
            suffix_indicator=tokenizer.continuation_prefix,
            max_bytes_per_word=4 * self._longest,  # never reached: `words` counts characters
            token_out_type=tf.int32,
            unknown_token=UNKNOWN_WORD,
        )

    def plain_ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self._pieces.tokenize(self.words(texts)).merge_dims(1, 2)

    def plain_spans(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        words, letters, places = self._words(texts)
        pieces, start, end = self._pieces.tokenize_with_offsets(words.values)  # (m, None), bytes within the word
        # A word that is too long has become one character, whose token covers the whole word.
        long = repeat(letters.row_lengths() > self._longest, pieces.row_lengths())
        after = ends_in_bytes(letters.values)  # (l,)
        before = tf.concat([[0], after], axis=0)  # (l + 1,)
        first, last = (  # of each piece's word, (p,)
            repeat(at, pieces.row_lengths()) for at in (letters.row_starts(), letters.row_limits() - 1)
        )
        from_byte, to_byte = (tf.gather(before, first) + tf.cast(x.values, tf.int64) for x in (start, end))
        first = tf.where(long, first, tf.searchsorted(after, from_byte, side="right", out_type=tf.int64))
        last = tf.where(long, last, tf.searchsorted(after, to_byte - 1, side="right", out_type=tf.int64))
        span = tf.stack([tf.gather(places[:, 0], first), tf.gather(places[:, 1], last)], axis=1)  # (p, 2)
        ids = words.with_values(pieces).merge_dims(1, 2)
        return ids, ids.with_values(span)


def _normalize(characters: CharacterMap, texts: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Map code points (n, None) one by one, then sort combining marks if there are any.

    Returns:
        Code points, int32 (n, None), and for their flat values the index of the one that each came from, int32.
    """
    before = texts.values  # (c,)
    run = tf.searchsorted(characters.starts, before, side="right") - 1  # (c,)
    mapped = tf.gather(characters.base, run) + tf.gather(characters.step, run) * before[:, None]  # (c, w)
    width = characters.base.shape[1]
    codes = tf.RaggedTensor.from_row_splits(tf.reshape(mapped, [-1]), texts.row_splits * width, validate=False)
    source = tf.repeat(tf.range(tf.size(before)), width)  # (c * w,)
    there = codes.values != NOTHING
    codes, source = _select(codes, there), tf.boolean_mask(source, there)
    marked = tf.reduce_any(codes.values >= RANK_UNIT)
    codes = tf.cond(marked, lambda: _sort_marks(codes), lambda: codes)
    solid = codes.values > BLOCKER
    return _select(codes, solid), tf.boolean_mask(source, solid)


def _select(rows: tf.RaggedTensor, keep: tf.Tensor) -> tf.RaggedTensor:
    """Return the values where `keep`, bool over the flat values, is true."""
    before = tf.concat([[0], tf.cumsum(tf.cast(keep, tf.int64))], axis=0)  # (c + 1,)
    splits = tf.gather(before, rows.row_splits)
    return tf.RaggedTensor.from_row_splits(tf.boolean_mask(rows.values, keep), splits, validate=False)


def _sort_marks(codes: tf.RaggedTensor) -> tf.RaggedTensor:
    """Sort adjacent combining marks by their ranks, then remove the ranks."""
    rank = codes.values // RANK_UNIT  # (c,)
    group = tf.cumsum(tf.cast(rank == 0, tf.int64))  # a character and the marks after it
    order = tf.argsort(group * RANK_UNIT + tf.cast(rank, tf.int64), stable=True)
    return codes.with_values(tf.gather(codes.values, order) % RANK_UNIT)


graph_tokenizer.register(WordPieceTokenizer, WordPieceGraph)
