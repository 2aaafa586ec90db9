"""Checkpoints of KerasHub's own models, read and written without KerasHub."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmzoo.checkpoints.checkpoint import Checkpoint, StoredHead, read_arguments
from lmzoo.checkpoints.config_table import Arguments, ConfigTable, KeyReader, require_value
from lmzoo.checkpoints.engine import Layout, Row, Transform, keras_layers
from lmzoo.checkpoints.family_names import keras_hub_prefix
from lmzoo.checkpoints.formats.reshaped import join_heads, split_heads
from lmzoo.checkpoints.formats.tensor_file import Arrays, LazyTensors, Place, PlacedTensors, TensorFile
from lmzoo.checkpoints.keras_hub.heads import (
    HEAD_IGNORED,
    add_head,
    find_head,
    head_tables,
    open_weights,
    read_class_name,
    read_preprocessor_length,
)
from lmzoo.checkpoints.sentence_transformers.modules import describe
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import CONFIG_FILE, MODEL_WEIGHTS_FILE, TASK_FILE, TASK_WEIGHTS_FILE, JsonFiles
from lmzoo.registry.family import Family, find_families_by_format

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
# Embeddings as separate layers of the model, and as parts of one layer.
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
    """A `Layout` for checkpoints of KerasHub.

    Attributes:
        prefix: Prefix of the family's class names in KerasHub, or "" to derive it from lmzoo's class names.
        head_activation: Activation in the masked language modeling head, independent of the backbone's.
        head_epsilon: Epsilon of LayerNorm in the masked language modeling head, or None for the backbone's.
        block: Name of the blocks in the file, without a number. The first block has no number in files, but the number
            0 in tables.
        group_size: Name of the argument for the number of blocks per group, or "" if the family has no groups. Files
            number all blocks consecutively; tables number each block by its group and its position in the group.
        has_tokenizer: Whether KerasHub has a tokenizer for the family.
    """

    prefix: str = ""
    head_activation: str = "gelu"
    head_epsilon: float | None = 1e-5
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
    """Return the layout of a family in KerasHub.

    Args:
        layers: Dict from the path of a layer outside the blocks to its path in the file.
        blocks: Path template of the blocks, such as "block_{i}".
        keys: Configuration keys of the family in addition to the keys that all families share.
        omitted: Arguments that the configuration lacks, as in `ConfigTable.omitted`.
        transforms: Dict from the path of a weight that is stored in another shape to the transform.
        dense_in_head: Whether the classification head has a dense layer before its output layer.
        embedder: Whether KerasHub has an embedder for the family.
        constants: Dict from argument to its fixed value in KerasHub's classes.
        private_attention: Whether the names of the attention's layers begin with "_", as in KerasHub's own class.
        **fields: Other fields of `KerasHubLayout`.
    """
    has_groups = "group_size" in fields
    template = "{i}_{j}" if has_groups else "{i}"
    stored_block = fields.get("block", KerasHubLayout.block)
    attention_prefix = f"{_ATTENTION}/{'_' if private_attention else ''}"
    projections = {f"attention/{name}": f"{attention_prefix}{name}_dense" for name in ("query", "key", "value")}
    block = {**projections, "attention/output_dense": f"{attention_prefix}output_dense", **_BLOCK}
    block_layers = {
        f"{blocks}/{layer}": f"{stored_block}_{template}/{stored_layer}" for layer, stored_layer in block.items()
    }
    rows = keras_layers({**layers, **block_layers})
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
    """Return `Layout.aliases` that add the number 0 to the name of a file's first block, which has no number."""
    return {rf"^layers/{block}/": f"layers/{block}_0/"}


def _find_heads_axis(name: str) -> int | None:
    """Return the axis of the attention heads in a tensor, or None if it has no such axis."""
    if re.search(rf"{_ATTENTION}/_?(query|key|value)_dense/vars/[01]$", name):
        return 1 if name.endswith("0") else 0
    # KerasHub's own attention layers join the heads before the output layer, so their kernels have no axis of heads.
    return 0 if name.endswith(f"{_ATTENTION}/output_dense/vars/0") else None


def _number_by_group(file: TensorFile, block: str, group_size: int) -> TensorFile:
    """Rename a file's tensors so that blocks are numbered by group and position in the group.

    Args:
        file: Tensors with consecutive block numbers.
        block: Name of the blocks in the file, without a number.
        group_size: Number of blocks per group.

    Raises:
        PresetError: If two tensors would get the same name.
    """
    pattern = re.compile(rf"layers/{block}(?:_([1-9]\d{{0,8}}))?/(.*)")
    places: dict[str, Place] = {}
    for name in file.names():
        match = pattern.fullmatch(name)
        numbered_name = name
        if match:
            group, position = divmod(int(match[1] or 0), group_size)
            numbered_name = f"layers/{block}_{group}_{position}/{match[2]}"
        if numbered_name in places:
            raise PresetError(f"{file.path} holds the same tensor twice: {places[numbered_name].name!r} and {name!r}.")
        places[numbered_name] = Place(file, name)
    return PlacedTensors(file.path, places)


def to_keras_hub(tensors: Arrays, layout: KerasHubLayout, config: Arguments) -> Iterator[tuple[str, np.ndarray]]:
    """Convert tensors to KerasHub's names and shapes for writing.

    Args:
        tensors: Names and arrays from `lmzoo.checkpoints.engine.convert_to_tensors`.
        layout: Layout of the family.
        config: Configuration to write.

    Yields:
        The name and the array of each tensor.
    """
    group_size = config.get(layout.group_size, 1)
    pattern = re.compile(rf"layers/{layout.block}_(\d+)(?:_(\d+))?/(.*)")
    for name, array in split_heads(tensors, config["num_heads"], _find_heads_axis):
        stored_name = name
        if match := pattern.fullmatch(name):
            block_number = int(match[1]) * group_size + int(match[2] or 0)
            stored_name = f"layers/{layout.block}{f'_{block_number}' if block_number else ''}/{match[3]}"
        yield stored_name, array


def _refuse_other_networks(family: Family, unknown_keys: Arguments, file: Path) -> None:
    """Check the values of unknown keys that change the network in transformers.

    Another version of KerasHub may give such keys the same meaning.

    Raises:
        PresetError: If such a key has an unsupported value.
    """
    restricted_values = family.checkpoints["hf"].config.allowed if "hf" in family.checkpoints else {}
    for key in unknown_keys.keys() & restricted_values.keys():
        expected = " or ".join(map(repr, restricted_values[key]))
        require_value(unknown_keys[key] in restricted_values[key], file, key, expected, unknown_keys[key])


def _lacks_head_weights(directory: Path) -> bool:
    """Return whether a directory holds the weights of a backbone, but none of a head."""
    return (directory / MODEL_WEIGHTS_FILE).exists() and not (directory / TASK_WEIGHTS_FILE).exists()


def find_keras_hub(files: JsonFiles) -> Checkpoint | None:
    """Open the KerasHub checkpoint in a directory, or return None if `config.json` names no class of KerasHub.

    Raises:
        PresetError: If the class or its configuration is not supported.
    """
    directory = files.directory
    file = directory / CONFIG_FILE
    config = files.read(CONFIG_FILE)
    class_name = read_class_name(config)
    if class_name is None:
        return None
    families = {f"{keras_hub_prefix(family)}Backbone": family for family in find_families_by_format("keras_hub")}
    if class_name not in families or not isinstance(config.get("config"), dict):
        raise PresetError(f"{file}: KerasHub's {class_name!r} is not supported; supported are {', '.join(families)}.")
    family = families[class_name]
    arguments = read_arguments(family, "keras_hub", config["config"], file, ignore_unknown=True)
    layout: KerasHubLayout = family.checkpoints["keras_hub"]
    unknown_keys = layout.config.unknown(config["config"])
    _refuse_other_networks(family, unknown_keys, file)
    reader = KeyReader()
    epsilon = arguments["layer_norm_epsilon"] if layout.head_epsilon is None else layout.head_epsilon
    masked_lm_arguments = {"activation": layout.head_activation, "layer_norm_epsilon": epsilon}
    head, head_arguments = find_head(
        directory, keras_hub_prefix(family), masked_lm_arguments, arguments["hidden_dim"], reader
    )
    sequence_length = read_preprocessor_length(directory, reader) if head else None
    reader.warn()
    if head and layout.heads.get(head) and _lacks_head_weights(directory):
        warnings.warn(
            f"{directory} holds no {TASK_WEIGHTS_FILE}: the head that {TASK_FILE} describes is not loaded.",
            stacklevel=2,
        )
        head = None

    def open_tensors() -> TensorFile:
        weights_file = open_weights(directory / MODEL_WEIGHTS_FILE)
        backbone_tensors = join_heads(weights_file, arguments["num_heads"], _find_heads_axis)
        if layout.group_size:
            backbone_tensors = _number_by_group(backbone_tensors, layout.block, arguments[layout.group_size])
        has_head_weights = head and layout.heads.get(head)
        return (
            add_head(backbone_tensors, open_weights(directory / TASK_WEIGHTS_FILE))
            if has_head_weights
            else backbone_tensors
        )

    module_notes = {"modules": describe(head_arguments)} if head == "embedding" else {}
    notes = {**module_notes, **reader.report(directory)}
    stored_head = StoredHead(head, lambda kind: dict(head_arguments))
    weights = LazyTensors(open_tensors)
    return Checkpoint(
        files, "keras_hub", family, arguments, weights, lambda: stored_head, file, unknown_keys, sequence_length, notes
    )
