"""Exact search for the nearest vectors, block by block, so that the corpus may be larger than memory."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from typing import Any, NotRequired, Protocol, TypedDict

import numpy as np

from lmzoo.common.arguments import is_integer, is_number, require
from lmzoo.common.progress import progress_bar
from lmzoo.errors import ArgumentError

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
_DEFAULT_TOP_K = 10
_BLOCK_VALUES = 1 << 22  # numbers in a block of vectors: 16 MiB in float32
_QUERY_GROUP = 256  # queries compared with a block at a time, which bounds the matrix of scores
_MIN_NORM = 1e-12  # a vector of zeros gets the cosine 0


class Hit(TypedDict):
    """An entry of a ranking: the index of a vector or text, its score, and the text itself if texts were passed.

    Example: see `lmzoo.search.search_vectors`.
    """

    index: int
    text: NotRequired[str]
    score: float


class Vectors(Protocol):
    """Vectors whose rows can be read by a slice or an array of indices, such as a NumPy array (n, H)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of vectors and their width."""

    def __getitem__(self, rows: Any, /) -> np.ndarray:
        """Return the vectors at `rows`, a slice or an integer array."""


def is_vectors(value: Any) -> bool:
    """Return whether a value is a matrix of numbers from NumPy, JAX or TensorFlow; bfloat16 is included."""
    kind = str(getattr(getattr(value, "dtype", None), "name", "")).rstrip("0123456789")
    return kind in ("float", "bfloat", "int", "uint") and hasattr(value, "__array__") and value.ndim == 2


def check_not_lists(name: str, value: Any) -> None:
    """Check that vectors are not lists of numbers, which could be mistaken for texts.

    Raises:
        ValueError: If `value`, the argument `name`, is a list whose first entry is a list of numbers.
    """
    first_entry = value[0] if isinstance(value, (list, tuple)) and value else None
    holds_numbers = (
        isinstance(first_entry, (list, tuple, np.ndarray)) and len(first_entry) > 0 and is_number(first_entry[0])
    )
    require(not holds_numbers, name, "an array if it holds vectors", value, f"Pass `np.array({name})`.")


def check_vectors(vectors: Any) -> tuple[int, int]:
    """Check the argument `vectors`, and return the number of vectors and their width.

    Raises:
        ValueError: If `vectors` is not a matrix with at least one row and one column, or is a NumPy array whose entries
            are not numbers.
    """
    is_array = is_vectors(vectors) if isinstance(vectors, np.ndarray) else len(getattr(vectors, "shape", ())) == 2
    require(is_array, "vectors", "an array (n, H) of numbers", vectors)
    num_vectors, width = vectors.shape
    if not num_vectors:
        raise ArgumentError("`vectors` is empty: pass at least one vector.", "vectors")
    require(width, "vectors", "of a width of at least 1", width)
    return num_vectors, width


def check_top_k(top_k: int | None, count: int, name: str = "corpus") -> int:
    """Check `top_k`, the number of entries to return from a corpus, and return it or, for None, its default.

    Args:
        top_k: number of entries to return; None for 10, or all of a smaller corpus.
        count: int, number of entries in the corpus.
        name: name of the argument for the corpus, for messages.

    Raises:
        ValueError: If the corpus is empty, or `top_k` is neither None nor an integer from 1 to `count`.
    """
    if not count:
        raise ArgumentError(f"`{name}` is empty: pass at least one entry.", name)
    if top_k is None:
        return min(_DEFAULT_TOP_K, count)
    require(is_integer(top_k, 1, count), "top_k", f"an integer from 1 to {count}, the size of `{name}`", top_k)
    return int(top_k)


def check_similarity(similarity: str) -> None:
    """Check the name of a similarity.

    Raises:
        ValueError: If the name is unknown.
    """
    require(similarity in SIMILARITIES, "similarity", " or ".join(f'"{name}"' for name in SIMILARITIES), similarity)


def check_queries(queries: Any, width: int) -> np.ndarray:
    """Check the vectors of q queries, and return them as float32 (q, width).

    Raises:
        ValueError: If `queries` is not an array (q, width) of finite numbers.
    """
    try:
        array = np.asarray(queries, "float32")
    except (TypeError, ValueError):
        raise ValueError(f"`queries` must be vectors (q, H) of numbers, got {queries!r:.60}.") from None
    if array.ndim != 2 or array.shape[1] != width:
        raise ValueError(f"The corpus has vectors of width {width}, but the queries have the shape {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError("A vector of the queries holds NaN or infinity.")
    return array


def find_nearest(
    queries: np.ndarray, vectors: Vectors, top_k: int, similarity: str = "cosine"
) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores and the indices of the `top_k` vectors most similar to each query, best first.

    Equal scores are ordered by index. Vectors are read once, in blocks of 16 MiB; the pages of memory-mapped vectors
    are released after each block.

    Args:
        queries: numbers (q, H), the vectors of q queries.
        vectors: numbers (n, H), the n vectors to search in.
        top_k: int, number of vectors to return for each query, from 1 to n.
        similarity: `"cosine"` or `"dot"`; or `"euclidean"` or `"manhattan"`, whose scores are negative distances.

    Returns:
        Scores, float32 (q, top_k), and indices, int64 (q, top_k).

    Raises:
        ValueError: If an argument is invalid, or a vector is not finite; the message then names its block.
    """
    num_vectors, width = vectors.shape
    check_similarity(similarity)
    check_top_k(top_k, num_vectors)
    prepared_queries = prepare(check_queries(queries, width), similarity)
    best_scores = _BestScores(len(prepared_queries), top_k)
    for start, block in read_blocks(vectors, "Searching"):
        prepared_block = prepare(block, similarity)
        for first_query in range(0, len(prepared_queries), _QUERY_GROUP):
            scores = _compare(prepared_queries[first_query : first_query + _QUERY_GROUP], prepared_block, similarity)
            check_finite(scores, start, start + len(block) - 1)
            best_scores.update(first_query, scores, start)
    return best_scores.scores, best_scores.indices


def similarities(queries: np.ndarray, vectors: np.ndarray, similarity: str) -> np.ndarray:
    """Return the similarities, float32 (q, n), of q queries to n vectors."""
    return _compare(prepare(queries, similarity), prepare(vectors, similarity), similarity)


def rescore(
    queries: np.ndarray, vectors: Vectors, candidates: np.ndarray, top_k: int, similarity: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact scores and the indices of each query's `top_k` best candidates, both (q, top_k), best first.

    Args:
        queries: float32 (q, H), the vectors of q queries.
        vectors: numbers (n, H), the vectors of the corpus.
        candidates: int64 (q, c), indices of c candidates for each query, where c is at least `top_k`.
        top_k: int, number of candidates to return for each query.
        similarity: see `find_nearest`.

    Raises:
        ValueError: If the vector of a candidate is not finite; the message gives its index.
    """
    best_scores = _BestScores(len(queries), top_k)
    for row, indices in enumerate(np.sort(candidates, axis=1)):
        scores = similarities(queries[row : row + 1], np.asarray(vectors[indices], "float32"), similarity)  # (1, c)
        if not (is_finite := np.isfinite(scores[0])).all():
            raise ValueError(f"The vector {indices[is_finite.argmin()]} of the corpus holds NaN or infinity.")
        best_scores.update(row, scores)
        best_scores.indices[row] = indices[best_scores.indices[row]]
    return best_scores.scores, best_scores.indices


def as_hits(scores: np.ndarray, indices: np.ndarray, texts: Sequence[str] | None = None) -> list[list[Hit]]:
    """Return rankings as lists of dicts, one list per query.

    Args:
        scores: float (q, k), scores of the k best entries for each of q queries, best first.
        indices: int (q, k), indices of these entries in the corpus; entries with the index -1 are left out.
        texts: the texts of the corpus, or None.
    """
    return [
        [_make_hit(index, score, texts) for index, score in zip(*row, strict=True) if index >= 0]
        for row in zip(indices.tolist(), scores.tolist(), strict=True)
    ]


def _make_hit(index: int, score: float, texts: Sequence[str] | None) -> Hit:
    """Return an entry of a ranking, with its text unless `texts` is None."""
    if texts is None:
        return {"index": index, "score": score}
    return {"index": index, "text": texts[index], "score": score}


class _BestScores:
    """The highest scores of each query so far, with the indices of their vectors.

    Attributes:
        scores: float32 (q, k), the k highest scores of each of q queries, descending.
        indices: int64 (q, k), the indices of the vectors with these scores.
    """

    def __init__(self, num_queries: int, top_k: int) -> None:
        self.scores = np.full((num_queries, top_k), -np.inf, "float32")
        self.indices = np.zeros((num_queries, top_k), "int64")

    def update(self, first: int, scores: np.ndarray, start: int = 0) -> None:
        """Merge the scores of consecutive queries and a block of vectors into the highest scores.

        Args:
            first: index of the first query.
            scores: float (m, b), scores of m queries and b vectors.
            start: index of the first vector; calls must be in ascending order of `start`.
        """
        top_k = self.scores.shape[1]
        for row, query_scores in enumerate(scores, first):
            # A later vector with the same score ranks below the earlier one, so only higher scores change the ranking.
            candidates = np.flatnonzero(query_scores > self.scores[row, -1])
            if len(candidates) > top_k:
                threshold = np.partition(query_scores[candidates], -top_k)[-top_k]
                candidates = candidates[query_scores[candidates] >= threshold]
            if not len(candidates):
                continue
            merged_scores = np.concatenate([self.scores[row], query_scores[candidates]])
            merged_indices = np.concatenate([self.indices[row], candidates + start])
            order = np.argsort(-merged_scores, kind="stable")[:top_k]
            self.scores[row] = merged_scores[order]
            self.indices[row] = merged_indices[order]


def read_blocks(vectors: Vectors, work: str = "") -> Iterator[tuple[int, np.ndarray]]:
    """Yield `(start, block)` for each block of 16 MiB: the index of its first vector, and its vectors.

    Args:
        vectors: numbers (n, H), n vectors of width H; only one block of a memory-mapped file is in the process's memory
            at a time.
        work: name of the work for a progress bar, or "" for none.

    Yields:
        `start`, int, and `block`, float32 (b, H), which holds b vectors.
    """
    num_vectors, width = vectors.shape
    block_rows = max(1, _BLOCK_VALUES // width)
    with progress_bar(work, num_vectors, "vectors", show=bool(work)) as advance:
        for start in range(0, num_vectors, block_rows):
            block = np.array(vectors[start : start + block_rows], "float32")
            _release(vectors)
            yield start, block
            advance(len(block))


def read_finite_blocks(vectors: Vectors, work: str = "") -> Iterator[tuple[int, np.ndarray]]:
    """Yield the blocks of `read_blocks`, checking that the vectors of each block are finite before it is yielded.

    Raises:
        ValueError: If a vector is not finite; the message names its block.
    """
    for start, block in read_blocks(vectors, work):
        check_finite(block, start, start + len(block) - 1)
        yield start, block


def check_finite(values: np.ndarray, first: int, last: int) -> None:
    """Check that `values`, the vectors `first` to `last` of the corpus or their scores, are finite.

    Raises:
        ValueError: If a value is not finite.
    """
    if not np.isfinite(values).all():
        raise ValueError(f"A vector among {first} to {last} of the corpus holds NaN or infinity.")


def _release(vectors: Any) -> None:
    """Release the pages of memory-mapped vectors from the process's memory; they stay in the page cache.

    Other vectors, and vectors mapped with mode "c", are left as they are.
    """
    if not isinstance(vectors, np.memmap) or vectors.mode == "c":  # changes in mode "c" are only in memory
        return
    base: Any = vectors
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def prepare(vectors: np.ndarray, similarity: str) -> np.ndarray:
    """Scale vectors to unit length for cosines; return them unchanged for other similarities."""
    if similarity != "cosine":
        return vectors
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    extreme_rows = np.flatnonzero((norms < _MIN_NORM) | (norms == np.inf))
    if len(extreme_rows):  # sums of their squares may underflow or overflow
        vectors = vectors.astype(norms.dtype)
        max_magnitudes = np.abs(vectors[extreme_rows]).max(axis=1, keepdims=True)
        vectors[extreme_rows] /= np.where((max_magnitudes > 0) & (max_magnitudes < np.inf), max_magnitudes, 1)
        norms[extreme_rows] = np.linalg.norm(vectors[extreme_rows], axis=1, keepdims=True)
    return vectors / np.maximum(norms, _MIN_NORM)


def _compare(queries: np.ndarray, vectors: np.ndarray, similarity: str) -> np.ndarray:
    """Return the similarities, float32 (q, n), of q queries to n vectors that `prepare` returned."""
    if similarity in ("cosine", "dot"):
        return queries @ vectors.T
    from scipy.spatial.distance import cdist

    metric = "cityblock" if similarity == "manhattan" else similarity
    return -cdist(queries, vectors, metric).astype("float32")
