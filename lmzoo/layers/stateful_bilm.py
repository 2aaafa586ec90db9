"""Bidirectional language model that carries its state from batch to batch.

Letters in shape comments: B sequences, T steps, W characters per word, P width of a word vector.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import keras
from keras import ops

from lmzoo.common.tensor_types import Tensor, Tensors
from lmzoo.layers.carried_state import CarriesState
from lmzoo.layers.dropout import Dropout


class LanguageModel(Protocol):
    """Protocol of the language model in `StreamedBiLM`: a word encoder and stacks of LSTMs, such as ELMo's `BiLM`."""

    encoder: Callable[[Tensor], Tensor]

    def run_stacks(
        self, forward: Tensor, backward: Tensor, lengths: Tensor | None, state: Tensors, training: bool
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensors]:
        """Run the LSTMs of both directions, and return each layer's outputs and the final state."""

    def state_spec(self, batch: int | None = None) -> Tensors:
        """Return the shapes and dtypes of the state for `batch` sequences."""


@keras.saving.register_keras_serializable(package="lmzoo")
class StreamedBiLM(CarriesState):
    """Bidirectional language model that reads a separate stream of words in each direction, batch after batch.

    Args:
        bilm: the language model; the layer shares its weights.
        dropout: float, dropout rate of the outputs.

    Call arguments: `ids`, character ids int32 (B, T, 2, W) or token ids int32 (B, T, 2); the axis of length 2 holds the
    words to read forward and the words to read backward, each in reading order; `goes_on` int32 (B,), see
    `CarriesState`. Returns a pair of float (B, T, P), forward and backward: the last layer's outputs, which predict the
    word after each step.
    """

    def __init__(self, bilm: LanguageModel, dropout: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.bilm = bilm
        self.dropout = Dropout(dropout, dtype=self.dtype_policy, name="output_dropout")
        self.built = True

    def state_spec(self, batch: int) -> Tensors:
        """Return the shapes and dtypes of the state for `batch` sequences."""
        return self.bilm.state_spec(batch)

    def call(self, ids: Tensor, goes_on: Tensor, training: bool = False) -> tuple[Tensor, Tensor]:
        """Return the last layer's outputs in both directions, and store the state for the next batch."""
        batch, num_steps = ops.shape(ids)[:2]
        word_vectors = self.bilm.encoder(ops.reshape(ids, (-1, *ops.shape(ids)[3:])))
        word_vectors = ops.transpose(
            ops.reshape(word_vectors, (batch, num_steps, 2, word_vectors.shape[-1])), (2, 1, 0, 3)
        )  # (2, T, B, P)
        state = self.make_initial_state(goes_on, training)
        outputs, state = self.bilm.run_stacks(word_vectors[0], word_vectors[1], None, state, training)
        self.store_state(state, batch, training)
        return tuple(self.dropout(ops.transpose(x, (1, 0, 2)), training=training) for x in outputs[-1])

    def compute_output_spec(self, ids: Tensor, goes_on: Tensor, training: bool = False) -> tuple[Tensor, Tensor]:
        """Return the shapes and dtypes of the outputs, which JAX cannot infer while W is unknown."""
        (_, output), *_ = self.bilm.state_spec(ids.shape[0])["forward"]
        shape = (*ids.shape[:2], output.shape[-1])
        return keras.KerasTensor(shape, output.dtype), keras.KerasTensor(shape, output.dtype)
