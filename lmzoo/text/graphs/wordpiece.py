"""WordPiece tokenization in TensorFlow ops."""

from __future__ import annotations

import tensorflow as tf
import tensorflow_text as tf_text

from lmzoo.text.graphs.added_tokens import CutTextsGraph
from lmzoo.text.graphs.token_ops import compute_row_indices, ends_in_bytes, indices_in_rows, join_letters, repeat, shift
from lmzoo.text.graphs.tokenizer_registry import graph_tokenizer
from lmzoo.text.graphs.unicode_map import BLOCKER, NOTHING, PRIVATE_USE, RANK_UNIT, CharacterMap, character_map
from lmzoo.text.tokenizers.rust_tokenizer import RustTokenizer
from lmzoo.text.tokenizers.token_lists import make_token_ids
from lmzoo.text.tokenizers.wordpiece import WordPieceTokenizer

UNKNOWN_WORD = chr(PRIVATE_USE)  # the normalizer drops it, so that no word equals it
_SPACE = 0x20


class CleanWordsGraph(CutTextsGraph):
    """Base class for the TensorFlow ops of tokenizers that clean texts and split them into words by BERT's rules.

    Args:
        tokenizer: `RustTokenizer`.
        longest: int, maximum number of characters of a word; longer words become the unknown token.
        lowercase: bool, whether to lowercase text.
        strip_accents: bool, whether to strip accents; None for the value of `lowercase`.
        split_on_cjk: bool, whether each Chinese character is a word.
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
        """Clean texts, `tf.string` (n,), and split them into words, `tf.string` (n, None).

        Words of more than `longest` characters are replaced by a private-use character.
        """
        return self._words(texts)[0]

    def _words(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.Tensor]:
        """Clean texts, and split them into words and the characters of the words.

        Returns:
            The m words, `tf.string` (n, None); their l characters, int32 (m, None); and the offsets of the characters,
            int32 (l, 2).
        """
        # Spaces separate neighboring texts.
        codes = tf.strings.unicode_decode(tf.strings.join([" ", texts]), "UTF-8", errors="replace")
        starts = indices_in_rows(codes) - 1  # (c,)
        codes, origins = _normalize(self._map, codes)
        in_word = codes.values != _SPACE  # (d,)
        begins = in_word & ~shift(in_word, 1, False)  # (d,)
        words, characters = join_letters(codes.values, compute_row_indices(codes), begins, in_word, codes.nrows())
        words = words.with_values(tf.where(characters.row_lengths() > self._longest, UNKNOWN_WORD, words.values))
        starts = tf.gather(starts, tf.boolean_mask(origins, in_word))  # (l,)
        return words, characters, tf.stack([starts, starts + 1], axis=1)


class WordPieceGraph(CleanWordsGraph):
    """WordPiece tokenization in TensorFlow ops, for `graph_tokenizer`."""

    def __init__(self, tokenizer: WordPieceTokenizer) -> None:
        super().__init__(
            tokenizer,
            tokenizer.max_characters_per_word,
            tokenizer.lowercase,
            tokenizer.strip_accents,
            tokenizer.split_on_cjk,
        )
        unknown_id = tokenizer.token_to_id(tokenizer.unk_token)
        ids = {**make_token_ids(tokenizer.base_vocabulary), UNKNOWN_WORD: unknown_id}
        table_initializer = tf.lookup.KeyValueTensorInitializer(list(ids), list(ids.values()), tf.string, tf.int64)
        self._table = tf.lookup.StaticHashTable(table_initializer, default_value=unknown_id)
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
        words, characters, offsets = self._words(texts)
        pieces, piece_starts, piece_ends = self._pieces.tokenize_with_offsets(
            words.values
        )  # (m, None), bytes within the word
        # A word that is too long has become one character, whose token covers the whole word.
        is_too_long = repeat(characters.row_lengths() > self._longest, pieces.row_lengths())
        character_ends = ends_in_bytes(characters.values)  # (l,)
        character_starts = tf.concat([[0], character_ends], axis=0)  # (l + 1,)
        # The first and the last character of each token's word, (p,)
        word_begins = repeat(characters.row_starts(), pieces.row_lengths())
        word_lasts = repeat(characters.row_limits() - 1, pieces.row_lengths())
        first_bytes, end_bytes = (
            tf.gather(character_starts, word_begins) + tf.cast(x.values, tf.int64) for x in (piece_starts, piece_ends)
        )
        token_begins = tf.where(
            is_too_long, word_begins, tf.searchsorted(character_ends, first_bytes, side="right", out_type=tf.int64)
        )
        token_lasts = tf.where(
            is_too_long, word_lasts, tf.searchsorted(character_ends, end_bytes - 1, side="right", out_type=tf.int64)
        )
        spans = tf.stack(
            [tf.gather(offsets[:, 0], token_begins), tf.gather(offsets[:, 1], token_lasts)], axis=1
        )  # (p, 2)
        ids = words.with_values(pieces).merge_dims(1, 2)
        return ids, ids.with_values(spans)


def _normalize(mapping: CharacterMap, texts: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Map code points one by one, sort combining marks, and drop code points that map to nothing.

    Args:
        mapping: `CharacterMap` of the code points.
        texts: int32 (n, None), code points of the texts.

    Returns:
        The new code points, int32 (n, None), d in all, and for each the flat index in `texts` of its origin, int32
        (d,); for a mark that was moved, of the mark that was in its place before.
    """
    original_codes = texts.values  # (c,)
    runs = tf.searchsorted(mapping.starts, original_codes, side="right") - 1  # (c,)
    mapped_codes = tf.gather(mapping.base, runs) + tf.gather(mapping.step, runs) * original_codes[:, None]  # (c, w)
    width = mapping.base.shape[1]
    codes = tf.RaggedTensor.from_row_splits(tf.reshape(mapped_codes, [-1]), texts.row_splits * width, validate=False)
    origins = tf.repeat(tf.range(tf.size(original_codes)), width)  # (c * w,)
    has_value = codes.values != NOTHING
    codes = _select(codes, has_value)
    origins = tf.boolean_mask(origins, has_value)
    has_marks = tf.reduce_any(codes.values >= RANK_UNIT)
    codes = tf.cond(has_marks, lambda: _sort_marks(codes), lambda: codes)
    is_kept = codes.values > BLOCKER
    return _select(codes, is_kept), tf.boolean_mask(origins, is_kept)


def _select(rows: tf.RaggedTensor, keep: tf.Tensor) -> tf.RaggedTensor:
    """Return ragged rows with only the flat values for which `keep` is true."""
    num_earlier = tf.concat([[0], tf.cumsum(tf.cast(keep, tf.int64))], axis=0)  # (c + 1,)
    splits = tf.gather(num_earlier, rows.row_splits)
    return tf.RaggedTensor.from_row_splits(tf.boolean_mask(rows.values, keep), splits, validate=False)


def _sort_marks(codes: tf.RaggedTensor) -> tf.RaggedTensor:
    """Sort adjacent combining marks by their ranks, then remove the ranks."""
    ranks = codes.values // RANK_UNIT  # (c,)
    groups = tf.cumsum(tf.cast(ranks == 0, tf.int64))  # a character and the following marks
    order = tf.argsort(groups * RANK_UNIT + tf.cast(ranks, tf.int64), stable=True)
    return codes.with_values(tf.gather(codes.values, order) % RANK_UNIT)


graph_tokenizer.register(WordPieceTokenizer, WordPieceGraph)
