"""A bidirectional language model that continues each sequence where the previous batch ended.

Letters in shape comments: B sequences, T steps, W characters of a word, P width of a word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import keras
from keras import ops

from lmzoo.layers.dropout import Dropout
from lmzoo.tensor_types import Tensor, Tensors


class LanguageModel(Protocol):
    """The language model of `StreamedBiLM`: an encoder of words and stacks of LSTMs, such as ELMo's `BiLM`."""

    encoder: Callable[[Tensor], Tensor]

    def stacks(
        self, forward: Tensor, backward: Tensor, lengths: Tensor, state: Tensors, training: bool
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensors]:
        """Runs the LSTMs of both directions: returns each layer's outputs, and the state after them."""

    def state_spec(self, batch: int | None = None) -> Tensors:
        """Shapes and dtypes of a state of `batch` sequences."""


class StreamedBiLM(keras.layers.Layer):
    """The last layer's outputs of a language model that reads two streams of words, one in each direction.

    The LSTMs' state after each sequence is kept in variables, one set for training and one for everything else. They
    are not weights and are not saved. Gradients stop at the beginning of a batch.

    Args:
        bilm: the language model.
        dropout: float, rate on the outputs.

    Call arguments: `ids`, int32 (B, T, 2, W) characters or (B, T, 2) ids; the axis of length 2 holds the words that are
    read forward and those that are read backward, each in the order of reading; `goes_on` int32 (B,), 1 for sequences
    that continue those of the previous batch, 0 for those that start from zeros. Returns two float (B, T, P), forward
    and backward: the vectors that predict the word after each step.
    """

    def __init__(self, bilm: LanguageModel, dropout: float, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)  # otherwise the memory would be rounded
        self.bilm = bilm
        self.dropout = Dropout(dropout, dtype=self.dtype_policy, name="output_dropout")
        self._memories = _Memory(), _Memory()  # for everything else, for training
        self.built = True

    @property
    def variables(self) -> list[Tensor]:
        """All variables, the state included."""
        return [*super().variables, *(v for memory in self._memories for v in memory.variables)]

    def make_room(self, count: int, training: bool) -> bool:
        """Makes room for the state of `count` sequences; in larger batches the others always start from zeros.

        There is one state for training, and one for everything else.

        Returns:
            Whether there was less room before. Functions that were compiled before do not use the new variables.
        """
        memory = self._memories[training]
        if count <= memory.count:
            return False
        memory.count = count
        memory.state = keras.tree.map_structure(_zeros_like, self.bilm.state_spec(count))
        return True

    def call(self, ids: Tensor, goes_on: Tensor, training: bool = False) -> tuple[Tensor, Tensor]:
        """Reads a batch."""
        memory = self._memories[bool(training)]
        batch, steps = ops.shape(ids)[:2]
        words = self.bilm.encoder(ops.reshape(ids, (-1, *ops.shape(ids)[3:])))
        words = ops.transpose(ops.reshape(words, (batch, steps, 2, words.shape[-1])), (2, 1, 0, 3))  # (2, T, B, P)
        goes_on = goes_on[: memory.count, None]

        def before(stored: Tensors) -> Tensor:
            stored = ops.convert_to_tensor(stored)[:batch]
            return stored * ops.cast(goes_on, stored.dtype)

        state = None if memory.state is None else keras.tree.map_structure(before, memory.state)
        outputs, after = self.bilm.stacks(words[0], words[1], None, state, training)
        if memory.state is not None:
            for stored, new in zip(memory.variables, keras.tree.flatten(after), strict=True):
                new = ops.concatenate([ops.cast(new, stored.dtype), ops.convert_to_tensor(stored)[batch:]])
                stored.assign(ops.reshape(new[: memory.count], stored.shape))
        return tuple(self.dropout(ops.transpose(x, (1, 0, 2)), training=training) for x in outputs[-1])

    def compute_output_spec(self, ids: Tensor, goes_on: Tensor, training: bool = False) -> tuple[Tensor, Tensor]:
        """Shapes and dtypes of the results, which JAX cannot derive while W is unknown."""
        (_, output), *_ = self.bilm.state_spec(ids.shape[0])["forward"]
        shape = (*ids.shape[:2], output.shape[-1])
        return keras.KerasTensor(shape, output.dtype), keras.KerasTensor(shape, output.dtype)


class _Memory:
    """The state of all sequences, as variables that Keras would save if they were an attribute of the layer."""

    count = 0
    state: Tensors = None

    @property
    def variables(self) -> list[Tensor]:
        return [] if self.state is None else keras.tree.flatten(self.state)


def _zeros_like(spec: keras.KerasTensor) -> keras.Variable:
    return keras.Variable("zeros", shape=spec.shape, dtype=spec.dtype, trainable=False, autocast=False, name="memory")
