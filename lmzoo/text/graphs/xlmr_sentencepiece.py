"""XLM-RoBERTa's SentencePiece tokenization in TensorFlow ops."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from lmzoo.text.graphs.precompiled_rules import PrecompiledRulesGraph
from lmzoo.text.graphs.sentencepiece import SentencePieceGraph
from lmzoo.text.graphs.tokenizer_registry import graph_tokenizer
from lmzoo.text.tokenizers.sentencepiece import SentencePieceTokenizer
from lmzoo.text.tokenizers.sentencepiece_text import WHITE_SPACE
from lmzoo.text.tokenizers.xlmr_sentencepiece import XlmRobertaTokenizer


class XlmRobertaGraph(SentencePieceGraph):
    """XLM-RoBERTa's SentencePiece tokenization in TensorFlow ops, for `graph_tokenizer`."""

    def __init__(self, tokenizer: XlmRobertaTokenizer) -> None:
        super().__init__(tokenizer)
        self._cleaning_rules = PrecompiledRulesGraph(tokenizer.rules, whitespace=True)

    def _changes(self, tokenizer: SentencePieceTokenizer) -> Iterable[tuple[int, str]]:
        return ()

    def _list_exact_changes(self, tokenizer: SentencePieceTokenizer) -> Iterable[tuple[int, str]]:
        return ()

    def whitespace(self) -> list[int]:
        return [*map(ord, WHITE_SPACE)]

    def _replace(self, codes: tf.Tensor, place: tf.Tensor, part: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return self._cleaning_rules(codes, place, part)


graph_tokenizer.register(XlmRobertaTokenizer, XlmRobertaGraph)
