"""Tokenising and packing inside a TensorFlow graph, with the ids of the Python path.

Importing this module imports tensorflow and tensorflow_text; nothing else in `lmzoo.text` does.
"""

from __future__ import annotations

import re

import tensorflow as tf
import tensorflow_text as tf_text

from lmzoo.text.preprocessor import Preprocessor
from lmzoo.text.unicode_map import BLOCKER, NOTHING, RANK_UNIT, character_map
from lmzoo.text.wordpiece import WordPieceTokenizer

_SPACE = 0x20


def graph_tokenizer(tokenizer: WordPieceTokenizer) -> tf.Module:
    """The tokenizer as TensorFlow ops: its ids equal `tokenizer.tokenize`'s for every string.

    Args:
        tokenizer: a `WordPieceTokenizer` that has its vocabulary.

    Returns:
        A module: call it on a `tf.string` tensor (n,) for a `tf.RaggedTensor` (n, None) of int32 ids. It works eagerly
        and in a `tf.function`; the vocabulary becomes part of a SavedModel.

    Raises:
        TypeError: for other tokenizers.

    Example:

    ```python
    from lmzoo.text import WordPieceTokenizer
    from lmzoo.text.graph import graph_tokenizer

    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "run", "##ning", "!"])
    graph_tokenizer(tokenizer)(["Running!", ""]).to_list()  # [[5, 6, 7], []]
    ```
    """
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise TypeError(f"Only a WordPieceTokenizer can run in a graph, got {type(tokenizer).__name__}.")
    return WordPieceGraph(tokenizer)


def graph_packer(preprocessor: Preprocessor) -> tf.Module:
    """The preprocessor as TensorFlow ops: its rows equal `preprocessor.encode`'s.

    Args:
        preprocessor: what to express; the module keeps the `sequence_length` of this moment.

    Returns:
        A module: call it on texts, or on texts and pairs, each a `tf.string` tensor (n,). It returns a dict with the
        features of `Preprocessor.features`, dense int32 (n, t) where t is the length of the longest row, and
        `truncated`, bool (n,): which rows were cut.

    Example:

    ```python
    from lmzoo.text import Packing, Preprocessor, WordPieceTokenizer
    from lmzoo.text.graph import graph_packer

    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "good", "film"])
    packing = Packing(start="[CLS]", end="[SEP]", between=("[SEP]",), segments=True)
    graph_packer(Preprocessor(tokenizer, packing))(["good"], ["film"])["segment_ids"]  # [[0, 0, 0, 1, 1]]
    ```
    """
    return PackerGraph(preprocessor)


class WordPieceGraph(tf.Module):
    """See `graph_tokenizer`."""

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


class PackerGraph(tf.Module):
    """See `graph_packer`."""

    def __init__(self, preprocessor: Preprocessor) -> None:
        super().__init__()
        self._tokenizer = graph_tokenizer(preprocessor.tokenizer)
        self._packing = preprocessor.packing
        self._sequence_length = preprocessor.sequence_length
        self._id_of = preprocessor.tokenizer.token_to_id
        self._pad_id = preprocessor.tokenizer.pad_id

    def __call__(self, texts: tf.Tensor, pairs: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Features of texts, or of texts and pairs, each `tf.string` (n,)."""
        packing, first = self._packing, self._tokenizer(texts)
        length = first.row_lengths()  # (n,)
        budget = self._sequence_length - packing.overhead(pairs is not None)
        start, end, between = (self._tokens(length, *t) for t in ([packing.start], [packing.end], packing.between))
        if pairs is None:
            kept = tf.minimum(length, budget)
            truncated = kept < length
            rows = tf.concat([start, _head(first, kept), end], axis=1)
        else:
            second = self._tokenizer(pairs)
            second_length = second.row_lengths()
            # As `lmzoo.text.packing.truncate_pair`.
            kept = tf.minimum(length, tf.maximum(budget - second_length, (budget + 1) // 2))
            second_kept = tf.minimum(second_length, budget - kept)
            truncated = (kept < length) | (second_kept < second_length)
            rows = tf.concat([start, _head(first, kept), between, _head(second, second_kept), end], axis=1)
        width = tf.maximum(tf.reduce_max(rows.row_lengths()), 1)  # t; 1 if there are no rows
        token_ids = rows.to_tensor(self._pad_id, shape=tf.stack([-1, width]))  # (n, t)
        padding_mask = tf.sequence_mask(rows.row_lengths(), width, tf.int32)
        features = {"token_ids": token_ids, "padding_mask": padding_mask, "truncated": truncated}
        if packing.segments:
            boundary = kept + 1 + len(packing.between)  # where the second segment begins
            in_second = tf.range(width) >= boundary[:, None] if pairs is not None else tf.zeros_like(token_ids)
            features["segment_ids"] = tf.cast(in_second, tf.int32) * padding_mask
        return features

    def _tokens(self, like: tf.Tensor, *tokens: str) -> tf.Tensor:
        """The ids of some tokens, int32 (n, k), for as many rows as `like` has."""
        return tf.tile(tf.constant([[self._id_of(token) for token in tokens]], tf.int32), [tf.size(like), 1])


def _head(rows: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    """The first values of every row, `lengths` (n,) of them."""
    return tf.gather(rows.values, tf.ragged.range(rows.row_starts(), rows.row_starts() + lengths))
