"""Layers of Keras whose low-rank updates are saved as they are if the weights under them are of int8."""

from __future__ import annotations

from typing import Any

import keras

from lmzoo.layers.initializers import TruncatedNormal
from lmzoo.layers.temporary import temporary_attributes


class AdaptedLayer(keras.layers.Layer):
    """A layer that LoRA can adapt (Hu et al., 2021).

    Keras saves the sum of a layer's weights and its updates. Of int8 weights the sum would be rounded once more, to
    other numbers than were computed with: then weights and updates are saved, and the layer is loaded with both.

    Attributes:
        keeps_updates: whether the model that is built from the configuration has the updates if weights are quantized.
    """

    keeps_updates = False
    lora_enabled: bool

    def quantize(self, mode: str | None = None, type_check: bool = True, **kwargs: Any) -> None:
        """Quantize the weights; see `keras.layers.Layer.quantize`. The types that Keras allows are its own alone."""
        super().quantize(mode, type_check=False, **kwargs)

    def save_own_variables(self, store: Any) -> None:
        """Save the variables; see `keras.layers.Layer.save_own_variables`."""
        if not stores_updates(self):
            super().save_own_variables(store)
            return
        with temporary_attributes([(self, "lora_enabled", False)]):
            super().save_own_variables(store)
        for update in updates_of(self):
            store[update.name] = update

    def load_own_variables(self, store: Any) -> None:
        """Load the variables; see `keras.layers.Layer.load_own_variables`."""
        super().load_own_variables(store)
        stored = store.keys()
        for update in updates_of(self):
            if update.name in stored:
                update.assign(store[update.name])


def updates_of(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return the two factors of a layer's low-rank updates, or nothing if it has none."""
    return [weight for weight in layer.weights if weight.name.startswith("lora_")]


def stores_updates(layer: keras.layers.Layer) -> bool:
    """Return whether files hold a layer's updates, and not the sum of its weights and its updates."""
    return isinstance(layer, AdaptedLayer) and layer.keeps_updates and layer.quantization_mode is not None


# Keras names the entries of files after classes, so the names are those of its own.
@keras.saving.register_keras_serializable(package="lmzoo")
class Dense(AdaptedLayer, keras.layers.Dense):
    """`keras.layers.Dense`, saved as `AdaptedLayer` says."""


def normal_dense(units: int, initializer_range: float, **arguments: Any) -> Dense:
    """Return a dense layer whose kernel is drawn from a truncated normal distribution of this standard deviation."""
    return Dense(units, kernel_initializer=TruncatedNormal(stddev=initializer_range), **arguments)


@keras.saving.register_keras_serializable(package="lmzoo")
class EinsumDense(AdaptedLayer, keras.layers.EinsumDense):
    """`keras.layers.EinsumDense`, saved as `AdaptedLayer` says."""


@keras.saving.register_keras_serializable(package="lmzoo")
class Embedding(AdaptedLayer, keras.layers.Embedding):
    """`keras.layers.Embedding`, saved as `AdaptedLayer` says."""


@keras.saving.register_keras_serializable(package="lmzoo")
class ReversibleEmbedding(AdaptedLayer, keras.layers.ReversibleEmbedding):
    """`keras.layers.ReversibleEmbedding`, saved as `AdaptedLayer` says."""
