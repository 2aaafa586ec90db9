"""Word-level tokenizers as TensorFlow ops: word splitting, then symbols or ids of the words."""

from __future__ import annotations

from abc import abstractmethod

import tensorflow as tf

from lmzoo.text.graphs.token_ops import lookup_table
from lmzoo.text.graphs.tokenizer_registry import graph_tokenizer
from lmzoo.text.graphs.word_splitting import split_words
from lmzoo.text.tokenizers.characters import (
    END_OF_WORD,
    FIRST_BYTE,
    MARKERS,
    NO_BYTE,
    START_OF_WORD,
    CharacterTokenizer,
)
from lmzoo.text.tokenizers.word_level import WordTokenizer


class _WordLevelGraph(tf.Module):
    """Base class of word-level tokenizers as TensorFlow ops; subclasses turn a word into an id or symbols."""

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Map texts, `tf.string` (n,), to the ids, int32 (n, None), or symbols, int32 (n, None, W), of their words."""
        return self.with_offsets(texts)[0]

    def with_offsets(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Return the ids or symbols of the words of texts, and the offsets of the words, int32 (n, None, 2)."""
        words, spans = split_words(texts)
        return words.with_values(self.of_words(words.values)), spans

    @abstractmethod
    def of_words(self, words: tf.Tensor) -> tf.Tensor:
        """Map words, `tf.string` (m,), to ids, int32 (m,), or symbols, int32 (m, W)."""

    def words(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Split texts, `tf.string` (n,), into words, `tf.string` (n, None), by the rules of `split_words`."""
        return split_words(texts)[0]


class CharacterGraph(_WordLevelGraph):
    """`CharacterTokenizer` as TensorFlow ops, for `graph_tokenizer`."""

    def __init__(self, tokenizer: CharacterTokenizer) -> None:
        super().__init__()
        self._width = tokenizer.max_characters
        self._markers = {marker: tokenizer.as_array([marker], 1) for marker in MARKERS}  # each (1, W)

    def of_words(self, words: tf.Tensor) -> tf.Tensor:
        """Map words, `tf.string` (m,), to symbols, int32 (m, W), in the layout of `CharacterTokenizer.as_array`."""
        max_bytes = self._width - 2
        word_bytes = tf.io.decode_raw(words, tf.uint8, fixed_length=max_bytes)  # (m, W - 2), cut or padded with 0
        symbols = tf.pad(tf.cast(word_bytes, tf.int32), [[0, 0], [1, 1]]) + FIRST_BYTE  # (m, W)
        end_positions = tf.minimum(tf.strings.length(words), max_bytes)[:, None] + 1  # (m, 1)
        positions = tf.range(self._width)  # (W,)
        symbols = tf.where(positions < end_positions, symbols, NO_BYTE)
        symbols = tf.where(positions == end_positions, END_OF_WORD, symbols)
        symbols = tf.where(positions == 0, START_OF_WORD, symbols)
        for marker, marker_symbols in self._markers.items():
            symbols = tf.where((words == marker)[:, None], marker_symbols, symbols)
        return symbols


class WordGraph(_WordLevelGraph):
    """`WordTokenizer` as TensorFlow ops, for `graph_tokenizer`."""

    def __init__(self, tokenizer: WordTokenizer) -> None:
        super().__init__()
        ids = {word: tokenizer.token_to_id(word) for word in tokenizer.vocabulary}
        self._unknown_id = tokenizer.token_to_id(tokenizer.unk_token)
        self._table = lookup_table(ids, tf.string, self._unknown_id)
        self._lowercase = tokenizer.lowercase

    def of_words(self, words: tf.Tensor) -> tf.Tensor:
        """Map words, `tf.string` (m,), to ids, int32 (m,)."""
        ids = self._table.lookup(words)
        if not self._lowercase:
            return ids
        lowercase_ids = self._table.lookup(tf.strings.lower(words, encoding="utf-8"))
        return tf.where(ids == self._unknown_id, lowercase_ids, ids)


graph_tokenizer.register(CharacterTokenizer, CharacterGraph)
graph_tokenizer.register(WordTokenizer, WordGraph)
