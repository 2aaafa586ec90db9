"""Vectors of character n-grams, from which fastText composes the vectors of words (Bojanowski et al., 2017).

https://arxiv.org/abs/1607.04606

Let G be the n-grams of a word between "<" and ">", z_g the vector of the bucket that n-gram g is hashed to, and u the
word's own vector, if it is in the vocabulary:

    v = (u + sum z_g) / (|G| + 1)    for words of the vocabulary
    v = sum z_g / |G|                for other words

The end of a sentence, "</s>", has no n-grams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_SENTENCE_END = "</s>"  # fastText's word for the end of a line

# FNV-1a, as fastText computes it: bytes are sign-extended.
_FNV_OFFSET = np.uint32(2166136261)
_FNV_PRIME = np.uint32(16777619)


@dataclass(frozen=True)
class Subwords:
    """Vectors of hashed character n-grams.

    Attributes:
        min_length: int, length of the shortest n-grams, in characters.
        max_length: int, length of the longest n-grams; 0 for no n-grams.
        vectors: float32 (K, H), one vector for each of K buckets.

    Example:

    ```python
    import numpy as np
    from lmzoo.static_vectors import Subwords

    subwords = Subwords(min_length=3, max_length=4, vectors=np.ones((101, 5), "float32"))
    sums, counts = subwords.sum_vectors(["film"])  # (1, 5), and 7: <fi fil ilm lm> <fil film ilm>
    ```
    """

    min_length: int
    max_length: int
    vectors: np.ndarray

    def sum_vectors(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the sum of each of n words' n-gram vectors, float32 (n, H), and its number of n-grams, int64 (n,)."""
        from scipy.sparse import csr_array

        num_buckets = len(self.vectors)
        word_indices, buckets = hash_ngrams(words, self.min_length, self.max_length, num_buckets)
        shape = (len(words), num_buckets)
        occurrences = csr_array((np.ones(len(buckets), "float32"), (word_indices, buckets)), shape)
        return occurrences @ np.asarray(self.vectors), np.bincount(word_indices, minlength=len(words))

    def compose(self, words: Sequence[str], word_vectors: np.ndarray) -> np.ndarray:
        """Compose the vectors, float32 (n, H), of n words of the vocabulary from their own vectors and n-grams."""
        sums, ngram_counts = self.sum_vectors(words)
        return (word_vectors + sums) / (ngram_counts + 1).astype("float32")[:, None]

    def compose_unknown(self, words: Sequence[str]) -> np.ndarray:
        """Compose the vectors of n unknown words, float32 (n, H); a word without n-grams gets zeros."""
        sums, ngram_counts = self.sum_vectors(words)
        return sums / np.maximum(ngram_counts, 1).astype("float32")[:, None]


def hash_ngrams(
    words: Sequence[str], min_length: int, max_length: int, num_buckets: int
) -> tuple[np.ndarray, np.ndarray]:
    """Hash the character n-grams of words with fastText's hash function.

    Words are enclosed in "<" and ">"; these marks alone are not n-grams. "</s>" has no n-grams.

    Args:
        words: n strings.
        min_length: length of the shortest n-grams, in characters.
        max_length: length of the longest n-grams.
        num_buckets: number of buckets, K.

    Returns:
        For each of the m n-grams, the index of its word, int64 (m,), and its bucket, int64 (m,).
    """
    encoded_words = [b"" if word == _SENTENCE_END else f"<{word}>".encode() for word in words]
    text_bytes = np.frombuffer(b"".join(encoded_words), "uint8")  # (b,)
    lengths = np.array([len(word) for word in encoded_words], "int64")  # (n,)
    is_first_byte = np.append((text_bytes & 0xC0) != 0x80, True)  # (b + 1,), whether a character begins
    signed_bytes = text_bytes.view("int8").astype("int32").view("uint32")  # (b,)
    # The n-grams that begin with each character grow by a byte in each step.
    starts = np.flatnonzero(is_first_byte[:-1])  # (c,)
    word_indices = np.repeat(np.arange(len(words)), lengths)[starts]
    word_ends = np.cumsum(lengths)[word_indices]
    begins_word = starts == word_ends - lengths[word_indices]
    hashes = np.full(len(starts), _FNV_OFFSET)
    num_characters = np.zeros(len(starts), "int64")
    ends = starts
    ngrams: list[tuple[np.ndarray, np.ndarray]] = [(np.zeros(0, "int64"), np.zeros(0, "uint32"))]
    while len(ends) and max_length > 0 and num_buckets > 0:
        hashes = (hashes ^ signed_bytes[ends]) * _FNV_PRIME
        num_characters = num_characters + is_first_byte[ends]
        ends = ends + 1
        ends_word = ends == word_ends
        is_complete = is_first_byte[ends]
        is_mark = (num_characters == 1) & (begins_word | ends_word)
        is_ngram = is_complete & (num_characters >= min_length) & ~is_mark
        ngrams.append((word_indices[is_ngram], hashes[is_ngram]))
        continues = ~ends_word & ~(is_complete & (num_characters >= max_length))
        arrays = (hashes, num_characters, ends, word_indices, word_ends, begins_word)
        hashes, num_characters, ends, word_indices, word_ends, begins_word = (array[continues] for array in arrays)
    all_word_indices, all_hashes = (np.concatenate(parts) for parts in zip(*ngrams, strict=True))
    return all_word_indices, all_hashes.astype("int64") % max(num_buckets, 1)
