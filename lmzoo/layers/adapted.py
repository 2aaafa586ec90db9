"""Keras layers with LoRA updates, which are saved separately if the weights are int8."""

from __future__ import annotations

from typing import Any

import keras

from lmzoo.layers.initializers import TruncatedNormal
from lmzoo.layers.temporary import set_temporary_attributes


class AdaptedLayer(keras.layers.Layer):
    """Layer that LoRA can adapt (Hu et al., 2021).

    Keras saves the sum of a layer's weights and its low-rank updates. With int8 weights, the sum would be rounded
    again, which changes the layer's outputs. A layer with int8 weights therefore saves and loads both separately.

    Attributes:
        keeps_updates: bool, whether a quantized layer saves its updates next to its weights.
    """

    keeps_updates = False
    lora_enabled: bool

    def quantize(self, mode: str | None = None, type_check: bool = True, **kwargs: Any) -> None:
        """Quantize the weights, without Keras' check that the layer's class is Keras' own; `type_check` is ignored."""
        super().quantize(mode, type_check=False, **kwargs)

    def save_own_variables(self, store: Any) -> None:
        """Write the layer's variables to `store`; a quantized layer also writes its low-rank updates."""
        if not stores_updates(self):
            super().save_own_variables(store)
            return
        with set_temporary_attributes([(self, "lora_enabled", False)]):
            super().save_own_variables(store)
        for update in get_updates(self):
            store[update.name] = update

    def load_own_variables(self, store: Any) -> None:
        """Read the layer's variables from `store`, with its low-rank updates if `store` has them."""
        super().load_own_variables(store)
        stored_names = store.keys()
        for update in get_updates(self):
            if update.name in stored_names:
                update.assign(store[update.name])


def get_updates(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return the two factors of a layer's low-rank update, or an empty list without LoRA."""
    return [weight for weight in layer.weights if weight.name.startswith("lora_")]


def stores_updates(layer: keras.layers.Layer) -> bool:
    """Return whether files hold a layer's low-rank updates separately, instead of added to its weights."""
    return isinstance(layer, AdaptedLayer) and layer.keeps_updates and layer.quantization_mode is not None


# Keras names the entries of weight files after classes, so these classes have the names of Keras' own.
@keras.saving.register_keras_serializable(package="lmzoo")
class Dense(AdaptedLayer, keras.layers.Dense):
    """`keras.layers.Dense` that saves its LoRA updates separately if it is quantized; see `AdaptedLayer`."""


def make_normal_dense(units: int, initializer_range: float, **arguments: Any) -> Dense:
    """Return a `Dense` layer with a truncated normal initializer of standard deviation `initializer_range`."""
    return Dense(units, kernel_initializer=TruncatedNormal(stddev=initializer_range), **arguments)


@keras.saving.register_keras_serializable(package="lmzoo")
class EinsumDense(AdaptedLayer, keras.layers.EinsumDense):
    """`keras.layers.EinsumDense` that saves its LoRA updates separately if it is quantized; see `AdaptedLayer`."""


@keras.saving.register_keras_serializable(package="lmzoo")
class Embedding(AdaptedLayer, keras.layers.Embedding):
    """`keras.layers.Embedding` that saves its LoRA updates separately if it is quantized; see `AdaptedLayer`."""


@keras.saving.register_keras_serializable(package="lmzoo")
class ReversibleEmbedding(AdaptedLayer, keras.layers.ReversibleEmbedding):
    """`keras.layers.ReversibleEmbedding` that saves LoRA updates separately if it is quantized; see `AdaptedLayer`."""
