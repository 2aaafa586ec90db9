"""Cleaning rules of SentencePiece models as TensorFlow ops, and lookup tables of replacements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from lmzoo.text.graphs.token_ops import EDGE, repeat, shift, size_in_bytes
from lmzoo.text.tokenizers.precompiled_rules import (
    CONTROL,
    EXTEND,
    MOST_BYTES,
    PLAIN,
    PREPEND,
    PrecompiledRules,
    character_kinds,
)

_FIRST_PAIR_CODE = EDGE + 1  # first of the numbers that represent pairs of characters


class PrecompiledRulesGraph(tf.Module):
    """The rules of a SentencePiece model as TensorFlow ops, with the results of `PrecompiledRules`.

    Args:
        rules: `PrecompiledRules` of the model.
        whitespace: bool, whether whitespace becomes a space.
    """

    def __init__(self, rules: PrecompiledRules, whitespace: bool) -> None:
        super().__init__()
        self._sources = np.array(sorted(map(ord, rules.sources)) or [EDGE], "int32")  # (s,)
        keys_and_numbers = [
            (ord(pair[0]) * EDGE + ord(pair[1]), pair_number)
            for pair_number, pair in enumerate(rules.pair_replacements)
        ]
        keys, pair_numbers = zip(*sorted(keys_and_numbers or [(-1, 0)]), strict=True)
        self._pair_keys = np.array(keys, "int64")  # (p,)
        self._pair_numbers = np.array(pair_numbers, "int32") + _FIRST_PAIR_CODE  # (p,)
        self._starts, self._kinds = character_kinds()
        replacements = rules.character_replacements if whitespace else rules.exact_replacements
        changes = {ord(source): result for source, result in replacements.items() if source != result}
        changes |= dict(enumerate(rules.pair_replacements.values(), _FIRST_PAIR_CODE))
        self._characters = Expansion({code: [(ord(c),) for c in result] for code, result in changes.items()})

    def __call__(self, codes: tf.Tensor, place: tf.Tensor, part: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Replace characters, or short grapheme clusters as a whole.

        Args:
            codes: int32 (c,), characters of all texts.
            place: int32 (c, 2), offsets of each character's origin.
            part: int (c,), index of the text of each character, non-decreasing.

        Returns:
            The characters after replacement, with their offsets and the indices of their texts, in the same form.
        """
        begins_cluster = self._begins(codes, part)  # (c,)
        cluster_indices = tf.cumsum(tf.cast(begins_cluster, tf.int32)) - 1  # (c,)
        is_short = tf.gather(tf.math.segment_sum(size_in_bytes(codes), cluster_indices) <= MOST_BYTES, cluster_indices)
        begins_short_cluster = begins_cluster & ~shift(begins_cluster, -1, True) & is_short  # (c,)
        pair_keys = tf.cast(codes, tf.int64) * EDGE + tf.cast(shift(codes, -1, 0), tf.int64)  # (c,)
        is_single, _ = find(self._sources, codes)
        is_pair, pair_indices = find(self._pair_keys, pair_keys)
        codes = tf.where(
            begins_short_cluster & is_pair & ~is_single, tf.gather(self._pair_numbers, pair_indices), codes
        )
        is_replaced_cluster = begins_short_cluster & (is_single | is_pair)  # (c,)
        is_dropped = (
            tf.gather(tf.boolean_mask(is_replaced_cluster, begins_cluster), cluster_indices) & ~begins_cluster
        )  # (c,)
        last_indices = tf.math.segment_max(tf.range(tf.size(codes)), cluster_indices)  # (clusters,)
        kept_indices = tf.where(~is_dropped)[:, 0]
        codes, kept_origins, result_indices = self._characters.replace(tf.boolean_mask(codes, ~is_dropped))
        # The characters of a result come from the cluster's characters one by one; the rest come from the last of them.
        origins = tf.cast(tf.gather(kept_indices, kept_origins), tf.int32)  # (d,)
        last_origins = tf.where(
            tf.gather(is_replaced_cluster, origins),
            tf.gather(last_indices, tf.gather(cluster_indices, origins)),
            origins,
        )
        return codes, tf.gather(place, tf.minimum(origins + result_indices, last_origins)), tf.gather(part, origins)

    def _begins(self, codes: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
        """Return whether a grapheme cluster begins at each character: bool (c,).

        The result is exact for clusters of up to `MOST_BYTES` bytes.
        """
        kinds = tf.gather(self._kinds, tf.searchsorted(self._starts, codes, side="right") - 1)  # (c,)
        previous_kinds = shift(kinds, 1, PLAIN)
        continues_cluster = (kinds == EXTEND) & (previous_kinds != CONTROL) | (previous_kinds == PREPEND) & (
            kinds != CONTROL
        )
        return ~continues_cluster | (shift(part, 1, -1) != part)


class Expansion(tf.Module):
    """Lookup table from integers to lists of rows of k integers.

    Args:
        changes: dict from integers to lists of rows, each a tuple of k integers.

    Attributes:
        values: int32 (r, k), the rows of all lists, in ascending order of the integers.
    """

    def __init__(self, changes: Mapping[int, Sequence[tuple[int, ...]]]) -> None:
        super().__init__()
        keys = sorted(changes)
        rows = [row for key in keys for row in changes[key]]
        self.values = np.array(rows or [(0, 0, 0)], "int32")  # (r, k)
        self._keys = np.array(keys or [EDGE], "int32")
        self._lengths = np.array([len(changes[key]) for key in keys] or [1], "int32")
        self._begins = np.cumsum(self._lengths) - self._lengths

    def __call__(self, integers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Look up integers, int32 (c,).

        Returns:
            For each of the d results, the index of the integer that it comes from, int32 (d,), and the index of its row
            in `values`, int32 (d,), or -1 for an integer without an entry.
        """
        has_entry, key_indices = find(self._keys, integers)  # (c,)
        lengths = tf.where(has_entry, tf.gather(self._lengths, key_indices), 1)  # (c,)
        begins = tf.where(has_entry, tf.cast(tf.gather(self._begins, key_indices), tf.int32), -1)  # (c,)
        origins = repeat(tf.range(tf.size(integers)), lengths)  # (d,)
        return origins, tf.ragged.range(begins, begins + lengths).values

    def replace(self, codes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Replace code points, int32 (c,), by the first integers of their rows; keep code points without an entry.

        Returns:
            The results, int32 (d,); the index of each result's origin, int32 (d,); and the index of each result among
            the results with the same origin, int32 (d,).
        """
        origins, entries = self(codes)
        results = tf.where(
            entries >= 0, tf.gather(self.values[:, 0], tf.maximum(entries, 0)), tf.gather(codes, origins)
        )
        follows = shift(origins, 1, -1) == origins  # (d,)
        result_indices = tf.range(tf.size(origins))
        first_indices = tf.boolean_mask(result_indices, ~follows)  # (firsts,)
        return results, origins, result_indices - tf.gather(first_indices, tf.cumsum(tf.cast(~follows, tf.int32)) - 1)


def find(keys: np.ndarray, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return whether each value is among the sorted `keys`, bool (c,), and the index of its key, int32 (c,).

    The index of a value that is not among the keys is arbitrary.
    """
    indices = tf.minimum(tf.searchsorted(keys, values), len(keys) - 1)
    return tf.gather(keys, indices) == values, indices
