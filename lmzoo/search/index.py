"""Search in a corpus of vectors: an array, or an index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lmzoo.common.arguments import require
from lmzoo.search.nearest import (
    Hit,
    Vectors,
    as_hits,
    check_not_lists,
    check_queries,
    check_top_k,
    find_nearest,
    is_vectors,
)
from lmzoo.text.validate_text import is_column


class VectorIndex(ABC):
    """Base class of vector indexes, which `search_vectors` and `TextEmbedder.search` take instead of an array.

    Subclass it to search in the index of another library or in a database.

    Example: see `lmzoo.search.QuantizedIndex`.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Number of vectors and their width."""

    @abstractmethod
    def search(self, queries: np.ndarray, top_k: int, similarity: str = "cosine") -> tuple[np.ndarray, np.ndarray]:
        """Return the scores and the indices of the vectors that are most similar to each query, best first.

        Args:
            queries: float32 (q, H), the vectors of q queries.
            top_k: int, number of vectors to return for each query.
            similarity: see `lmzoo.search.search_vectors`.

        Returns:
            Scores, float32 (q, top_k), and indices, int64 (q, top_k), which are -1 in places where an approximate
            search found no vector.
        """

    def __len__(self) -> int:
        """Return the number of vectors."""
        return self.shape[0]


class ArrayIndex(VectorIndex):
    """Exact search in an array.

    Args:
        vectors: numbers (n, H), the n vectors to search in; they may be memory-mapped.

    Example:

    ```python
    import numpy as np
    from lmzoo.search.index import ArrayIndex

    scores, indices = ArrayIndex(np.eye(3)).search(np.array([[1.0, 0.5, 0.0]]), top_k=2)
    indices.tolist()  # [[0, 1]]
    ```
    """

    def __init__(self, vectors: Vectors) -> None:
        self.vectors = vectors

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of vectors and their width."""
        return tuple(self.vectors.shape)

    def search(self, queries: np.ndarray, top_k: int, similarity: str = "cosine") -> tuple[np.ndarray, np.ndarray]:
        return find_nearest(queries, self.vectors, top_k, similarity)


def search_vectors(
    queries: np.ndarray,
    corpus: Any,
    top_k: int | None = None,
    similarity: str = "cosine",
    texts: Sequence[str] | None = None,
) -> list[list[Hit]]:
    """Find the vectors of a corpus that are most similar to each query, and return their indices and scores.

    The search in an array is exact. The array is read in blocks, so it may be memory-mapped and larger than memory.

    Args:
        queries: numbers (q, H), the vectors of q queries.
        corpus: numbers (n, H), the n vectors to search in, in an array of NumPy, JAX or TensorFlow; or a
            `lmzoo.search.VectorIndex`.
        top_k: int, number of vectors to return for each query; by default 10, or all of a smaller corpus.
        similarity: `"cosine"` or `"dot"`; or `"euclidean"` or `"manhattan"`, whose scores are negative distances.
        texts: the n texts of the corpus, to include in the results.

    Returns:
        For each query a list of `{"index": int, "score": float}`, with the key `"text"` added if `texts` are passed.
        The best vectors come first; in an array, equal scores are ordered by index.

    Raises:
        ValueError: If the corpus is neither an array of numbers nor an index, is empty or is smaller than `top_k`; if
            the widths of the vectors or the number of `texts` do not match; if a vector is not finite; or if the
            similarity is unknown or the index was built for another one.

    Example:

    ```python
    import numpy as np
    from lmzoo.search import search_vectors

    corpus = np.array([[1, 0], [0, 1], [2, 2]])
    search_vectors(np.array([[3, 1]]), corpus, top_k=2, similarity="dot")[0]  # [{"index": 2, "score": 8.0}, ...]
    ```
    """
    index = open_index(corpus)
    if index is None:
        raise ValueError(f"`corpus` must be an array (n, H) of numbers or a VectorIndex, got {corpus!r:.60}.")
    query_vectors = check_queries(queries, index.shape[1])
    texts = check_index(index, index.shape[1], texts)
    return as_hits(*index.search(query_vectors, check_top_k(top_k, len(index)), similarity), texts)


def open_index(corpus: Any) -> VectorIndex | None:
    """Return an index unchanged, an array of numbers (n, H) as an `ArrayIndex`, and None for any other corpus.

    Raises:
        ValueError: If the corpus is a list whose first entry is a list of numbers.
    """
    if isinstance(corpus, VectorIndex):
        return corpus
    check_not_lists("corpus", corpus)
    # A memory-mapped array remains one.
    return ArrayIndex(np.asanyarray(corpus)) if is_vectors(corpus) else None


def check_index(index: VectorIndex, width: int, texts: Iterable[str] | None) -> Sequence[str] | None:
    """Check the width of an index's vectors and the number of `texts`, and return `texts` as a sequence.

    Returns:
        `texts`, converted to a list if they are not a sequence (`texts[i]` of a table's column may not be the i-th
        text); None if `texts` is None.

    Raises:
        ValueError: If the width of the index is 0 or not `width`, or `texts` are not a list of one text per vector.
    """
    num_vectors, index_width = index.shape
    require(index_width, "corpus", "an array whose vectors have a width of at least 1", index_width)
    if index_width != width:
        raise ValueError(f"`corpus` has vectors of width {index_width}, but the queries have width {width}.")
    if texts is None:
        return None
    require(is_column(texts), "texts", "a list of texts", texts)
    sequence = texts if isinstance(texts, Sequence) else list(texts)
    if len(sequence) != num_vectors:
        raise ValueError(
            f"`texts` must hold a text for each of the {num_vectors} vectors of the corpus, got {len(sequence)}."
        )
    return sequence
