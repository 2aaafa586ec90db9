"""Detection of exact duplicates, and of near duplicates by MinHash."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

PERMUTATIONS = 128
_SHINGLE_WORDS = 5  # number of consecutive words in a shingle
_CHUNK_PAIRS = 1 << 16  # number of pairs compared at once


def exact_digest(sentences: Sequence[str]) -> bytes:
    """Return a 16-byte digest of a document's text."""
    return hashlib.sha256("\n".join(sentences).encode()).digest()[:16]


def min_hash(sentences: Sequence[str]) -> np.ndarray:
    """Return the MinHash signature of a document's lowercase five-word shingles: uint32 (128,).

    The fraction of equal entries in two signatures estimates the Jaccard similarity of the documents: the fraction of
    their distinct shingles that occur in both. A document of fewer than five words is one shingle.

    Raises:
        ImportError: If datasketch is not installed.
    """
    words = " ".join(sentences).lower().split()
    shingles = {
        " ".join(words[i : i + _SHINGLE_WORDS]).encode() for i in range(max(1, len(words) - _SHINGLE_WORDS + 1))
    }
    signature = _import_datasketch().MinHash(PERMUTATIONS, seed=1)
    signature.update_batch(shingles)
    return signature.hashvalues.astype("uint32")


def exact_duplicates(digests: np.ndarray) -> np.ndarray:
    """Return whether each of n documents equals an earlier one: bool (n,).

    Args:
        digests: `S16` (n,), digests of the documents, from `exact_digest`.
    """
    is_duplicate = np.ones(len(digests), bool)
    is_duplicate[np.unique(digests, return_index=True)[1]] = False
    return is_duplicate


def near_duplicates(signatures: np.ndarray, similarity: float) -> np.ndarray:
    """Return whether each of n documents resembles an earlier one: bool (n,).

    Locality-sensitive hashing divides the signatures into bands. Among documents that agree in a band, each later one
    is compared with the first. datasketch chooses the number of bands that suits the similarity.

    Args:
        signatures: uint32 (n, 128), signatures of the documents, from `min_hash`.
        similarity: float, minimum estimated Jaccard similarity of duplicates.

    Raises:
        ImportError: If datasketch is not installed.

    Example:

    ```python
    from lmzoo.data.corpora.near_duplicates import min_hash, near_duplicates
    import numpy as np

    text = "It rained all day, and so we stayed in and read to each other by the fire until night fell."
    signatures = np.stack([min_hash([text]), min_hash(["Something else."]), min_hash([text.upper()])])
    near_duplicates(signatures, 0.8)  # [False, False, True]
    ```
    """
    num_documents = len(signatures)
    is_duplicate = np.zeros(num_documents, bool)
    lsh = _import_datasketch().MinHashLSH(similarity, PERMUTATIONS)
    hash_factors = np.random.default_rng(1).integers(1, 1 << 63, lsh.r, "uint64") | np.uint64(1)  # one per row
    for band in range(lsh.b):
        band_values = signatures[:, band * lsh.r : (band + 1) * lsh.r].astype("uint64")  # (n, r), for r rows of a band
        _, first_indices, inverse_indices = np.unique(
            (band_values * hash_factors).sum(axis=1), return_index=True, return_inverse=True
        )
        first_in_band = first_indices[inverse_indices]  # (n,)
        candidates = np.flatnonzero(first_in_band < np.arange(num_documents))
        for begin in range(0, len(candidates), _CHUNK_PAIRS):
            candidate_chunk = candidates[begin : begin + _CHUNK_PAIRS]
            agreement = (signatures[candidate_chunk] == signatures[first_in_band[candidate_chunk]]).mean(axis=1)
            is_duplicate[candidate_chunk[agreement >= similarity]] = True
    return is_duplicate


def _import_datasketch() -> Any:
    """Import the optional package datasketch, and return it.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        import datasketch
    except ImportError:
        raise ImportError("Near duplicates need datasketch: pip install 'lmzoo[scale]'.") from None
    return datasketch
