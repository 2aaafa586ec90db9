"""Approximate search with faiss."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from lmzoo.common.arguments import require
from lmzoo.search.index import VectorIndex
from lmzoo.search.nearest import (
    Vectors,
    check_finite,
    check_queries,
    check_top_k,
    check_vectors,
    prepare,
    read_finite_blocks,
)

_METRICS = {"cosine": "METRIC_INNER_PRODUCT", "dot": "METRIC_INNER_PRODUCT", "euclidean": "METRIC_L2"}
_MAX_TRAINING_VECTORS = 1 << 18


class FaissIndex(VectorIndex):
    """Approximate search with a faiss index, for corpora that are too large for an exact search.

    Args:
        index: `faiss.Index`, for example from `faiss.read_index(path)`.
        similarity: the similarity that the index was built for: `"dot"`, `"euclidean"`, or `"cosine"` for an index of
            vectors with unit length.

    Raises:
        ImportError: If faiss is not installed.
        ValueError: If faiss has no metric for `similarity`, or `index` has another metric.

    Example:

    ```{.python .notest}
    import faiss
    from lmzoo.search import FaissIndex

    index = FaissIndex.build(vectors)
    faiss.write_index(index.index, "corpus.faiss")
    embedder.search(["When do you close?"], FaissIndex(faiss.read_index("corpus.faiss")), texts=texts)
    ```
    """

    def __init__(self, index: Any, similarity: str = "cosine") -> None:
        metric = _get_metric(similarity)
        require(index.metric_type == metric, "similarity", "the similarity that the index was built for", similarity)
        self.index: Any = index
        self.similarity: str = similarity

    @classmethod
    def build(cls, vectors: Vectors, similarity: str = "cosine", kind: str = "HNSW32") -> FaissIndex:
        """Build an index of vectors.

        Args:
            vectors: numbers (n, H), n vectors of width H; they may be memory-mapped.
            similarity: `"cosine"`, `"dot"` or `"euclidean"`.
            kind: description of the index for `faiss.index_factory`, such as `"HNSW32"` or `"IVF4096,PQ48"`.

        Raises:
            ImportError: If faiss is not installed.
            ValueError: If `vectors` is empty or not a matrix of numbers, a vector is not finite, faiss has no metric
                for `similarity`, or `kind` is unknown or needs more vectors.
        """
        faiss = _import_faiss()
        num_vectors, width = check_vectors(vectors)
        metric = _get_metric(similarity)
        try:
            index = faiss.index_factory(width, kind, metric)
        except RuntimeError:
            message = f"`kind` must be an index that faiss can make for vectors of width {width}, got {kind!r:.60}."
            raise ValueError(message) from None
        if not index.is_trained:
            sample_rows = np.linspace(0, num_vectors - 1, min(num_vectors, _MAX_TRAINING_VECTORS)).astype("int64")
            sample = np.asarray(vectors[sample_rows], "float32")
            check_finite(sample, 0, num_vectors - 1)
            try:
                index.train(prepare(sample, similarity))
            except RuntimeError:
                message = f"`kind` must be an index that faiss can train on {num_vectors} vectors, got {kind!r:.60}."
                raise ValueError(f"{message} Pass more vectors, or a kind with fewer lists and codes.") from None
        for _, block in read_finite_blocks(vectors, "Indexing"):
            index.add(prepare(block, similarity))
        return cls(index, similarity)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of vectors and their width."""
        return self.index.ntotal, self.index.d

    def search(self, queries: np.ndarray, top_k: int, similarity: str = "cosine") -> tuple[np.ndarray, np.ndarray]:
        require(similarity == self.similarity, "similarity", f"that of the index, {self.similarity!r}", similarity)
        top_k = check_top_k(top_k, len(self))
        query_vectors = check_queries(queries, self.shape[1])
        scores, indices = self.index.search(prepare(query_vectors, similarity), top_k)
        if similarity == "euclidean":
            scores = -np.sqrt(np.maximum(scores, 0))  # rounding leaves some squared distances of "IVF,PQ" below 0
        return scores, indices


def _import_faiss() -> ModuleType:
    try:
        import faiss
    except ImportError:
        raise ImportError("Approximate search needs faiss: pip install 'lmzoo[search]'.") from None
    return faiss


def _get_metric(similarity: str) -> int:
    """Return faiss' constant for the metric that computes a similarity.

    Raises:
        ImportError: If faiss is not installed.
        ValueError: If faiss has no metric for the similarity.
    """
    allowed = " or ".join(f'"{name}"' for name in _METRICS)
    require(similarity in _METRICS, "similarity", f"{allowed} for an index of faiss", similarity)
    return getattr(_import_faiss(), _METRICS[similarity])
