"""LoRA: trainable low-rank updates of a model's layers (Hu et al., 2021)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import keras
import numpy as np

from lmzoo.checkpoints.formats.hdf5 import Hdf5File, write_hdf5
from lmzoo.common.arguments import is_integer, require
from lmzoo.errors import PresetError
from lmzoo.families.named_inputs import NamedInputsModel
from lmzoo.files.atomic import check_path
from lmzoo.layers.adapted import AdaptedLayer, get_base_weight, get_updates
from lmzoo.layers.finite import describe_not_finite, warn_about_not_finite
from lmzoo.layers.sublayers import sublayers

_SUFFIX = ".lora.h5"
_RANK = "lora/rank"


class LoraModel(NamedInputsModel):
    """Functional model with support for low-rank updates of its layers (LoRA).

    Attributes:
        lora_rank: int, rank of the updates, or None without LoRA.
    """

    lora_rank: int | None = None

    def enable_lora(self, rank: int, target_layer_names: tuple[str, ...] = ("query", "value")) -> None:
        """Freeze the model and add trainable low-rank updates to some of its layers (Hu et al., 2021).

        When a model is saved, its updates are merged into the saved weights: the loaded model computes the same outputs
        without LoRA. The updates are also saved, so `load_weights` into a model with LoRA of the same rank restores
        weights and updates. Updates of int8 weights are only saved separately, so the loaded model still has LoRA.

        Args:
            rank: int, rank of the updates.
            target_layer_names: names of the dense or embedding layers to adapt.

        Raises:
            ValueError: If `rank` is not a positive integer, no such layer has one of the names, or the model already
                has LoRA.
        """
        require(is_integer(rank, 1), "rank", "a positive integer", rank)
        if self.lora_rank:
            raise ValueError(
                f"This {type(self).__name__} already has LoRA of rank {self.lora_rank}. Name all layers to adapt in "
                "one call of `enable_lora`, on a model without LoRA."
            )
        adaptable_layers = [layer for layer in sublayers(self) if hasattr(layer, "enable_lora")]
        targets = [layer for layer in adaptable_layers if layer.name in target_layer_names]
        if not targets:
            adaptable_names = ", ".join(sorted({layer.name for layer in adaptable_layers})) or "none of its layers"
            raise ValueError(
                f"No layer of this {type(self).__name__} is called {' or '.join(map(repr, target_layer_names))}. LoRA "
                f"can adapt {adaptable_names}: see `target_layer_names`."
            )
        self._adapt(targets, rank)

    def save_lora_weights(self, filepath: str | Path) -> None:
        """Write the low-rank updates to a file, without the weights of the model.

        With several processes, call this in only one of them.

        Args:
            filepath: path that ends in `.lora.h5`. If writing fails, an existing file is left unchanged.

        Raises:
            ValueError: If the model has no LoRA, or `filepath` does not end in `.lora.h5`.
            OSError: If the file cannot be written.

        Example:

        ```python
        import lmzoo

        backbone = lmzoo.models.Backbone.from_preset("bert_nano_en_uncased")
        backbone.enable_lora(4)
        backbone.save_lora_weights("reviews.lora.h5")

        again = lmzoo.models.Backbone.from_preset("bert_nano_en_uncased")
        again.load_lora_weights("reviews.lora.h5")
        ```
        """
        path = _check_lora_path(filepath)
        if not self.lora_rank:
            raise ValueError(f"This {type(self).__name__} has no LoRA to save. Call `enable_lora(rank)` first.")
        named_arrays = [(_RANK, np.array(self.lora_rank))]
        for layer_path, layer in _list_lora_layers(self).items():
            named_arrays += [(f"lora/{layer_path}/{update.name}", _as_array(update)) for update in get_updates(layer)]
        write_hdf5(path, named_arrays)

    def load_lora_weights(self, filepath: str | Path) -> None:
        """Load low-rank updates from a file written by `save_lora_weights`.

        In a model without LoRA, this first enables LoRA with the rank and layers in the file. To train a task on the
        model afterwards, `compile` the task again.

        Args:
            filepath: path that ends in `.lora.h5`. The model must have the weights that the updates were trained with,
                for example weights from the same preset.

        Raises:
            PresetError: If the file is missing or damaged, has no updates, or has updates that do not fit the model's
                layers. The model is left unchanged.
            ValueError: If `filepath` does not end in `.lora.h5`, or the model has LoRA with another rank or in other
                layers.
        """
        path = _check_lora_path(filepath)
        rank, updates = _read_updates(path)
        layers = {layer.path: layer for layer in sublayers(self) if hasattr(layer, "enable_lora")}
        for layer_path, arrays in updates.items():
            if layer_path not in layers:
                raise PresetError(
                    f"{path} holds updates of {layer_path!r}, but this {type(self).__name__} has no such layer: they "
                    "were saved from another model."
                )
            _check_shapes(path, rank, layers[layer_path], arrays)
        if not self.lora_rank:
            self._adapt([layers[layer_path] for layer_path in updates], rank)
        elif self.lora_rank != rank:
            raise ValueError(
                f"{path} holds updates of rank {rank}, but the LoRA of this {type(self).__name__} has rank "
                f"{self.lora_rank}. Load them into a model without LoRA."
            )
        elif unmatched_paths := sorted(_list_lora_layers(self).keys() ^ updates.keys()):
            raise ValueError(
                f"{path} holds updates of other layers than the LoRA of this {type(self).__name__}: only one of them "
                f"has {unmatched_paths[0]!r}. Load them into a model without LoRA."
            )
        for layer_path, arrays in updates.items():
            for update in get_updates(layers[layer_path]):
                warn_about_not_finite(path, describe_not_finite(update.path, arrays[update.name]))
                update.assign(arrays[update.name])

    def _adapt(self, targets: Sequence[keras.layers.Layer], rank: int) -> None:
        """Freeze the model and add low-rank updates to the layers `targets`."""
        self.trainable = True
        self.lora_rank = rank
        freeze_except(self, targets)
        for layer in targets:
            base_weights = layer.trainable_weights
            layer.enable_lora(rank)
            if isinstance(layer, AdaptedLayer):
                layer.keeps_updates = True
            for weight in base_weights:
                weight.trainable = False


def freeze_except(model: keras.Model, targets: Sequence[keras.layers.Layer]) -> None:
    """Freeze all weights of a model except the weights of the layers `targets`."""
    for layer in sublayers(model):
        children = [*sublayers(layer)]
        if layer in targets:
            continue
        if not children:
            layer.trainable = False
        else:  # only the layer's own weights, since its children may be targets
            child_weight_ids = {id(weight) for child in children for weight in child.weights}
            for weight in layer.trainable_weights:
                weight.trainable &= id(weight) in child_weight_ids


def _list_lora_layers(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """Return the layers with low-rank updates, by path."""
    return {layer.path: layer for layer in sublayers(model) if getattr(layer, "lora_enabled", False)}


def _as_array(variable: keras.Variable) -> np.ndarray:
    """Return a variable's values in a dtype that HDF5 supports."""
    values = keras.ops.cast(variable, "float32") if variable.dtype == "bfloat16" else variable
    return keras.ops.convert_to_numpy(values)


def _check_lora_path(filepath: str | Path) -> Path:
    """Check the suffix of a LoRA file, and return its path with `~` expanded.

    Raises:
        ValueError: If the path does not end in `.lora.h5`.
    """
    check_path(filepath)
    path = Path(filepath).expanduser()
    if not path.name.endswith(_SUFFIX):
        raise ValueError(f"Files of low-rank updates end in `{_SUFFIX}`, got {str(filepath)!r}.")
    return path


def _read_updates(path: Path) -> tuple[int, dict[str, dict[str, np.ndarray]]]:
    """Read a LoRA file, and return the rank and the updates by layer path and variable name.

    Raises:
        PresetError: If the file is missing, damaged, or not a LoRA file.
    """
    with contextlib.closing(Hdf5File(path)) as file:
        arrays = {name: file.read(name) for name in file.names()}
    rank = arrays.pop(_RANK, None)
    if rank is None or rank.ndim or not is_integer(rank[()], 1) or not arrays:
        raise PresetError(f"{path} holds no low-rank updates: it was not written by `save_lora_weights`.")
    updates: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        layer_path, _, update_name = name.removeprefix("lora/").rpartition("/")
        updates.setdefault(layer_path, {})[update_name] = array
    return int(rank), updates


def _check_shapes(path: Path, rank: int, layer: keras.layers.Layer, arrays: Mapping[str, np.ndarray]) -> None:
    """Check that low-rank updates fit the weight of a layer.

    Args:
        path: path of the file with the updates, for messages.
        rank: int, rank of the updates.
        layer: the layer.
        arrays: the layer's updates in the file, by name.

    Raises:
        PresetError: If a shape is wrong, or an array is missing or unexpected.
    """
    weight = get_base_weight(layer)
    # With updates, the layer's attribute of the same name as the weight would compute the sum of both.
    if factors := get_updates(layer):
        shape = (*factors[0].shape[:-1], factors[1].shape[-1])
    else:
        shape = tuple(getattr(layer, weight.name).shape)  # unlike the variable, not packed if it is int4
    expected_shapes = {
        f"lora_{weight.name}_a": (*shape[:-1], rank),
        f"lora_{weight.name}_b": (rank, shape[-1]),
    }
    stored_shapes = {name: array.shape for name, array in arrays.items()}
    if stored_shapes != expected_shapes:
        raise PresetError(
            f"{path} does not fit this model: the updates of {layer.path!r} must have the shapes {expected_shapes}, "
            f"got {stored_shapes}."
        )
