"""Static word vectors, joined with the vectors of a backbone."""

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


@keras.saving.register_keras_serializable(package="lmzoo")
class StaticWordFeatures(ConfiguredLayer):
    """Static vectors of words, joined with a backbone's vectors of the same tokens.

    Tokens are found by their ids or, for ELMo, by two hashes of their characters. Tokens without a vector get zeros.
    The vectors are not trained.

    Args:
        count: int, N, number of vectors, of which the first is zero.
        embedding_dim: int, E, width of the vectors.

    Call arguments: `sequence` float (B, T, H); `ids`, token ids int32 (B, T), the rows of the vectors, or ELMo's
    character ids int32 (B, T, W). Returns float (B, T, H + E).
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
        """Set the vectors, float (n, E), of the tokens with the ids `ids`, int (n,); all other tokens get zeros."""
        table = np.zeros((self.count, self.embedding_dim), "float32")
        table[ids] = vectors
        self.vectors.assign(table)

    def assign_words(self, characters: np.ndarray, vectors: np.ndarray) -> None:
        """Set the words that have vectors, by their character ids, int (N - 1, W), and their vectors (N - 1, E)."""
        hashes = np.stack([ops.convert_to_numpy(hash_words(characters[None], m))[0] for m in _MULTIPLIERS], axis=1)
        order = np.argsort(hashes[:, 0], kind="stable")  # if hashes are equal, the first word is found
        self.hashes.assign(np.concatenate([np.zeros((1, 2), "int32"), hashes[order]]))
        self.vectors.assign(np.concatenate([np.zeros((1, self.embedding_dim), "float32"), vectors[order]]))

    def call(self, sequence: Tensor, ids: Tensor) -> Tensor:
        """Concatenate the backbone's vectors with the static vectors of the words."""
        if len(ids.shape) == 3:
            first, second = (hash_words(ids, multiplier) for multiplier in _MULTIPLIERS)  # (B, T)
            vocabulary_hashes = ops.convert_to_tensor(self.hashes)  # (N, 2)
            indices = ops.searchsorted(vocabulary_hashes[1:, 0], ops.reshape(first, (-1,)))  # (B·T,)
            rows = ops.minimum(ops.reshape(ops.cast(indices, "int32"), ops.shape(first)) + 1, self.count - 1)  # (B, T)
            is_known = (ops.take(vocabulary_hashes[:, 0], rows) == first) & (
                ops.take(vocabulary_hashes[:, 1], rows) == second
            )
        else:
            rows = ids
            is_known = ids < self.count  # more tokens may have been added
        rows = ops.where(is_known, rows, 0)  # (B, T)
        vectors = ops.take(ops.cast(self.vectors, self.compute_dtype), rows, axis=0)  # (B, T, E)
        return ops.concatenate([sequence, vectors], axis=-1)

    def compute_output_shape(self, sequence_shape: Shape, ids_shape: Shape) -> Shape:
        """Return the output shape (B, T, H + E)."""
        return (*sequence_shape[:-1], get_width(sequence_shape) + self.embedding_dim)
