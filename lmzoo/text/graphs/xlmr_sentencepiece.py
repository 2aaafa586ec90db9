"""XLM-RoBERTa's SentencePiece as TensorFlow ops."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from lmzoo.text.graphs.sentencepiece import SentencePieceGraph, find
from lmzoo.text.graphs.token_ops import EDGE, shift, size_in_bytes
from lmzoo.text.graphs.tokenizer_registry import graph_tokenizer
from lmzoo.text.tokenizers.precompiled_rules import CONTROL, EXTEND, MOST_BYTES, PLAIN, PREPEND, character_kinds
from lmzoo.text.tokenizers.sentencepiece import SentencePieceTokenizer
from lmzoo.text.tokenizers.xlmr_sentencepiece import XlmRobertaTokenizer

_FIRST_PAIR_CODE = EDGE + 1  # first of the numbers that represent pairs of characters


class XlmRobertaGraph(SentencePieceGraph):
    """XLM-RoBERTa's SentencePiece as TensorFlow ops, for `graph_tokenizer`."""

    def __init__(self, tokenizer: XlmRobertaTokenizer) -> None:
        super().__init__(tokenizer)
        rules = tokenizer.rules
        self._sources = np.array(sorted(map(ord, rules.sources)) or [EDGE], "int32")  # (s,)
        numbers_by_key = [(ord(pair[0]) * EDGE + ord(pair[1]), number) for number, pair in enumerate(rules.pairs)]
        keys, values = zip(*sorted(numbers_by_key or [(-1, 0)]), strict=True)
        self._pair_keys = np.array(keys, "int64")  # (p,)
        self._pair_numbers = np.array(values, "int32") + _FIRST_PAIR_CODE  # (p,)
        self._starts, self._kinds = character_kinds()

    def _changes(self, tokenizer: SentencePieceTokenizer) -> Iterable[tuple[int, str]]:
        assert isinstance(tokenizer, XlmRobertaTokenizer)
        yield from (
            (ord(source), replacement)
            for source, replacement in tokenizer.rules.singles.items()
            if source != replacement
        )
        yield from enumerate(tokenizer.rules.pairs.values(), _FIRST_PAIR_CODE)

    def _replace(self, codes: tf.Tensor, place: tf.Tensor, part: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Replace characters, or short grapheme clusters as a whole, by the rules of `PrecompiledRules`."""
        begins = self._begins(codes, part)  # (c,)
        cluster = tf.cumsum(tf.cast(begins, tf.int32)) - 1  # (c,)
        is_short = tf.gather(tf.math.segment_sum(size_in_bytes(codes), cluster) <= MOST_BYTES, cluster)
        begins_short_cluster = begins & ~shift(begins, -1, True) & is_short  # (c,)
        pair = tf.cast(codes, tf.int64) * EDGE + tf.cast(shift(codes, -1, 0), tf.int64)  # (c,)
        is_single, _ = find(self._sources, codes)
        is_pair, index = find(self._pair_keys, pair)
        codes = tf.where(begins_short_cluster & is_pair & ~is_single, tf.gather(self._pair_numbers, index), codes)
        is_replaced_cluster = begins_short_cluster & (is_single | is_pair)  # (c,)
        is_dropped = tf.gather(tf.boolean_mask(is_replaced_cluster, begins), cluster) & ~begins  # (c,)
        last = tf.math.segment_max(tf.range(tf.size(codes)), cluster)  # (clusters,)
        kept_indices = tf.where(~is_dropped)[:, 0]
        codes, source, number = self._characters.replace(tf.boolean_mask(codes, ~is_dropped))
        # The characters of a result come from the cluster's one by one; the rest come from its last one.
        origin = tf.cast(tf.gather(kept_indices, source), tf.int32)  # (d,)
        limit = tf.where(tf.gather(is_replaced_cluster, origin), tf.gather(last, tf.gather(cluster, origin)), origin)
        return codes, tf.gather(place, tf.minimum(origin + number, limit)), tf.gather(part, origin)

    def _begins(self, codes: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
        """Return whether a grapheme cluster begins at each character, exact up to `MOST_BYTES`: bool (c,)."""
        kinds = tf.gather(self._kinds, tf.searchsorted(self._starts, codes, side="right") - 1)  # (c,)
        previous_kinds = shift(kinds, 1, PLAIN)
        continues_cluster = (kinds == EXTEND) & (previous_kinds != CONTROL) | (previous_kinds == PREPEND) & (
            kinds != CONTROL
        )
        return ~continues_cluster | (shift(part, 1, -1) != part)


graph_tokenizer.register(XlmRobertaTokenizer, XlmRobertaGraph)
