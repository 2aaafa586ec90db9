"""Keras layers with LoRA updates, which are saved separately or next to the sum of weight and update."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Tensor
from lmzoo.layers.initializers import TruncatedNormal
from lmzoo.layers.temporary import set_temporary_attributes

_UPDATE_PREFIX = "lora_"  # of the names of both factors


class AdaptedLayer(keras.layers.Layer):
    """Layer that LoRA can adapt (Hu et al., 2021).

    A layer saves the sum of its weight and its low-rank update, so that a layer without LoRA computes the same from
    the file. It also saves the update, which a layer with LoRA subtracts again. With int8 weights, the sum would be
    rounded again, which changes the layer's outputs. A layer with int8 weights therefore saves both separately.

    Attributes:
        keeps_updates: bool, whether the layer saves its low-rank update.
    """

    keeps_updates = False
    lora_enabled: bool

    def quantize(self, mode: str | None = None, type_check: bool = True, **kwargs: Any) -> None:
        """Quantize the weights, without Keras' check that the layer's class is Keras' own; `type_check` is ignored."""
        super().quantize(mode, type_check=False, **kwargs)

    def save_own_variables(self, store: Any) -> None:
        """Write the layer's variables to `store`, with the low-rank update if the layer keeps it."""
        updates = get_updates(self)
        is_merged = self.quantization_mode is None
        if not updates or not (is_merged or self.keeps_updates):
            super().save_own_variables(store)
            return
        variables: dict[str, Any] = {}
        with set_temporary_attributes([(self, "lora_enabled", False)]):
            super().save_own_variables(variables)
        base_weight = get_base_weight(self)
        for name, value in variables.items():
            store[name] = merge_updates(self) if is_merged and value is base_weight else value
        for update in updates if self.keeps_updates else ():
            store[update.name] = update

    def load_own_variables(self, store: Any) -> None:
        """Read the layer's variables from `store`, with the low-rank update if `store` has one of the same rank.

        Otherwise, a layer with LoRA gets a new update, which is zero before training.
        """
        variables = {name: store[name] for name in store.keys()}  # noqa: SIM118
        stored_updates = {name: value for name, value in variables.items() if name.startswith(_UPDATE_PREFIX)}
        is_merged = self.quantization_mode is None
        if is_merged:
            variables = {name: value for name, value in variables.items() if name not in stored_updates}
        super().load_own_variables(variables)  # sets the factors of the update to zero
        updates = get_updates(self)
        shapes = {name: value.shape for name, value in stored_updates.items()}
        if not updates or (is_merged and shapes != {update.name: tuple(update.shape) for update in updates}):
            stored_updates = {}
        for update in updates:
            if stored_updates:
                update.assign(stored_updates[update.name])
            elif update.name.endswith("_a"):  # if both factors were zero, they would have no gradient
                update.assign(keras.initializers.HeUniform()(update.shape))
        if is_merged and stored_updates:
            base_weight = get_base_weight(self)
            base_weight.assign(ops.cast(ops.subtract(base_weight, compute_update(self)), base_weight.dtype))


def get_updates(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return the two factors of a layer's low-rank update in order, or an empty list without LoRA."""
    updates = [weight for weight in layer.weights if weight.name.startswith(_UPDATE_PREFIX)]
    return sorted(updates, key=lambda weight: weight.name)  # "…_a", "…_b"


def get_base_weight(layer: keras.layers.Layer) -> keras.Variable:
    """Return the weight of a layer to which LoRA adds its update."""
    return next(weight for weight in layer.weights if weight.name in ("kernel", "embeddings"))


def compute_update(layer: keras.layers.Layer) -> Tensor:
    """Return the low-rank update of a layer with LoRA, in float32."""
    return (layer.lora_alpha / layer.lora_rank) * ops.matmul(*get_updates(layer))


def merge_updates(layer: keras.layers.Layer) -> Tensor:
    """Return the sum of a layer's weight and its low-rank update, in the dtype of the weight.

    Keras' own sum is rounded to the dtype in which the layer computes.
    """
    base_weight = get_base_weight(layer)
    return ops.cast(ops.add(base_weight, compute_update(layer)), base_weight.dtype)


@contextlib.contextmanager
def leave_out_merged_updates(layers: Iterable[keras.layers.Layer]) -> Iterator[None]:
    """Save layers in the block without the updates that are added to their weights; int8 layers keep theirs."""
    merged_layers = [layer for layer in layers if get_updates(layer) and not stores_updates(layer)]
    with set_temporary_attributes((layer, "keeps_updates", False) for layer in merged_layers):
        yield


def stores_updates(layer: keras.layers.Layer) -> bool:
    """Return whether files hold a layer's low-rank updates separately, instead of added to its weights."""
    return isinstance(layer, AdaptedLayer) and layer.keeps_updates and layer.quantization_mode is not None


# Keras names the entries of weight files after classes, so these classes have the names of Keras' own.
@keras.saving.register_keras_serializable(package="lmzoo")
class Dense(AdaptedLayer, keras.layers.Dense):
    """`keras.layers.Dense` that also saves its LoRA update; see `AdaptedLayer`."""


def make_normal_dense(units: int, initializer_range: float, **arguments: Any) -> Dense:
    """Return a `Dense` layer with a truncated normal initializer of standard deviation `initializer_range`."""
    return Dense(units, kernel_initializer=TruncatedNormal(stddev=initializer_range), **arguments)


@keras.saving.register_keras_serializable(package="lmzoo")
class EinsumDense(AdaptedLayer, keras.layers.EinsumDense):
    """`keras.layers.EinsumDense` that also saves its LoRA update; see `AdaptedLayer`."""


@keras.saving.register_keras_serializable(package="lmzoo")
class Embedding(AdaptedLayer, keras.layers.Embedding):
    """`keras.layers.Embedding` that also saves its LoRA update; see `AdaptedLayer`."""


@keras.saving.register_keras_serializable(package="lmzoo")
class ReversibleEmbedding(AdaptedLayer, keras.layers.ReversibleEmbedding):
    """`keras.layers.ReversibleEmbedding` that also saves its LoRA update; see `AdaptedLayer`."""
