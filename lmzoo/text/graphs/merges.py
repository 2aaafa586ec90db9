"""The merges of byte-pair encoding as TensorFlow ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from lmzoo.text.graphs.token_ops import lookup_table

_NEVER = np.iinfo("int32").max  # the rank of a pair that does not merge


class MergesGraph(tf.Module):
    """Merges of pairs of symbols within words, the most important ones first.

    Args:
        ids: token -> id.
        merges: pairs of tokens to join, "a b", most important first.
    """

    def __init__(self, ids: Mapping[str, int], merges: Sequence[str]) -> None:
        super().__init__()
        pairs = [merge.split(" ") for merge in merges]
        parts = np.array([[ids[token] for token in pair] for pair in pairs], "int64").reshape(-1, 2)  # (merges, 2)
        self._size = max(ids.values()) + 1
        ranks = {a * self._size + b: rank for rank, (a, b) in enumerate(parts.tolist())}
        self._ranks = lookup_table(ranks, tf.int64, _NEVER)
        self._merged = np.array([ids["".join(pair)] for pair in pairs], "int32")  # (merges,)
        self._alone = _may_be_overtaken(parts, self._merged)  # (merges,)

    def __call__(self, ids: tf.Tensor, word: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the tokens of symbols.

        Args:
            ids: int32 (s,), the symbols of all words.
            word: int (s,), the index of each symbol's word, rising.

        Returns:
            The same of the tokens, (p,).
        """
        ids, word, _ = tf.while_loop(
            lambda ids, word, ranks: tf.reduce_min(ranks) < _NEVER,
            self._merge,
            [ids, word, self._ranks_at(tf.range(tf.size(ids)), ids, word)],
            shape_invariants=[tf.TensorShape([None])] * 3,
        )
        return ids, word

    def _merge(self, ids: tf.Tensor, word: tf.Tensor, ranks: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Merge the pair of the lowest rank in every word, everywhere it occurs.

        All arguments are int32 (s,): symbols of all words, the index of each symbol's word, rising, and the rank of
        each symbol's pair with the next one.
        """
        best = tf.gather(tf.math.segment_min(ranks, word), word)  # (s,)
        left = tf.where((ranks == best) & (ranks < _NEVER))[:, 0]  # (h,)
        # In "aaaa" the pairs overlap: every second one of adjacent pairs merges.
        opens = tf.concat([[True], left[1:] != left[:-1] + 1], axis=0)[: tf.size(left)]  # (h,)
        run = tf.cumsum(tf.cast(opens, tf.int32)) - 1
        chosen = (left - tf.gather(tf.boolean_mask(left, opens), run)) % 2 == 0
        if self._alone.any():
            owner = tf.gather(word, left)
            leads = tf.concat([[True], owner[1:] != owner[:-1]], axis=0)[: tf.size(left)]
            chosen &= leads | ~tf.gather(self._alone, tf.gather(ranks, left))
        left = tf.boolean_mask(left, chosen)  # (m,)
        ids = tf.tensor_scatter_nd_update(ids, left[:, None], tf.gather(self._merged, tf.gather(ranks, left)))
        keep = tf.tensor_scatter_nd_update(tf.ones_like(ids, tf.bool), left[:, None] + 1, tf.zeros_like(left, tf.bool))
        ids, word, ranks = (tf.boolean_mask(values, keep) for values in (ids, word, ranks))
        left = tf.cast(left, tf.int32) - tf.range(tf.size(left))  # where they are now
        changed = tf.concat([left, tf.maximum(left - 1, 0)], axis=0)
        ranks = tf.tensor_scatter_nd_update(ranks, changed[:, None], self._ranks_at(changed, ids, word))
        return ids, word, ranks

    def _ranks_at(self, places: tf.Tensor, ids: tf.Tensor, word: tf.Tensor) -> tf.Tensor:
        """Return the rank of the pair that begins at each of `places`, int32 (p,); see `_merge`."""
        second = tf.minimum(places + 1, tf.size(ids) - 1)
        pairs = tf.cast(tf.gather(ids, places), tf.int64) * self._size + tf.cast(tf.gather(ids, second), tf.int64)
        same = (tf.gather(word, places) == tf.gather(word, second)) & (second > places)
        return tf.where(same, self._ranks.lookup(pairs), _NEVER)


def _may_be_overtaken(parts: np.ndarray, merged: np.ndarray) -> np.ndarray:
    """Return bool (merges,): whether a merge may produce a symbol whose own merge comes earlier in the list.

    Then only the first of equal pairs merges before the ranks are looked up again. Trainers do not write such lists.
    """
    ranks = np.arange(len(merged))
    first_use = np.full(max(parts.max(initial=0), merged.max(initial=0)) + 1, len(merged))
    np.minimum.at(first_use, parts, ranks[:, None])
    return first_use[merged] < ranks
