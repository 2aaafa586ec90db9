"""XLM-RoBERTa's SentencePiece as TensorFlow ops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from lmzoo.text.graphs.sentencepiece import SentencePieceGraph, find, without
from lmzoo.text.graphs.token_ops import EDGE, shift, size_in_bytes
from lmzoo.text.graphs.tokenizer_registry import graph_tokenizer
from lmzoo.text.tokenizers.precompiled_rules import CONTROL, EXTEND, MOST_BYTES, PLAIN, PREPEND, character_kinds
from lmzoo.text.tokenizers.xlm_roberta_sentencepiece import XlmRobertaTokenizer

_PAIRS = EDGE + 1  # the first of the numbers that stand for pairs of characters


class XlmRobertaGraph(SentencePieceGraph):
    """See `lmzoo.text.graphs.graph_tokenizer`."""

    def __init__(self, tokenizer: XlmRobertaTokenizer) -> None:
        super().__init__(tokenizer)
        rules = tokenizer.rules
        self._sources = np.array(sorted(map(ord, rules.sources)) or [EDGE], "int32")  # (s,)
        numbers = [(ord(first) * EDGE + ord(second), number) for number, (first, second) in enumerate(rules.pairs)]
        keys, values = zip(*sorted(numbers or [(-1, 0)]), strict=True)
        self._pair_keys = np.array(keys, "int64")  # (p,)
        self._pair_numbers = np.array(values, "int32") + _PAIRS  # (p,)
        self._starts, self._kinds = character_kinds()

    def _changes(self, tokenizer: XlmRobertaTokenizer) -> Iterable[tuple[int, str]]:
        yield from ((ord(source), after) for source, after in tokenizer.rules.singles.items() if source != after)
        yield from enumerate(tokenizer.rules.pairs.values(), _PAIRS)

    def _join(self, codes: tf.Tensor, place: tf.Tensor, part: tf.Tensor) -> Sequence[tf.Tensor]:
        """Replace each short cluster that begins with the source of a rule by that source."""
        begins = self._begins(codes, part)  # (c,)
        cluster = tf.cumsum(tf.cast(begins, tf.int32)) - 1  # (c,)
        short = tf.gather(tf.math.segment_sum(size_in_bytes(codes), cluster) <= MOST_BYTES, cluster)
        several = begins & ~shift(begins, -1, True) & short  # (c,)
        pair = tf.cast(codes, tf.int64) * EDGE + tf.cast(shift(codes, -1, 0), tf.int64)  # (c,)
        is_single, _ = find(self._sources, codes)
        is_pair, index = find(self._pair_keys, pair)
        codes = tf.where(several & is_pair & ~is_single, tf.gather(self._pair_numbers, index), codes)
        first = several & (is_single | is_pair)  # (c,)
        # As many characters are replaced as take their place; the span of an accented letter is that of the letter.
        size = tf.math.segment_sum(tf.ones_like(codes), cluster)  # (clusters,)
        width = tf.minimum(self._characters.lengths_of(codes), tf.gather(size, cluster))  # (c,)
        last = tf.range(tf.size(codes)) + tf.where(first, width - 1, 0)  # (c,)
        place = tf.stack([place[:, 0], tf.gather(place[:, 1], last)], axis=1)
        replaced = tf.gather(tf.boolean_mask(first, begins), cluster)  # (c,)
        return without(replaced & ~begins, codes, place, part)

    def _begins(self, codes: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
        """Where grapheme clusters begin, bool (c,); only those of at most `MOST_BYTES` have to be right."""
        kinds = tf.gather(self._kinds, tf.searchsorted(self._starts, codes, side="right") - 1)  # (c,)
        before = shift(kinds, 1, PLAIN)
        follows = (kinds == EXTEND) & (before != CONTROL) | (before == PREPEND) & (kinds != CONTROL)
        return ~follows | (shift(part, 1, -1) != part)


graph_tokenizer.register(XlmRobertaTokenizer, XlmRobertaGraph)
