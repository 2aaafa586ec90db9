"""Presets of KerasHub's own models: read without KerasHub; backbones are also written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lmzoo.checkpoints.checkpoint import Checkpoint, StoredHead, read_arguments
from lmzoo.checkpoints.config_table import Arguments, ConfigTable
from lmzoo.checkpoints.engine import Layout, Row, Transform, keras_layers
from lmzoo.checkpoints.family_names import keras_hub_prefix
from lmzoo.checkpoints.formats.hdf5 import Hdf5File
from lmzoo.checkpoints.formats.reshaped import join_heads, split_heads
from lmzoo.checkpoints.formats.tensor_file import Arrays, LazyTensors, Place, PlacedTensors, TensorFile
from lmzoo.checkpoints.keras_hub.heads import HEAD_IGNORED, head_in, head_tables, preprocessor_length, with_head
from lmzoo.checkpoints.sentence_transformers.modules import describe
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import CONFIG_FILE, MODEL_WEIGHTS_FILE, TASK_WEIGHTS_FILE, JsonFiles
from lmzoo.registry.family import families_with

_PREFIX = "keras_hub>"
IGNORED_KEYS = ("dtype", "name", "trainable")
_SHARED = ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim", "dropout")
SHARED_KEYS = {key: key for key in _SHARED}  # as in `ConfigTable.keys`
_ATTENTION = "_self_attention_layer"
_BLOCK = {
    "attention_layer_norm": "_self_attention_layer_norm",
    "intermediate_dense": "_feedforward_intermediate_dense",
    "output_dense": "_feedforward_output_dense",
    "output_layer_norm": "_feedforward_layer_norm",
}
# The names of embeddings that are layers of the model, and of those inside one layer.
SEPARATE_EMBEDDINGS = {
    "embeddings/token_embedding": "reversible_embedding",
    "embeddings/position_embedding": "position_embedding",
    "embeddings/segment_embedding": "embedding",
    "embeddings/layer_norm": "layer_normalization",
}
JOINED_EMBEDDINGS = {
    "embeddings/token_embedding": "token_and_position_embedding/token_embedding",
    "embeddings/position_embedding": "token_and_position_embedding/position_embedding",
    "embeddings/layer_norm": "layer_normalization",
}


@dataclass(frozen=True)
class KerasHubLayout(Layout):
    """A `Layout`, and what else is special about a family in KerasHub.

    Attributes:
        prefix: Prefix of the names of its classes, if it is not as here.
        head_activation: Activation in the head of its masked language model, whatever the backbone's is.
        block: The name of its blocks, without numbers. The first block of a file has no number; in tables it is 0.
        group_size: The argument that counts the blocks of a group. Files number the blocks of all groups one after
            another, tables by the group and the place in it. "" if there are no groups.
        has_tokenizer: Whether KerasHub has a tokenizer of the family.
    """

    prefix: str = ""
    head_activation: str = "gelu"
    block: str = "transformer_encoder"
    group_size: str = ""
    has_tokenizer: bool = True


def keras_hub_layout(
    layers: Mapping[str, str],
    blocks: str = "block_{i}",
    keys: tuple[str, ...] = (),
    omitted: tuple[str, ...] = (),
    transforms: Mapping[str, Transform] | None = None,
    dense_in_head: bool = False,
    embedder: bool = False,
    constants: Mapping[str, object] | None = None,
    private_attention: bool = False,
    **fields: Any,
) -> KerasHubLayout:
    """Return the layout of a family.

    Args:
        layers: Our layers outside of blocks -> their place in the file.
        blocks: Path of our blocks.
        keys: The family's own keys in the configuration, in addition to those of every family.
        omitted: See `ConfigTable`.
        transforms: Path of a weight with another layout in the file -> the transform.
        dense_in_head: Whether the classification head has a dense layer before its last one.
        embedder: Whether KerasHub has an embedder of the family.
        constants: Our arguments that KerasHub's classes fix.
        private_attention: Whether the names of the layers of attention begin with "_", as in KerasHub's own classes;
            those of Keras' do not.
        **fields: Other fields of `KerasHubLayout`.
    """
    has_groups = "group_size" in fields
    number = "{i}_{j}" if has_groups else "{i}"
    stored_block = fields.get("block", KerasHubLayout.block)
    start = f"{_ATTENTION}/{'_' if private_attention else ''}"
    projections = {f"attention/{name}": f"{start}{name}_dense" for name in ("query", "key", "value")}
    block = {**projections, "attention/output_dense": f"{start}output_dense", **_BLOCK}
    places = {f"{blocks}/{ours}": f"{stored_block}_{number}/{theirs}" for ours, theirs in block.items()}
    rows = keras_layers({**layers, **places})
    rows |= {path: Row(rows[path].name, transform) for path, transform in (transforms or {}).items()}
    return KerasHubLayout(
        name="KerasHub",
        config=ConfigTable(
            keys={**SHARED_KEYS, **{key: key for key in ("max_sequence_length", *keys)}},
            constants=constants or {},
            omitted=omitted,
            ignored=IGNORED_KEYS,
        ),
        backbone=rows,
        heads=head_tables(dense_in_head, embedder),
        ignored=HEAD_IGNORED,
        aliases={} if has_groups else number_first(stored_block),
        **fields,
    )


def number_first(block: str) -> dict[str, str]:
    """Return the alias of a file's first block, which has no number there: see `Layout.aliases`."""
    return {rf"^layers/{block}/": f"layers/{block}_0/"}


def _heads_axis(name: str) -> int | None:
    """Return the axis of the heads in a tensor, or None if it has no heads."""
    if re.search(rf"{_ATTENTION}/_?(query|key|value)_dense/vars/[01]$", name):
        return 1 if name.endswith("0") else 0
    # Its own layers put the heads together before the output.
    return 0 if name.endswith(f"{_ATTENTION}/output_dense/vars/0") else None


def _number_by_group(file: TensorFile, block: str, group_size: int) -> TensorFile:
    """Return a file's tensors, their blocks numbered by group and place: see `KerasHubLayout.group_size`.

    Raises:
        PresetError: If two tensors would get the same name.
    """
    pattern = re.compile(rf"layers/{block}(?:_([1-9]\d{{0,8}}))?/(.*)")
    places: dict[str, Place] = {}
    for name in file.names():
        match = pattern.fullmatch(name)
        new = name
        if match:
            group, place = divmod(int(match[1] or 0), group_size)
            new = f"layers/{block}_{group}_{place}/{match[2]}"
        if new in places:
            raise PresetError(f"{file.path} holds the same tensor twice: {places[new].name!r} and {name!r}.")
        places[new] = Place(file, name)
    return PlacedTensors(file.path, places)


def to_keras_hub(tensors: Arrays, layout: KerasHubLayout, config: Arguments) -> Iterator[tuple[str, np.ndarray]]:
    """Yield tensors as KerasHub names and shapes them: the inverse of what reading does.

    Args:
        tensors: Names and values, as `tensors_of` yields them.
        layout: The family's.
        config: The configuration that is written.
    """
    group_size = config.get(layout.group_size, 1)
    pattern = re.compile(rf"layers/{layout.block}_(\d+)(?:_(\d+))?/(.*)")
    for name, array in split_heads(tensors, config["num_heads"], _heads_axis):
        new = name
        if match := pattern.fullmatch(name):
            number = int(match[1]) * group_size + int(match[2] or 0)
            new = f"layers/{layout.block}{f'_{number}' if number else ''}/{match[3]}"
        yield new, array


def find_keras_hub(files: JsonFiles) -> Checkpoint | None:
    """Return the checkpoint in a directory if its `config.json` names a class of KerasHub, else None.

    Raises:
        PresetError: For the class of an unknown family, or a configuration that our model does not support.
    """
    directory = files.directory
    file = directory / CONFIG_FILE
    config = files.read(CONFIG_FILE)
    name = config.get("registered_name")
    if not isinstance(name, str) or not name.startswith(_PREFIX):
        return None
    families = {f"{_PREFIX}{keras_hub_prefix(family)}Backbone": family for family in families_with("keras_hub")}
    if name not in families or not isinstance(config.get("config"), dict):
        raise PresetError(f"{file}: {name!r} is not supported; supported are {', '.join(families)}.")
    family = families[name]
    arguments = read_arguments(family, "keras_hub", config["config"], file)
    layout: KerasHubLayout = family.checkpoints["keras_hub"]
    head, head_arguments = head_in(directory, keras_hub_prefix(family), layout.head_activation, arguments["hidden_dim"])

    def open_tensors() -> TensorFile:
        file = Hdf5File(directory / MODEL_WEIGHTS_FILE)
        backbone = join_heads(file, arguments["num_heads"], _heads_axis)
        if layout.group_size:
            backbone = _number_by_group(backbone, layout.block, arguments[layout.group_size])
        has_weights = head and layout.heads[head]
        return with_head(backbone, Hdf5File(directory / TASK_WEIGHTS_FILE)) if has_weights else backbone

    length = preprocessor_length(directory) if head else None
    notes = {"modules": describe(head_arguments)} if head == "embedding" else {}
    stored_head = StoredHead(head, lambda kind: dict(head_arguments))
    weights = LazyTensors(open_tensors)
    return Checkpoint(
        files, "keras_hub", family, arguments, weights, lambda: stored_head, sequence_length=length, notes=notes
    )
