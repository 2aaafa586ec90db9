"""Marian's tokenizer as TensorFlow ops."""

from __future__ import annotations

import tensorflow as tf
import tensorflow_text as tf_text

from lmzoo.text.graphs.added_tokens import CutTextsGraph, as_singletons
from lmzoo.text.graphs.token_ops import lookup_table
from lmzoo.text.graphs.tokenizer_registry import graph_tokenizer
from lmzoo.text.tokenizers.sentencepiece_pair import MarianTokenizer


class MarianGraph(CutTextsGraph):
    """Marian's tokenizer as TensorFlow ops, without offsets, for `graph_tokenizer`."""

    def __init__(self, tokenizer: MarianTokenizer) -> None:
        super().__init__(tokenizer)
        ids = {token: id for id, token in enumerate(tokenizer.vocabulary)}
        self._ids = lookup_table(ids, tf.string, tokenizer.token_to_id(tokenizer.unk_token))
        self._languages = lookup_table({code: ids[code] for code in tokenizer.languages}, tf.string, -1)
        self._code = "^>>[^<>\\pZ\\s]+<<"
        self._pieces = tf_text.SentencepieceTokenizer(tokenizer.model, out_type=tf.string)

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Map texts, `tf.string` (n,), to token ids, int32 (n, None)."""
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        texts_without_code = tf.strings.regex_replace(texts, self._code, "")
        code_lengths = tf.strings.length(texts) - tf.strings.length(texts_without_code)  # (n,)
        codes = tf.strings.substr(texts, tf.zeros_like(code_lengths), code_lengths)
        language_ids = self._languages.lookup(codes)  # (n,)
        ids = super().__call__(tf.where(language_ids >= 0, texts_without_code, texts))
        return tf.concat([as_singletons(language_ids, language_ids >= 0), ids], axis=1)

    def plain_ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
        pieces = self._pieces.tokenize(texts)  # (p, None)
        return pieces.with_values(self._ids.lookup(pieces.values))


graph_tokenizer.register(MarianTokenizer, MarianGraph)
