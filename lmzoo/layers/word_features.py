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
    vector get zeros. The static vectors are not trained.

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

        Raises:
            ValueError: If more than four words have the same first hash.
        """
        hashes = np.stack(
            [ops.convert_to_numpy(hash_words(characters[None], multiplier))[0] for multiplier in _MULTIPLIERS], axis=1
        )
        equal_count = np.unique(hashes[:, 0], return_counts=True)[1].max(initial=0)
        if equal_count > _MAX_EQUAL_HASHES:
            raise ValueError(
                f"{equal_count} words have the same hash, and at most {_MAX_EQUAL_HASHES} can be told apart: leave out "
                "rare words."
            )
        order = np.argsort(hashes[:, 0], kind="stable")
        self.hashes.assign(np.concatenate([np.zeros((1, 2), "int32"), hashes[order]]))
        self.vectors.assign(np.concatenate([np.zeros((1, self.embedding_dim), "float32"), vectors[order]]))

    def call(self, sequence: Tensor, ids: Tensor) -> Tensor:
        """Concatenate the backbone's vectors with the static vectors of the words."""
        rows = self._find_words(ids) if len(ids.shape) == 3 else self._find_tokens(ids)  # (B, T)
        static_vectors = ops.take(ops.cast(self.vectors, self.compute_dtype), rows, axis=0)  # (B, T, E)
        return ops.concatenate([sequence, static_vectors], axis=-1)

    def _find_tokens(self, ids: Tensor) -> Tensor:
        """Return the row of each token's static vector, int32 (B, T), or 0 for tokens that were added later."""
        return ops.where(ids < self.count, ids, 0)

    def _find_words(self, ids: Tensor) -> Tensor:
        """Return the row of each word's static vector, int32 (B, T), or 0 for words without one.

        Of words with two equal hashes, the first is found.

        Args:
            ids: int32 (B, T, W), character ids.
        """
        first_hashes, second_hashes = (hash_words(ids, multiplier) for multiplier in _MULTIPLIERS)  # (B, T)
        vocabulary_hashes = ops.convert_to_tensor(self.hashes)  # (N, 2)
        indices = ops.searchsorted(vocabulary_hashes[1:, 0], ops.reshape(first_hashes, (-1,)))  # (B·T,)
        first_rows = ops.reshape(ops.cast(indices, "int32"), ops.shape(first_hashes)) + 1  # (B, T)
        candidate_rows = ops.minimum(first_rows[..., None] + ops.arange(_MAX_EQUAL_HASHES), self.count - 1)  # (B, T, 4)
        hashes = ops.stack([first_hashes, second_hashes], axis=-1)[:, :, None]  # (B, T, 1, 2)
        is_equal = ops.all(ops.take(vocabulary_hashes, candidate_rows, axis=0) == hashes, axis=-1)  # (B, T, 4)
        offsets = ops.argmax(ops.cast(is_equal, "int32"), axis=-1)  # (B, T), of the first match
        return ops.where(ops.any(is_equal, axis=-1), first_rows + ops.cast(offsets, "int32"), 0)

    def compute_output_shape(self, sequence_shape: Shape, ids_shape: Shape) -> Shape:
        """Return the output shape (B, T, H + E)."""
        return (*sequence_shape[:-1], get_width(sequence_shape) + self.embedding_dim)
