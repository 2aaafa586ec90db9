"""Low-rank updates of some layers of a model (Hu et al., 2021)."""

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
from lmzoo.layers.adapted import AdaptedLayer, updates_of
from lmzoo.layers.finite import not_finite, warn_of_not_finite
from lmzoo.layers.sublayers import sublayers

_SUFFIX = ".lora.h5"
_RANK = "lora/rank"


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
        adaptable = [layer for layer in sublayers(self) if hasattr(layer, "enable_lora")]
        targets = [layer for layer in adaptable if layer.name in target_layer_names]
        if not targets:
            possible = ", ".join(sorted({layer.name for layer in adaptable})) or "none of its layers"
            raise ValueError(
                f"No layer of this {type(self).__name__} is called {' or '.join(map(repr, target_layer_names))}. LoRA "
                f"can adapt {possible}: see `target_layer_names`."
            )
        self._adapt(targets, rank)

    def save_lora_weights(self, filepath: str | Path) -> None:
        """Write the low-rank updates to a file, without the weights that they are added to.

        Of several processes, only one should write.

        Args:
            filepath: path of a file that ends in `.lora.h5`. If writing fails, an existing one stays as it was.

        Raises:
            ValueError: if the model has no LoRA, or the path has another ending.
            OSError: if the file cannot be written.

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
        path = _lora_path(filepath)
        if not self.lora_rank:
            raise ValueError(f"This {type(self).__name__} has no LoRA to save. Call `enable_lora(rank)` first.")
        arrays = [(_RANK, np.array(self.lora_rank))]
        for layer_path, layer in _adapted(self).items():
            arrays += [(f"lora/{layer_path}/{update.name}", _as_array(update)) for update in updates_of(layer)]
        write_hdf5(path, arrays)

    def load_lora_weights(self, filepath: str | Path) -> None:
        """Read low-rank updates that `save_lora_weights` wrote.

        A model without LoRA gets it as if `enable_lora` had been called, with the rank and the layers of the file. Then
        `compile` a task on the model again, as after `enable_lora`.

        Args:
            filepath: path of a file that ends in `.lora.h5`. The updates fit the weights next to which they were
                trained, such as those of the same preset.

        Raises:
            PresetError: if the file is missing or damaged, holds something else, or updates that do not fit the
                model's layers. The model stays as it was.
            ValueError: if the path has another ending, or the model has LoRA of another rank or in other layers.
        """
        path = _lora_path(filepath)
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
        elif different := sorted(_adapted(self).keys() ^ updates.keys()):
            raise ValueError(
                f"{path} holds updates of other layers than the LoRA of this {type(self).__name__}: only one of them "
                f"has {different[0]!r}. Load them into a model without LoRA."
            )
        for layer_path, arrays in updates.items():
            for update in updates_of(layers[layer_path]):
                warn_of_not_finite(path, not_finite(update.path, arrays[update.name]))
                update.assign(arrays[update.name])

    def _adapt(self, targets: Sequence[keras.layers.Layer], rank: int) -> None:
        """Freeze the model and add updates to some of its layers."""
        self.trainable = True
        self.lora_rank = rank
        freeze_others(self, targets)
        for layer in targets:
            frozen = layer.trainable_weights
            layer.enable_lora(rank)
            if isinstance(layer, AdaptedLayer):
                layer.keeps_updates = True
            for weight in frozen:
                weight.trainable = False


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


def _adapted(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """Return the layers that have updates, by their paths."""
    return {layer.path: layer for layer in sublayers(model) if getattr(layer, "lora_enabled", False)}


def _as_array(variable: keras.Variable) -> np.ndarray:
    """Return a variable's values in a dtype that HDF5 has."""
    value = keras.ops.cast(variable, "float32") if variable.dtype == "bfloat16" else variable
    return keras.ops.convert_to_numpy(value)


def _lora_path(filepath: str | Path) -> Path:
    """Return the path of a file of updates.

    Raises:
        ValueError: if it does not end in `.lora.h5`.
    """
    check_path(filepath)
    path = Path(filepath).expanduser()
    if not path.name.endswith(_SUFFIX):
        raise ValueError(f"Files of low-rank updates end in `{_SUFFIX}`, got {str(filepath)!r}.")
    return path


def _read_updates(path: Path) -> tuple[int, dict[str, dict[str, np.ndarray]]]:
    """Return the rank in a file of updates, and the updates by paths of layers and names of variables.

    Raises:
        PresetError: if it is missing, damaged, or not such a file.
    """
    with contextlib.closing(Hdf5File(path)) as file:
        arrays = {name: file.read(name) for name in file.names()}
    rank = arrays.pop(_RANK, None)
    if rank is None or rank.ndim or not is_integer(rank[()], 1) or not arrays:
        raise PresetError(f"{path} holds no low-rank updates: it was not written by `save_lora_weights`.")
    updates: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        layer_path, _, update = name.removeprefix("lora/").rpartition("/")
        updates.setdefault(layer_path, {})[update] = array
    return int(rank), updates


def _check_shapes(path: Path, rank: int, layer: keras.layers.Layer, arrays: Mapping[str, np.ndarray]) -> None:
    """Check that updates fit the weights of a layer.

    Raises:
        PresetError: if they do not.
    """
    weight = next(weight for weight in layer.weights if weight.name in ("kernel", "embeddings"))
    shapes = {
        f"lora_{weight.name}_a": (*weight.shape[:-1], rank),
        f"lora_{weight.name}_b": (rank, weight.shape[-1]),
    }
    found = {name: array.shape for name, array in arrays.items()}
    if found != shapes:
        raise PresetError(
            f"{path} does not fit this model: the updates of {layer.path!r} must have the shapes {shapes}, got {found}."
        )
