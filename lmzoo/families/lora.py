"""Low-rank updates of some layers of a model (Hu et al., 2021)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import keras

from lmzoo.common.arguments import is_integer, require
from lmzoo.families.named_inputs import NamedInputsModel
from lmzoo.layers.adapted import AdaptedLayer
from lmzoo.layers.sublayers import sublayers


class LoraModel(NamedInputsModel):
    """A model whose layers take low-rank updates.

    Attributes:
        lora_rank: Rank of the updates, or None without any.
    """

    lora_rank: int | None = None

    def enable_lora(self, rank: int, target_layer_names: tuple[str, ...] = ("query", "value")) -> None:
        """Freeze the model and add trainable low-rank updates to some projections (Hu et al., 2021).

        Files hold the weights with the updates added: a loaded model computes the same, without LoRA. Weights of int8
        stay as they are: their updates are saved, and the loaded model has them.

        Args:
            rank: int, rank of the updates.
            target_layer_names: names of the Dense layers to adapt.

        Raises:
            ValueError: for a rank that is not a positive integer, or if there is no Dense layer with these names.
        """
        require(is_integer(rank, 1), "rank", "a positive integer", rank)
        self._adapt(find_targets(self, target_layer_names), rank)

    def _adapt(self, targets: Sequence[keras.layers.Layer], rank: int) -> None:
        """Freeze the model and add updates to some of its layers."""
        self.trainable = True
        self.lora_rank = rank
        freeze_others(self, targets)
        for layer in targets:
            with self.device_scope():
                add_updates(layer, rank)


def find_targets(model: keras.Model, names: Collection[str]) -> list[keras.layers.Layer]:
    """Return the layers with some names that LoRA can adapt.

    Raises:
        ValueError: if there is none.
    """
    adaptable = [layer for layer in sublayers(model) if hasattr(layer, "enable_lora")]
    targets = [layer for layer in adaptable if layer.name in names]
    if not targets:
        possible = ", ".join(sorted({layer.name for layer in adaptable})) or "none of its layers"
        raise ValueError(
            f"No layer of this {type(model).__name__} is called {' or '.join(map(repr, names))}. LoRA can adapt "
            f"{possible}: see `target_layer_names`."
        )
    return targets


def freeze_others(model: keras.Model, targets: Sequence[keras.layers.Layer]) -> None:
    """Freeze all layers of a model but some."""
    for layer in sublayers(model):
        inside = [*sublayers(layer)]
        if layer in targets:
            continue
        if not inside:
            layer.trainable = False
        else:  # its own weights
            inner_ids = {id(weight) for part in inside for weight in part.weights}
            for weight in layer.trainable_weights:
                weight.trainable &= id(weight) in inner_ids


def add_updates(layer: keras.layers.Layer, rank: int) -> None:
    """Add updates of a rank to a layer, and freeze its weights."""
    frozen = layer.trainable_weights
    layer.enable_lora(rank)
    if isinstance(layer, AdaptedLayer):
        layer.keeps_updates = True
    for weight in frozen:
        weight.trainable = False
