"""Merges of byte-pair encoding as TensorFlow ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from lmzoo.text.graphs.token_ops import lookup_table

_NO_MERGE = np.iinfo("int32").max  # rank of a pair that does not merge


class MergesGraph(tf.Module):
    """Merging of pairs of symbols within words, in order of priority.

    Args:
        ids: dict from tokens to ids.
        merges: pairs of tokens to merge, as strings "a b", highest priority first.
    """

    def __init__(self, ids: Mapping[str, int], merges: Sequence[str]) -> None:
        super().__init__()
        pairs = [merge.split(" ") for merge in merges]
        pair_ids = np.array([[ids[token] for token in pair] for pair in pairs], "int64").reshape(-1, 2)  # (merges, 2)
        self._size = max(ids.values()) + 1
        ranks = {a * self._size + b: rank for rank, (a, b) in enumerate(pair_ids.tolist())}
        self._ranks = lookup_table(ranks, tf.int64, _NO_MERGE)
        self._merged = np.array([ids["".join(pair)] for pair in pairs], "int32")  # (merges,)
        self._merges_first_only = _may_be_overtaken(pair_ids, self._merged)  # (merges,)

    def __call__(self, ids: tf.Tensor, word: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Merge symbols into tokens.

        Args:
            ids: int32 (s,), ids of the symbols of all words.
            word: int (s,), index of each symbol's word, non-decreasing.

        Returns:
            Ids of the p tokens, int32 (p,), and the index of each token's word, (p,).
        """
        ids, word, _ = tf.while_loop(
            lambda ids, word, ranks: tf.reduce_min(ranks) < _NO_MERGE,
            self._merge,
            [ids, word, self._look_up_ranks(tf.range(tf.size(ids)), ids, word)],
            shape_invariants=[tf.TensorShape([None])] * 3,
        )
        return ids, word

    def _merge(self, ids: tf.Tensor, word: tf.Tensor, ranks: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Merge the pair with the lowest rank in each word, wherever it occurs.

        Overlapping pairs are merged from left to right. A merge that `_may_be_overtaken` marks is applied only
        where it occurs first.

        Args:
            ids: int32 (s,), ids of the symbols of all words.
            word: int (s,), index of each symbol's word, non-decreasing.
            ranks: int32 (s,), rank of each symbol's pair with the next symbol.

        Returns:
            `ids`, `word` and `ranks` after the merge.
        """
        best_rank = tf.gather(tf.math.segment_min(ranks, word), word)  # (s,)
        starts = tf.where((ranks == best_rank) & (ranks < _NO_MERGE))[:, 0]  # (h,)
        # Adjacent pairs overlap, as in "aaaa": only every second pair of such a run merges.
        begins_run = tf.concat([[True], starts[1:] != starts[:-1] + 1], axis=0)[: tf.size(starts)]  # (h,)
        run_indices = tf.cumsum(tf.cast(begins_run, tf.int32)) - 1
        is_merged = (starts - tf.gather(tf.boolean_mask(starts, begins_run), run_indices)) % 2 == 0
        if self._merges_first_only.any():
            pair_words = tf.gather(word, starts)
            is_first_in_word = tf.concat([[True], pair_words[1:] != pair_words[:-1]], axis=0)[: tf.size(starts)]
            is_merged &= is_first_in_word | ~tf.gather(self._merges_first_only, tf.gather(ranks, starts))
        starts = tf.boolean_mask(starts, is_merged)  # (m,)
        ids = tf.tensor_scatter_nd_update(ids, starts[:, None], tf.gather(self._merged, tf.gather(ranks, starts)))
        is_kept = tf.tensor_scatter_nd_update(
            tf.ones_like(ids, tf.bool), starts[:, None] + 1, tf.zeros_like(starts, tf.bool)
        )
        ids, word, ranks = (tf.boolean_mask(values, is_kept) for values in (ids, word, ranks))
        starts = tf.cast(starts, tf.int32) - tf.range(tf.size(starts))  # indices after the merge
        changed_indices = tf.concat([starts, tf.maximum(starts - 1, 0)], axis=0)
        ranks = tf.tensor_scatter_nd_update(
            ranks, changed_indices[:, None], self._look_up_ranks(changed_indices, ids, word)
        )
        return ids, word, ranks

    def _look_up_ranks(self, places: tf.Tensor, ids: tf.Tensor, word: tf.Tensor) -> tf.Tensor:
        """Return the rank of the pair at each index in `places`, or `_NO_MERGE` if it does not merge: int32 (p,)."""
        next_places = tf.minimum(places + 1, tf.size(ids) - 1)
        pairs = tf.cast(tf.gather(ids, places), tf.int64) * self._size + tf.cast(tf.gather(ids, next_places), tf.int64)
        is_pair = (tf.gather(word, places) == tf.gather(word, next_places)) & (next_places > places)
        return tf.where(is_pair, self._ranks.lookup(pairs), _NO_MERGE)


def _may_be_overtaken(part_ids: np.ndarray, merged_ids: np.ndarray) -> np.ndarray:
    """Return whether each merge produces a symbol that is a part of an earlier merge in the list: bool (merges,).

    Such a merge applies only to the first pair in a word before the ranks are looked up again. Trainers do not produce
    such merges.
    """
    ranks = np.arange(len(merged_ids))
    first_ranks = np.full(max(part_ids.max(initial=0), merged_ids.max(initial=0)) + 1, len(merged_ids))
    np.minimum.at(first_ranks, part_ids, ranks[:, None])
    return first_ranks[merged_ids] < ranks
