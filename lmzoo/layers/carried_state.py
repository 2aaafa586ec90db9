"""States of recurrent layers that are carried from batch to batch."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Features, Tensor, Tensors
from lmzoo.layers.configured import ConfiguredLayer

# Name of the variables of evaluations and predictions, each of which starts from zeros.
OUTSIDE_TRAINING = "memory_outside_training"


class CarriesState(ConfiguredLayer):
    """Base of layers that continue each sequence where it stopped in the previous batch.

    The state after each sequence is kept in variables, one set for training and one for everything else. They are not
    weights and are not saved. Gradients stop at the beginning of a batch.

    Among the call arguments is `goes_on`, int32 (B,): 1 for sequences that continue those of the previous batch, 0 for
    those that start from zeros.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)  # otherwise the memory of LSTMs would be rounded
        self._memories = _Memory(), _Memory()  # for everything else, for training

    @abstractmethod
    def state_spec(self, batch: int) -> Tensors:
        """Return the shapes and dtypes of a state of `batch` sequences."""

    @property
    def variables(self) -> list[keras.Variable]:
        """All variables, the state included."""
        return [*super().variables, *(v for memory in self._memories for v in memory.variables)]

    def make_room(self, count: int, training: bool) -> bool:
        """Make room for the state of `count` sequences; in larger batches the others always start from zeros.

        There is one state for training, and one for everything else.

        Returns:
            Whether there was less room before. Functions that were compiled before do not use the new variables.
        """
        memory = self._memories[training]
        if count <= memory.count:
            return False
        memory.count = count
        name = "memory" if training else OUTSIDE_TRAINING
        memory.state = keras.tree.map_structure(lambda spec: _zeros_like(spec, name), self.state_spec(count))
        return True

    def state_before(self, goes_on: Tensor, training: bool) -> Tensors:
        """Return the states from which a batch's sequences start, (B, H) each; None if there is no room."""
        memory = self._memories[bool(training)]
        if memory.state is None:
            return None
        batch = ops.shape(goes_on)[0]
        goes_on = goes_on[: memory.count, None]

        def before(stored: Tensor) -> Tensor:
            known = ops.convert_to_tensor(stored)[:batch]
            known = known * ops.cast(goes_on, known.dtype)
            return ops.pad(known, ((0, batch - ops.shape(known)[0]), (0, 0)))  # (B, H)

        return keras.tree.map_structure(before, memory.state)

    def keep_state(self, after: Tensors, batch: int | Tensor, training: bool) -> None:
        """Keep the state after a batch of so many sequences."""
        memory = self._memories[bool(training)]
        for stored, new in zip(memory.variables, keras.tree.flatten(after) if memory.variables else (), strict=True):
            new = ops.concatenate([ops.cast(new, stored.dtype), ops.convert_to_tensor(stored)[batch:]])
            stored.assign(ops.reshape(new[: memory.count], stored.shape))


@keras.saving.register_keras_serializable(package="lmzoo")
class StreamedBackbone(CarriesState):
    """The last hidden states of a backbone with `call_with_state`, which continues each sequence.

    Args:
        backbone: a recurrent backbone, whose weights these are.

    Call arguments: the backbone's inputs, `token_ids` and `padding_mask`, int32 (B, T), and `goes_on`. Returns float
    (B, T, H). With `vectors`, float (B, T, H), it returns the backbone's `token_logits` of these, float32 (B, T, V).
    """

    def __init__(self, backbone: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.backbone = backbone
        self.built = True

    def state_spec(self, batch: int) -> Tensors:
        """Return the shapes and dtypes of a state of `batch` sequences."""
        return self.backbone.state_spec(batch)

    def call(
        self,
        token_ids: Tensor,
        padding_mask: Tensor,
        goes_on: Tensor,
        vectors: Tensor | None = None,
        training: bool = False,
    ) -> Tensor:
        """Read a batch, or compute logits of vectors."""
        if vectors is not None:
            return self.backbone.token_logits(vectors)
        inputs: Features = {"token_ids": token_ids, "padding_mask": padding_mask}
        before = self.state_before(goes_on, training)
        outputs, after = self.backbone.call_with_state(inputs, before, training=training)
        self.keep_state(after, ops.shape(token_ids)[0], training)
        return outputs["sequence_output"]

    def compute_output_spec(
        self, token_ids: Tensor, *args: Tensor, vectors: Tensor | None = None, **kwargs: Any
    ) -> keras.KerasTensor:
        """Return the shape and dtype of the result."""
        if vectors is not None:
            return self.backbone.compute_output_spec(self.backbone.input, vectors=vectors)
        width = self.backbone.output["sequence_output"].shape[-1]
        return keras.KerasTensor((*token_ids.shape[:2], width), self.compute_dtype)


class _Memory:
    """The state of all sequences, as variables that Keras would save if they were an attribute of the layer."""

    count = 0
    state: Tensors = None

    @property
    def variables(self) -> list[keras.Variable]:
        return [] if self.state is None else keras.tree.flatten(self.state)


def _zeros_like(spec: keras.KerasTensor, name: str) -> keras.Variable:
    return keras.Variable("zeros", shape=spec.shape, dtype=spec.dtype, trainable=False, autocast=False, name=name)
