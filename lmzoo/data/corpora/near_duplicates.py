"""Documents that occur twice: exactly, or nearly, by MinHash."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

PERMUTATIONS = 128
_SHINGLE = 5  # words that are compared as one
_CHUNK = 1 << 16  # pairs compared at once


def exact_digest(sentences: Sequence[str]) -> bytes:
    """Return 16 bytes that are the same for the same text."""
    return hashlib.sha256("\n".join(sentences).encode()).digest()[:16]


def min_hash(sentences: Sequence[str]) -> np.ndarray:
    """Return the MinHash of a document's runs of five words, in lower case: uint32 (128,).

    The share of equal numbers in two of them estimates the Jaccard similarity of the documents: how many of the runs
    that occur in one of them occur in both.
    """
    words = " ".join(sentences).lower().split()
    runs = {" ".join(words[i : i + _SHINGLE]).encode() for i in range(max(1, len(words) - _SHINGLE + 1))}
    signature = _datasketch().MinHash(PERMUTATIONS, seed=1)
    signature.update_batch(runs)
    return signature.hashvalues.astype("uint32")


def exact_duplicates(digests: np.ndarray) -> np.ndarray:
    """Return which documents have occurred before: bool (n,).

    Args:
        digests: "S16" (n,), from `exact_digest`.
    """
    repeated = np.ones(len(digests), bool)
    repeated[np.unique(digests, return_index=True)[1]] = False
    return repeated


def near_duplicates(signatures: np.ndarray, similarity: float) -> np.ndarray:
    """Return which documents resemble one before: bool (n,).

    Locality-sensitive hashing: of the documents that agree in a band of their signatures, each is compared with the
    first. The bands are those that datasketch finds best for the similarity.

    Args:
        signatures: uint32 (n, 128), from `min_hash`.
        similarity: the lowest estimated Jaccard similarity of duplicates.

    Example:

    ```python
    from lmzoo.data.corpora.near_duplicates import min_hash, near_duplicates
    import numpy as np

    text = "It rained all day, and so we stayed in and read to each other by the fire until night fell."
    signatures = np.stack([min_hash([text]), min_hash(["Something else."]), min_hash([text.upper()])])
    near_duplicates(signatures, 0.8)  # [False, False, True]
    ```
    """
    count = len(signatures)
    repeated = np.zeros(count, bool)
    index = _datasketch().MinHashLSH(similarity, PERMUTATIONS)
    factors = np.random.default_rng(1).integers(1, 1 << 63, index.r, "uint64") | np.uint64(1)  # (r,)
    for band in range(index.b):
        part = signatures[:, band * index.r : (band + 1) * index.r].astype("uint64")  # (n, r)
        _, first, inverse = np.unique((part * factors).sum(axis=1), return_index=True, return_inverse=True)
        earliest = first[inverse]  # (n,)
        pairs = np.flatnonzero(earliest < np.arange(count))
        for begin in range(0, len(pairs), _CHUNK):
            later = pairs[begin : begin + _CHUNK]
            equal = (signatures[later] == signatures[earliest[later]]).mean(axis=1)
            repeated[later[equal >= similarity]] = True
    return repeated


def _datasketch() -> Any:
    try:
        import datasketch
    except ImportError:
        raise ImportError("Near duplicates need datasketch: pip install 'lmzoo[scale]'.") from None
    return datasketch
