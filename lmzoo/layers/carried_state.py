"""Recurrent layers that carry their state from batch to batch."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Features, Tensor, Tensors
from lmzoo.layers.configured import ConfiguredLayer

# Name of the variables for evaluation and prediction, which are reset to zeros before each run.
OUTSIDE_TRAINING = "memory_outside_training"


class CarriesState(ConfiguredLayer):
    """Base class of layers that continue each sequence where it stopped in the previous batch.

    The state after each sequence is stored in variables, one set for training and one for evaluation and prediction.
    These variables are not weights and are not saved. Gradients stop at the beginning of a batch.

    Subclasses take the call argument `goes_on`, int32 (B,): 1 for a sequence that continues the previous batch's
    sequence in the same row, 0 for a sequence that starts from zeros.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)  # autocasting would round the memory of LSTMs
        self._memories = _Memory(), _Memory()  # indexed by `training`

    @abstractmethod
    def state_spec(self, batch: int) -> Tensors:
        """Return the shapes and dtypes of the state for `batch` sequences."""

    @property
    def variables(self) -> list[keras.Variable]:
        """All variables of the layer, including the state."""
        return [*super().variables, *(v for memory in self._memories for v in memory.variables)]

    def make_room(self, count: int, training: bool) -> bool:
        """Allocate the state of `count` sequences, as zeros, if there is not enough room yet.

        In larger batches, the sequences beyond `count` always start from zeros.

        Args:
            count: int, number of sequences.
            training: bool, whether to allocate the state for training, rather than for evaluation and prediction.

        Returns:
            Whether new variables were created; functions compiled earlier do not use them.
        """
        memory = self._memories[bool(training)]
        if count <= memory.count:
            return False
        memory.count = count
        name = "memory" if training else OUTSIDE_TRAINING
        memory.state = keras.tree.map_structure(lambda spec: _make_zero_variable(spec, name), self.state_spec(count))
        return True

    def make_initial_state(self, goes_on: Tensor, training: bool) -> Tensors:
        """Return each sequence's initial state, tensors (B, H) of width H, or None before `make_room` is called."""
        memory = self._memories[bool(training)]
        if memory.state is None:
            return None
        batch = ops.shape(goes_on)[0]
        goes_on = goes_on[: memory.count, None]

        def mask_stored_state(stored_state: Tensor) -> Tensor:
            state = ops.convert_to_tensor(stored_state)[:batch]
            state = state * ops.cast(goes_on, state.dtype)
            return ops.pad(state, ((0, batch - ops.shape(state)[0]), (0, 0)))  # (B, H)

        return keras.tree.map_structure(mask_stored_state, memory.state)

    def store_state(self, after: Tensors, batch: int | Tensor, training: bool) -> None:
        """Store `after`, the state of `batch` sequences after their last step, for the next batch.

        States of sequences for which there is no room are not stored.
        """
        memory = self._memories[bool(training)]
        for variable, new_value in zip(
            memory.variables, keras.tree.flatten(after) if memory.variables else (), strict=True
        ):
            new_value = ops.concatenate([ops.cast(new_value, variable.dtype), ops.convert_to_tensor(variable)[batch:]])
            variable.assign(ops.reshape(new_value[: memory.count], variable.shape))


def fit_to_batch(state: Tensors, zeros: Tensors) -> Tensors:
    """Return the rows of a state for the sequences of a batch, in the dtypes of `zeros`.

    Args:
        state: tensors (S, ...), the state of S sequences.
        zeros: zeros (B, ...) in the same structure, the state of the batch's sequences from the S-th on.
    """

    def fit(stored: Tensor, zero: Tensor) -> Tensor:
        return ops.concatenate([ops.cast(stored, zero.dtype), zero])[: ops.shape(zero)[0]]  # (B, ...)

    return keras.tree.map_structure(fit, *map(keras.tree.lists_to_tuples, (state, zeros)))


def keep_missing_sequences(new_state: Tensors, state: Tensors) -> Tensors:
    """Return the state after a batch of B sequences, with the earlier state of all sequences after the B-th.

    Args:
        new_state: tensors (B, ...), the state of the batch's sequences.
        state: tensors (S, ...) in the same structure, the earlier state of S sequences.
    """

    def extend(new: Tensor, old: Tensor) -> Tensor:
        return ops.concatenate([new, ops.cast(old, new.dtype)[ops.shape(new)[0] :]])  # (max(B, S), ...)

    return keras.tree.map_structure(extend, *map(keras.tree.lists_to_tuples, (new_state, state)))


@keras.saving.register_keras_serializable(package="lmzoo")
class StreamedBackbone(CarriesState):
    """Recurrent backbone that continues each sequence of the previous batch.

    Args:
        backbone: a backbone with the method `call_with_state`; the layer shares its weights.

    Call arguments: `token_ids` and `padding_mask`, int32 (B, T), and `goes_on`, int32 (B,). Returns the last hidden
    states, float (B, T, H). With `vectors`, float (B, T, H), the layer instead returns the `token_logits` of these
    vectors, float32 (B, T, V), for a vocabulary of V tokens.
    """

    def __init__(self, backbone: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.backbone = backbone
        self.built = True

    def state_spec(self, batch: int) -> Tensors:
        """Return the shapes and dtypes of the state for `batch` sequences."""
        return self.backbone.state_spec(batch)

    def call(
        self,
        token_ids: Tensor,
        padding_mask: Tensor,
        goes_on: Tensor,
        vectors: Tensor | None = None,
        training: bool = False,
    ) -> Tensor:
        """Return the last hidden states of a batch, or the token logits of `vectors`."""
        if vectors is not None:
            return self.backbone.token_logits(vectors)
        inputs: Features = {"token_ids": token_ids, "padding_mask": padding_mask}
        initial_state = self.make_initial_state(goes_on, training)
        outputs, final_state = self.backbone.call_with_state(inputs, initial_state, training=training)
        self.store_state(final_state, ops.shape(token_ids)[0], training)
        return outputs["sequence_output"]

    def compute_output_spec(
        self, token_ids: Tensor, *args: Tensor, vectors: Tensor | None = None, **kwargs: Any
    ) -> keras.KerasTensor:
        """Return the shape and dtype of the hidden states or logits."""
        if vectors is not None:
            return self.backbone.compute_output_spec(self.backbone.input, vectors=vectors)
        width = self.backbone.output["sequence_output"].shape[-1]
        return keras.KerasTensor((*token_ids.shape[:2], width), self.compute_dtype)


class _Memory:
    """Variables that hold the state of all sequences, in a separate object so that Keras does not save them."""

    count = 0
    state: Tensors = None

    @property
    def variables(self) -> list[keras.Variable]:
        return [] if self.state is None else keras.tree.flatten(self.state)


def _make_zero_variable(spec: keras.KerasTensor, name: str) -> keras.Variable:
    """Return a non-trainable variable of zeros with the shape and dtype of `spec`."""
    return keras.Variable("zeros", shape=spec.shape, dtype=spec.dtype, trainable=False, autocast=False, name=name)
