"""ELMo's tokenizers as TensorFlow ops: words by `lmzoo.text.word_splitting`, then their characters or ids."""

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


class _WordsInGraph(tf.Module):
    """Words of texts as ops; subclasses turn a word into an id or symbols."""

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Return int32 (n, None) ids, or (n, None, W) symbols, of texts, `tf.string` (n,)."""
        return self.with_offsets(texts)[0]

    def with_offsets(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """As `__call__`, and the characters that each word came from, int32 (n, None, 2)."""
        words, span = split_words(texts)
        return words.with_values(self.of_words(words.values)), span

    @abstractmethod
    def of_words(self, words: tf.Tensor) -> tf.Tensor:
        """Return ids, int32 (m,), or symbols, int32 (m, W), of words, `tf.string` (m,)."""

    def words(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Words, `tf.string` (n, None), of texts, `tf.string` (n,); see `lmzoo.text.word_splitting.split_words`."""
        return split_words(texts)[0]


class CharacterGraph(_WordsInGraph):
    """A `CharacterTokenizer` in a graph; see `lmzoo.text.graphs.graph_tokenizer`."""

    def __init__(self, tokenizer: CharacterTokenizer) -> None:
        super().__init__()
        self._width = tokenizer.max_characters
        self._markers = {marker: tokenizer.as_array([marker], 1) for marker in MARKERS}  # each (1, W)

    def of_words(self, words: tf.Tensor) -> tf.Tensor:
        """Return symbols, int32 (m, W), of words, `tf.string` (m,); see `CharacterTokenizer.as_array`."""
        room = self._width - 2
        data = tf.io.decode_raw(words, tf.uint8, fixed_length=room)  # (m, W - 2), cut or padded with 0
        symbols = tf.pad(tf.cast(data, tf.int32), [[0, 0], [1, 1]]) + FIRST_BYTE  # (m, W)
        end = tf.minimum(tf.strings.length(words), room)[:, None] + 1  # (m, 1)
        place = tf.range(self._width)  # (W,)
        symbols = tf.where(place < end, symbols, NO_BYTE)
        symbols = tf.where(place == end, END_OF_WORD, symbols)
        symbols = tf.where(place == 0, START_OF_WORD, symbols)
        for marker, marked in self._markers.items():
            symbols = tf.where((words == marker)[:, None], marked, symbols)
        return symbols


class WordGraph(_WordsInGraph):
    """A `WordTokenizer` in a graph; see `lmzoo.text.graphs.graph_tokenizer`."""

    def __init__(self, tokenizer: WordTokenizer) -> None:
        super().__init__()
        ids = {word: tokenizer.token_to_id(word) for word in tokenizer.vocabulary}
        self._table = lookup_table(ids, tf.string, tokenizer.token_to_id(tokenizer.unk_token))

    def of_words(self, words: tf.Tensor) -> tf.Tensor:
        """Return ids, int32 (m,), of words, `tf.string` (m,)."""
        return self._table.lookup(words)


graph_tokenizer.register(CharacterTokenizer, CharacterGraph)
graph_tokenizer.register(WordTokenizer, WordGraph)
