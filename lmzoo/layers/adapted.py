"""Keras layers that save their LoRA updates along with their weights."""

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

    A layer saves the sum of its weight and its low-rank update, so that a layer without LoRA computes the same outputs
    after loading. With `keeps_updates`, it also saves the update, which a layer with LoRA subtracts from the sum when
    it loads the file. Adding the update to int8 weights would round them again and change the layer's outputs. A layer
    with int8 weights therefore saves weights and update separately.

    Attributes:
        keeps_updates: bool, whether the layer saves its low-rank update.
    """

    keeps_updates = False
    lora_enabled: bool

    def quantize(self, mode: str | None = None, type_check: bool = True, **kwargs: Any) -> None:
        """Quantize the weights, without Keras' check that the layer's class is Keras' own; `type_check` is ignored."""
        super().quantize(mode, type_check=False, **kwargs)

    def save_own_variables(self, store: Any) -> None:
        """Write the layer's variables to `store`, including its low-rank update if `keeps_updates` is True."""
        factors = get_updates(self)
        is_merged = self.quantization_mode is None
        if not factors or not (is_merged or self.keeps_updates):
            super().save_own_variables(store)
            return
        variables: dict[str, Any] = {}
        with set_temporary_attributes([(self, "lora_enabled", False)]):
            super().save_own_variables(variables)
        base_weight = get_base_weight(self)
        for name, value in variables.items():
            store[name] = merge_updates(self) if is_merged and value is base_weight else value
        for factor in factors if self.keeps_updates else ():
            store[factor.name] = factor

    def load_own_variables(self, store: Any) -> None:
        """Read the layer's variables from `store`, with the low-rank update if `store` has one of the same rank.

        Otherwise, a layer with LoRA gets a new update, which is zero before training.
        """
        variables = dict(store)
        stored_factors = {name: value for name, value in variables.items() if name.startswith(_UPDATE_PREFIX)}
        is_merged = self.quantization_mode is None
        if is_merged:
            variables = {name: value for name, value in variables.items() if name not in stored_factors}
        super().load_own_variables(variables)  # sets the factors of the update to zero
        factors = get_updates(self)
        shapes = {name: value.shape for name, value in stored_factors.items()}
        if not factors or (is_merged and shapes != {factor.name: tuple(factor.shape) for factor in factors}):
            stored_factors = {}
        for factor in factors:
            if stored_factors:
                factor.assign(stored_factors[factor.name])
            elif factor.name.endswith("_a"):  # if both factors were zero, they would have no gradient
                factor.assign(keras.initializers.HeUniform()(factor.shape))
        if is_merged and stored_factors:
            base_weight = get_base_weight(self)
            base_weight.assign(ops.cast(ops.subtract(base_weight, compute_update(self)), base_weight.dtype))


def get_updates(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return the two factors of a layer's low-rank update in order, or an empty list without LoRA."""
    factors = [weight for weight in layer.weights if weight.name.startswith(_UPDATE_PREFIX)]
    return sorted(factors, key=lambda weight: weight.name)  # "…_a", "…_b"


def get_base_weight(layer: keras.layers.Layer) -> keras.Variable:
    """Return the weight of a layer to which LoRA adds its update."""
    return next(weight for weight in layer.weights if weight.name in ("kernel", "embeddings"))


def compute_update(layer: keras.layers.Layer) -> Tensor:
    """Return the low-rank update of a layer with LoRA, in the dtype of its factors."""
    return (layer.lora_alpha / layer.lora_rank) * ops.matmul(*get_updates(layer))


def merge_updates(layer: keras.layers.Layer) -> Tensor:
    """Return the sum of a layer's weight and its low-rank update, in the dtype of the weight.

    Keras' own sum is rounded to the dtype in which the layer computes.
    """
    base_weight = get_base_weight(layer)
    return ops.cast(ops.add(base_weight, compute_update(layer)), base_weight.dtype)


@contextlib.contextmanager
def leave_out_merged_updates(layers: Iterable[keras.layers.Layer]) -> Iterator[None]:
    """Save layers, within the block, without the low-rank updates that are also added to their weights.

    Updates of int8 weights are still saved, since they are stored only separately.
    """
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
