"""Unicode's normalization form C as TensorFlow ops.

The tables are determined by running `tokenizers` on every code point, so that they always follow its version of
Unicode. The normalization of TensorFlow Text follows another version, and sorts marks that `tokenizers` does not know.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from lmzoo.text.graphs.token_ops import EDGE, compute_row_indices
from lmzoo.text.graphs.unicode_map import code_points, ranked_marks, to_codes, to_text

_SEPARATOR = 0x30  # "0", which no character becomes
_NO_CHARACTER = -1
_UNIT = 1 << 21  # more than any code point


class CompositionTables(NamedTuple):
    """Decompositions of characters, ranks of combining marks, and composed pairs.

    Attributes:
        characters: int32 (d,), code points that are decomposed, in ascending order.
        parts: int32 (d, W), the decomposition of each character, padded with -1.
        marks: int32 (m,), the combining marks, in ascending order.
        ranks: int32 (m,), rank of each mark, from 1; adjacent marks are sorted by rank.
        pairs: int64 (p,), keys of pairs that are composed, in ascending order: the first code point times 2^21, plus
            the second.
        composed: int32 (p,), the composition of each pair.
        seconds: int32 (s,), the second characters of `pairs` that are not marks, in ascending order.
    """

    characters: np.ndarray
    parts: np.ndarray
    marks: np.ndarray
    ranks: np.ndarray
    pairs: np.ndarray
    composed: np.ndarray
    seconds: np.ndarray


@functools.lru_cache(maxsize=1)
def composition_tables() -> CompositionTables:
    """Return the composition tables of the installed `tokenizers`.

    The first call takes about a second; later calls return the same tables.

    Example:

    ```python
    from lmzoo.text.graphs.composition import composition_tables

    tables = composition_tables()
    row = tables.characters.searchsorted(ord("é"))
    tables.parts[row, :2]  # [101, 769]: "e" and an accent
    ```
    """
    from tokenizers import normalizers

    decompose = normalizers.NFD().normalize_str
    compose = normalizers.NFC().normalize_str
    codes = code_points()
    codes = codes[codes != _SEPARATOR]
    decomposed_codes = to_codes(
        decompose(to_text(np.stack([codes, np.full_like(codes, _SEPARATOR)], axis=1).reshape(-1)))
    )
    ends = np.flatnonzero(decomposed_codes == _SEPARATOR)
    lengths = np.diff(ends, prepend=-1) - 1
    decomposed_indices = np.flatnonzero((lengths != 1) | (decomposed_codes[ends - lengths] != codes))
    decompositions = [(codes[i], decomposed_codes[ends[i] - lengths[i] : ends[i]]) for i in decomposed_indices]
    width = max(len(parts) for _, parts in decompositions)
    padded_parts = np.full((len(decompositions), width), _NO_CHARACTER, "int32")
    for row, (_, parts) in enumerate(decompositions):
        padded_parts[row, : len(parts)] = parts
    marks, ranks = ranked_marks(np.setdiff1d(codes, [code for code, _ in decompositions]))
    pairs = _find_compositions([parts for _, parts in decompositions if len(parts) > 1], compose)
    seconds = np.setdiff1d(np.array(list(pairs)) % _UNIT, marks)
    keys = np.array(sorted(pairs), "int64")
    return CompositionTables(
        np.array([code for code, _ in decompositions], "int32"),
        padded_parts,
        marks.astype("int32"),
        ranks.astype("int32"),
        keys,
        np.array([pairs[key] for key in keys], "int32"),
        seconds.astype("int32"),
    )


def _split_at_separators(text: str) -> list[np.ndarray]:
    """Split a text at the separators, and return the code points of each part."""
    codes = to_codes(text)
    ends = np.flatnonzero(codes == _SEPARATOR)
    return [part[part != _SEPARATOR] for part in np.split(codes, ends)[:-1]]


def _find_compositions(decompositions: list[np.ndarray], compose: Callable[[str], str]) -> dict[int, int]:
    """Return the composition of each pair of code points, in a dict with the keys of `CompositionTables.pairs`.

    Args:
        decompositions: arrays of at least two code points, the decompositions of characters.
        compose: function that composes the characters of a text.
    """
    prefix_text = "0".join(to_text(parts[:-1]) for parts in decompositions) + "0"
    pairs = {}
    composed_prefixes = _split_at_separators(compose(prefix_text))
    composed_parts = _split_at_separators(compose("0".join(map(to_text, decompositions)) + "0"))
    for parts, prefix_codes, composed_codes in zip(decompositions, composed_prefixes, composed_parts, strict=True):
        if len(prefix_codes) == len(composed_codes) == 1:
            pairs[int(prefix_codes[0]) * _UNIT + int(parts[-1])] = int(composed_codes[0])
    return pairs


class Composition(tf.Module):
    """Unicode's normalization form C as TensorFlow ops (Unicode Standard Annex 15)."""

    def __init__(self) -> None:
        super().__init__()
        self._tables = composition_tables()

    def __call__(self, codes: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Decompose the characters of texts, sort their marks and compose them again.

        Args:
            codes: int32 (n, None), the code points of the texts.

        Returns:
            The c normalized code points, int32 (n, None), and the flat index in `codes` of the origin of each, int32
            (c,). As in `tokenizers`, the origin of a composed character is the origin of its first part.
        """
        # Characters below U+0300 neither change nor combine with the character before them.
        return tf.cond(
            tf.reduce_any(codes.values >= 0x300),
            lambda: self._normalize(codes),
            lambda: (codes, tf.range(tf.size(codes.values))),
        )

    def _normalize(self, codes: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        rows = compute_row_indices(codes)  # (c,)
        values, rows, num_consumed = self._decompose(codes.values, rows)  # (d,)
        ranks = self._ranks(values)
        # A group is a character and the marks after it, within one text.
        begins = (ranks == 0) | (rows != tf.concat([[-1], rows[:-1]], axis=0))
        order = tf.argsort(tf.cumsum(tf.cast(begins, tf.int64)) * _UNIT + tf.cast(ranks, tf.int64), stable=True)
        values, ranks, num_consumed = (tf.gather(x, order) for x in (values, ranks, num_consumed))
        values, num_consumed, is_kept = self._compose(values, ranks, rows, num_consumed)
        values, num_consumed, rows = (tf.boolean_mask(x, is_kept) for x in (values, num_consumed, rows))
        num_before = tf.cumsum(num_consumed, exclusive=True)  # number of original characters before each, in all texts
        origins = tf.where(num_consumed == 0, tf.maximum(num_before - 1, 0), num_before)
        return tf.RaggedTensor.from_value_rowids(values, rows, codes.nrows(), validate=False), origins

    def _decompose(self, values: tf.Tensor, row: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Decompose characters.

        Returns:
            Three tensors (d,) for d parts: their code points, int32; the rows of their texts, int64; and 1 for the
            first part of each character, else 0, int32.
        """
        tables = self._tables
        indices = tf.minimum(tf.searchsorted(tables.characters, values), len(tables.characters) - 1)  # (c,)
        is_decomposed = tf.gather(tables.characters, indices) == values
        unchanged_parts = tf.pad(
            values[:, None], [[0, 0], [0, tables.parts.shape[1] - 1]], constant_values=_NO_CHARACTER
        )
        parts = tf.where(is_decomposed[:, None], tf.gather(tables.parts, indices), unchanged_parts)  # (c, W)
        is_part = parts != _NO_CHARACTER
        is_first = tf.cast(tf.range(tables.parts.shape[1]) == 0, tf.int32)  # (W,)
        broadcast_values = (tf.broadcast_to(x, tf.shape(parts)) for x in (row[:, None], is_first[None]))
        return tf.boolean_mask(parts, is_part), *(tf.boolean_mask(x, is_part) for x in broadcast_values)

    def _ranks(self, values: tf.Tensor) -> tf.Tensor:
        """Return the rank of each character, 0 if it is not a mark: int32 (d,)."""
        marks, ranks = self._tables.marks, self._tables.ranks
        indices = tf.minimum(tf.searchsorted(marks, values), len(marks) - 1)  # (d,)
        return tf.where(tf.gather(marks, indices) == values, tf.gather(ranks, indices), 0)

    def _compose(
        self, values: tf.Tensor, ranks: tf.Tensor, row: tf.Tensor, num_consumed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Compose decomposed texts.

        A chain is a character and the characters after it that might be composed with it. Chains are independent, so
        step k composes the k-th characters of all chains.

        Returns:
            Code points, int32 (d,); the number of original characters in each, int32 (d,); and whether each is kept
            rather than merged into another, bool (d,).
        """
        seconds = self._tables.seconds
        indices = tf.minimum(tf.searchsorted(seconds, values), len(seconds) - 1)  # (d,)
        joins = (ranks > 0) | (tf.gather(seconds, indices) == values)
        joins &= row == tf.concat([[-1], row[:-1]], axis=0)
        starts = tf.where(~joins)[:, 0]  # (k,)
        ends = tf.concat([starts[1:], [tf.size(values, tf.int64)]], axis=0)
        is_longer = ends - starts > 1
        starts, ends = tf.boolean_mask(starts, is_longer), tf.boolean_mask(ends, is_longer)

        # State of each chain: index and code point of its base, the last character that is not a mark, and rank of its
        # last mark.
        base_codes = tf.where(tf.gather(ranks, starts) == 0, tf.gather(values, starts), EDGE)
        state = (
            tf.constant(1, tf.int64),
            values,
            num_consumed,
            tf.ones_like(row, tf.bool),
            starts,
            base_codes,
            tf.zeros_like(base_codes),
        )

        def has_more(step: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
            return tf.reduce_any(starts + step < ends)

        def compose(
            step: tf.Tensor, values: tf.Tensor, num_consumed: tf.Tensor, is_kept: tf.Tensor, base_indices: tf.Tensor,
            base_codes: tf.Tensor, last_ranks: tf.Tensor,
        ) -> tuple[tf.Tensor, ...]:  # fmt: skip
            is_open = starts + step < ends  # (k,)
            current_indices = tf.where(is_open, starts + step, starts)
            codes, current_ranks = tf.gather(values, current_indices), tf.gather(ranks, current_indices)
            is_pair, composed_codes = self._find(base_codes, codes)
            merges = is_open & is_pair & ((last_ranks == 0) | (last_ranks < current_ranks))
            values = tf.tensor_scatter_nd_update(
                values, tf.boolean_mask(base_indices, merges)[:, None], tf.boolean_mask(composed_codes, merges)
            )
            num_consumed = tf.tensor_scatter_nd_add(
                num_consumed,
                tf.boolean_mask(base_indices, merges)[:, None],
                tf.boolean_mask(tf.gather(num_consumed, current_indices), merges),
            )
            removed_indices = tf.boolean_mask(current_indices, merges)[:, None]
            is_kept = tf.tensor_scatter_nd_update(
                is_kept, removed_indices, tf.zeros_like(removed_indices[:, 0], tf.bool)
            )
            begins = is_open & ~merges & (current_ranks == 0)
            stays = is_open & ~merges & (current_ranks > 0)
            base_indices = tf.where(begins, current_indices, base_indices)
            base_codes = tf.where(merges, composed_codes, tf.where(begins, codes, base_codes))
            last_ranks = tf.where(begins, 0, tf.where(stays, current_ranks, last_ranks))
            return step + 1, values, num_consumed, is_kept, base_indices, base_codes, last_ranks

        _, values, num_consumed, is_kept, *_ = tf.while_loop(has_more, compose, state)
        return values, num_consumed, is_kept

    def _find(self, first: tf.Tensor, second: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return whether each of k pairs of characters has a composition, bool (k,), and the compositions, int32 (k,).

        The entry of a pair without a composition is arbitrary.
        """
        keys = tf.cast(first, tf.int64) * _UNIT + tf.cast(second, tf.int64)  # (k,)
        pairs = self._tables.pairs
        indices = tf.minimum(tf.searchsorted(pairs, keys), len(pairs) - 1)
        return tf.gather(pairs, indices) == keys, tf.gather(self._tables.composed, indices)
