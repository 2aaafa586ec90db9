"""Byte-pair encoding of characters as TensorFlow ops."""

from __future__ import annotations

import tensorflow as tf

from lmzoo.text.graphs.merges import MergesGraph
from lmzoo.text.graphs.token_ops import compute_row_indices, lookup_table
from lmzoo.text.graphs.tokenizer_registry import graph_tokenizer
from lmzoo.text.graphs.wordpiece import CleanWordsGraph
from lmzoo.text.tokenizers.character_pairs import END_OF_WORD, CharacterPairTokenizer
from lmzoo.text.tokenizers.token_lists import make_token_ids


class CharacterPairGraph(CleanWordsGraph):
    """Byte-pair encoding of characters as TensorFlow ops, for `graph_tokenizer`."""

    def __init__(self, tokenizer: CharacterPairTokenizer) -> None:
        super().__init__(tokenizer, longest=2**31 - 1, lowercase=True, strip_accents=None, split_on_cjk=True)
        ids = make_token_ids(tokenizer.base_vocabulary)
        unknown_id = tokenizer.token_to_id(tokenizer.unk_token)
        self._merges = MergesGraph(ids, tokenizer.merges)
        self._symbols = lookup_table(ids, tf.string, unknown_id)
        lengths = [len(token.removesuffix(END_OF_WORD)) for token in tokenizer.base_vocabulary]
        lengths[unknown_id] = 1
        self._lengths = lengths  # (V,), characters of each token

    def plain_ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
        words, characters, _ = self._words(texts)
        return self._tokens(words, characters)

    def plain_spans(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        words, characters, spans = self._words(texts)
        ids = self._tokens(words, characters)
        lengths = tf.gather(self._lengths, ids.values)  # (p,), in characters
        ends = tf.cumsum(lengths)
        token_spans = tf.stack(
            [tf.gather(spans[:, 0], ends - lengths), tf.gather(spans[:, 1], ends - 1)], axis=1
        )  # (p, 2)
        return ids, ids.with_values(token_spans)

    def _tokens(self, words: tf.RaggedTensor, characters: tf.RaggedTensor) -> tf.RaggedTensor:
        """Return the token ids of the words of each text: int32 (n, None).

        Args:
            words: `tf.string` (n, None), the m words.
            characters: int32 (m, None), code points of the words.
        """
        is_last = tf.scatter_nd(
            (characters.row_limits() - 1)[:, None],
            tf.ones_like(characters.row_limits()),
            tf.shape(characters.values, tf.int64),
        )  # (l,), 1 at the last character of each word, else 0
        symbols = tf.strings.unicode_encode(characters.values[:, None], "UTF-8")  # (l,)
        symbols = tf.strings.join([symbols, tf.where(is_last > 0, END_OF_WORD, "")])
        ids, word_indices = self._merges(self._symbols.lookup(symbols), compute_row_indices(characters))
        tokens = tf.RaggedTensor.from_value_rowids(
            ids, word_indices, nrows=characters.nrows(), validate=False
        )  # (m, None)
        return words.with_values(tokens).merge_dims(1, 2)


graph_tokenizer.register(CharacterPairTokenizer, CharacterPairGraph)
