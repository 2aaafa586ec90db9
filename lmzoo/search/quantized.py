"""Vectors stored as bytes or bits, and search among them."""

from __future__ import annotations

from typing import Any

import numpy as np

from lmzoo.common.arguments import is_integer, require
from lmzoo.search.index import VectorIndex
from lmzoo.search.nearest import (
    Vectors,
    check_queries,
    check_similarity,
    check_top_k,
    check_vectors,
    find_nearest,
    read_finite_blocks,
    rescore,
)

_INT8_STEPS = 255


class QuantizedIndex(VectorIndex):
    """Vectors quantized to bytes (`"int8"`, a quarter of float32's size) or bits (`"binary"`, 1/32 of its size).

    Bytes divide the range of each feature into 255 steps, and are dequantized for a search. Bits are the signs of the
    features; a search selects the vectors with the lowest Hamming distances to the query as candidates, and rescores
    them without quantizing the query. With `originals`, bytes also only select candidates, and all candidates are
    rescored with the exact vectors, which may be memory-mapped.

    Args:
        codes: int8 (n, H) or, for bits, uint8 (n, ⌈H / 8⌉), the n quantized vectors.
        width: int, width H of the vectors.
        ranges: float32 (2, H), the lowest and the highest value of each feature; None for bits.
        originals: numbers (n, H), the exact vectors to rescore candidates with; None to score by the codes.
        oversampling: int; `top_k * oversampling` candidates are rescored for each query.

    Raises:
        ValueError: If the shape or dtype of an array is wrong, or `ranges` or `oversampling` are invalid.

    Example:

    ```python
    import numpy as np
    from lmzoo.search import QuantizedIndex

    vectors = np.random.default_rng(0).normal(size=(1000, 64)).astype("float32")
    index = QuantizedIndex.quantize(vectors, "binary", originals=vectors)
    index.codes.nbytes  # 8000: vectors take 256000
    scores, indices = index.search(vectors[:2], top_k=3)
    indices[:, 0].tolist()  # [0, 1]
    ```
    """

    def __init__(
        self,
        codes: np.ndarray,
        width: int,
        ranges: np.ndarray | None = None,
        originals: Vectors | None = None,
        oversampling: int = 4,
    ) -> None:
        require(is_integer(oversampling, 1), "oversampling", "a positive integer", oversampling)
        expected_layout = ("uint8", -(-width // 8)) if ranges is None else ("int8", width)
        if codes.ndim != 2 or (codes.dtype.name, codes.shape[1]) != expected_layout:
            raise ValueError(
                f"`codes` must be {expected_layout[0]} (n, {expected_layout[1]}) for vectors of width {width}, got "
                f"{codes.dtype.name} {codes.shape}. Make them with `QuantizedIndex.quantize`."
            )
        if originals is not None and tuple(originals.shape) != (len(codes), width):
            raise ValueError(f"`originals` must have the shape ({len(codes)}, {width}), got {originals.shape}.")
        self.codes: np.ndarray = codes
        self.width: int = width
        self.ranges: np.ndarray | None = None if ranges is None else _check_ranges(ranges, width)
        self.originals: Vectors | None = originals
        self.oversampling: int = oversampling

    @classmethod
    def quantize(
        cls,
        vectors: Vectors,
        precision: str = "int8",
        ranges: np.ndarray | None = None,
        originals: Vectors | None = None,
        oversampling: int = 4,
    ) -> QuantizedIndex:
        """Quantize vectors, and return an index of them.

        Args:
            vectors: numbers (n, H), n vectors of width H; they may be memory-mapped.
            precision: `"int8"` or `"binary"`.
            ranges: numbers (2, H), the lowest and the highest value of each feature, for int8 only; by default, the
                values in `vectors`.
            originals: exact vectors to rescore candidates with, such as `vectors` if they are memory-mapped.
            oversampling: int; `top_k * oversampling` candidates are rescored for each query.

        Raises:
            ValueError: If a vector is not finite, another argument is invalid, or `ranges` are passed for bits.
        """
        require(precision in ("int8", "binary"), "precision", '"int8" or "binary"', precision)
        num_vectors, width = check_vectors(vectors)
        if precision == "binary":
            require(ranges is None, "ranges", 'None for "binary"', ranges)
            codes = np.empty((num_vectors, -(-width // 8)), "uint8")
            for start, block in read_finite_blocks(vectors):
                codes[start : start + len(block)] = np.packbits(block > 0, axis=1)
            return cls(codes, width, None, originals, oversampling)
        limits = _find_ranges(vectors) if ranges is None else _check_ranges(ranges, width)
        steps = _compute_steps(limits)
        codes = np.empty((num_vectors, width), "int8")
        for start, block in read_finite_blocks(vectors):
            codes[start : start + len(block)] = np.clip(np.floor((block - limits[0]) / steps), 0, _INT8_STEPS) - 128
        return cls(codes, width, limits, originals, oversampling)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of vectors and their width."""
        return len(self.codes), self.width

    def __getitem__(self, rows: Any, /) -> np.ndarray:
        """Return the dequantized vectors at `rows`, float32; bits become 1 and -1."""
        codes = self.codes[rows]
        if self.ranges is None:
            return np.unpackbits(codes, axis=-1, count=self.width).astype("float32") * 2 - 1
        middle = (self.ranges[1] - self.ranges[0]) / np.float32(2 * _INT8_STEPS)  # of a step; 0 for a constant feature
        return self.ranges[0] + middle + (codes.astype("float32") + 128) * _compute_steps(self.ranges)

    def search(self, queries: np.ndarray, top_k: int, similarity: str = "cosine") -> tuple[np.ndarray, np.ndarray]:
        check_similarity(similarity)
        check_top_k(top_k, len(self))
        query_vectors = check_queries(queries, self.width)
        if self.ranges is not None and self.originals is None:
            return find_nearest(query_vectors, self, top_k, similarity)
        num_candidates = min(top_k * self.oversampling, len(self))
        if self.ranges is None:
            _, candidates = find_nearest_bits(np.packbits(query_vectors > 0, axis=1), self.codes, num_candidates)
        else:
            _, candidates = find_nearest(query_vectors, self, num_candidates, similarity)
        return rescore(query_vectors, self if self.originals is None else self.originals, candidates, top_k, similarity)


def find_nearest_bits(queries: np.ndarray, codes: np.ndarray, top_k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the Hamming distances and the indices of the codes that are nearest to each query.

    Args:
        queries: uint8 (q, b), the bits of each of q queries in b bytes.
        codes: uint8 (n, b), the bits of each of n vectors.
        top_k: int, number of codes to return for each query.

    Returns:
        Distances, ascending, and indices, int64 (q, top_k) each; equal distances are ordered by index.
    """
    distances = np.empty((len(queries), top_k), "int64")
    indices = np.empty((len(queries), top_k), "int64")
    for row, query in enumerate(queries):
        differences = _count_bits(codes ^ query)  # (n,)
        threshold = np.partition(differences, top_k - 1)[top_k - 1]
        candidates = np.flatnonzero(differences <= threshold)
        order = np.argsort(differences[candidates], kind="stable")[:top_k]
        indices[row] = candidates[order]
        distances[row] = differences[indices[row]]
    return distances, indices


_BIT_COUNTS = np.unpackbits(np.arange(256, dtype="uint8")[:, None], axis=1).sum(axis=1, dtype="uint8")


def _count_bits(codes: np.ndarray) -> np.ndarray:
    """Return the number of bits that are 1 in each of n rows of bytes, int (n,)."""
    counts = np.bitwise_count(codes) if hasattr(np, "bitwise_count") else _BIT_COUNTS[codes]  # new in NumPy 2
    return counts.sum(axis=1, dtype="int32")


def _find_ranges(vectors: Vectors) -> np.ndarray:
    """Return the lowest and the highest value of each of H features, float32 (2, H)."""
    block_minima = []
    block_maxima = []
    for _, block in read_finite_blocks(vectors):
        block_minima.append(block.min(axis=0))
        block_maxima.append(block.max(axis=0))
    return np.stack([np.min(block_minima, axis=0), np.max(block_maxima, axis=0)])


def _check_ranges(ranges: Any, width: int) -> np.ndarray:
    """Check the lowest and the highest value of each feature, and return them as float32 (2, width).

    Raises:
        ValueError: If `ranges` has another shape, a value is not finite, or a lowest value is above the highest.
    """
    try:
        limits = np.asarray(ranges, "float32")
    except (TypeError, ValueError):
        raise ValueError(f"`ranges` must be numbers of the shape (2, {width}), got {ranges!r:.60}.") from None
    if limits.shape != (2, width):
        raise ValueError(f"`ranges` must have the shape (2, {width}), got {limits.shape}.")
    is_valid = np.isfinite(limits).all() and (limits[0] <= limits[1]).all()
    require(is_valid, "ranges", "finite numbers, the lowest and the highest value of each feature", ranges)
    return limits


def _compute_steps(ranges: np.ndarray) -> np.ndarray:
    """Return the step size of each of H features, float32 (H,); 1 for a constant feature."""
    steps = (ranges[1] - ranges[0]) / np.float32(_INT8_STEPS)
    return np.where(steps == 0, np.float32(1), steps)
