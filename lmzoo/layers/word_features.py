"""Static word vectors, concatenated with the vectors of a backbone."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from lmzoo.common.tensor_types import Shape, Tensor
from lmzoo.layers.bilstm import hash_words
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.rows import get_width

_MULTIPLIERS = (0x01000193, 0x9E3779B1)  # two hashes: among 400,000 words, single hashes are not unique
_MAX_EQUAL_HASHES = 4  # words with the same first hash; among 600,000 words, no three have the same


@keras.saving.register_keras_serializable(package="lmzoo")
class StaticWordFeatures(ConfiguredLayer):
    """Layer that concatenates a backbone's vectors with static vectors of the same words.

    Words are looked up by their token ids or, for ELMo, by two hashes of their characters. Words without a static
    vector get zeros, and so would the fifth of five words with the same first hash. The static vectors are not trained.

    Args:
        count: int, number N of static vectors, of which the first is zero.
        embedding_dim: int, width E of the static vectors.

    Call arguments: `sequence` float (B, T, H), the backbone's vectors; `ids`, token ids int32 (B, T), or ELMo's
    character ids int32 (B, T, W). A token id is the row of the token's static vector. Returns float (B, T, H + E).
    """

    def __init__(self, count: int, embedding_dim: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.count = count
        self.embedding_dim = embedding_dim

    def build(self, sequence_shape: Shape, ids_shape: Shape) -> None:
        """Create the table of vectors and, for characters, the hashes of the words."""
        arguments: dict[str, Any] = {"initializer": "zeros", "trainable": False}
        self.vectors = self.add_weight(shape=(self.count, self.embedding_dim), name="vectors", **arguments)
        if len(ids_shape) == 3:
            self.hashes = self.add_weight(shape=(self.count, 2), dtype="int32", name="hashes", **arguments)

    def assign_ids(self, ids: np.ndarray, vectors: np.ndarray) -> None:
        """Set the static vectors of tokens; all other tokens get zeros.

        Args:
            ids: int (n,), token ids.
            vectors: float (n, E), static vectors of the tokens.
        """
        table = np.zeros((self.count, self.embedding_dim), "float32")
        table[ids] = vectors
        self.vectors.assign(table)

    def assign_words(self, characters: np.ndarray, vectors: np.ndarray) -> None:
        """Set the static vectors of words that are looked up by their characters.

        Args:
            characters: int (N - 1, W), character ids of the words.
            vectors: float (N - 1, E), static vectors of the words.
        """
        hashes = np.stack(
            [ops.convert_to_numpy(hash_words(characters[None], multiplier))[0] for multiplier in _MULTIPLIERS], axis=1
        )
        order = np.argsort(hashes[:, 0], kind="stable")  # of words with two equal hashes, the first is found
        self.hashes.assign(np.concatenate([np.zeros((1, 2), "int32"), hashes[order]]))
        self.vectors.assign(np.concatenate([np.zeros((1, self.embedding_dim), "float32"), vectors[order]]))

    def call(self, sequence: Tensor, ids: Tensor) -> Tensor:
        """Concatenate the backbone's vectors with the static vectors of the words."""
        # Tokens may have been added to the vocabulary; they have no row.
        rows = self._find_words(ids) if len(ids.shape) == 3 else ops.where(ids < self.count, ids, 0)  # (B, T)
        static_vectors = ops.take(ops.cast(self.vectors, self.compute_dtype), rows, axis=0)  # (B, T, E)
        return ops.concatenate([sequence, static_vectors], axis=-1)

    def _find_words(self, ids: Tensor) -> Tensor:
        """Return the row of each word's static vector, int32 (B, T), or 0 for words without one.

        Args:
            ids: int32 (B, T, W), character ids.
        """
        first_hashes, second_hashes = (hash_words(ids, multiplier) for multiplier in _MULTIPLIERS)  # (B, T)
        vocabulary_hashes = ops.convert_to_tensor(self.hashes)  # (N, 2)
        indices = ops.searchsorted(vocabulary_hashes[1:, 0], ops.reshape(first_hashes, (-1,)))  # (B·T,)
        first_rows = ops.reshape(ops.cast(indices, "int32"), ops.shape(first_hashes)) + 1  # (B, T)
        rows = ops.zeros_like(first_rows)
        for offset in reversed(range(_MAX_EQUAL_HASHES)):  # the first match replaces later ones
            candidate_rows = ops.minimum(first_rows + offset, self.count - 1)
            is_equal = (ops.take(vocabulary_hashes[:, 0], candidate_rows) == first_hashes) & (
                ops.take(vocabulary_hashes[:, 1], candidate_rows) == second_hashes
            )
            rows = ops.where(is_equal, candidate_rows, rows)
        return rows

    def compute_output_shape(self, sequence_shape: Shape, ids_shape: Shape) -> Shape:
        """Return the output shape (B, T, H + E)."""
        return (*sequence_shape[:-1], get_width(sequence_shape) + self.embedding_dim)
