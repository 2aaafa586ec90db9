"""Presets of KerasHub's own models: read without KerasHub; backbones are also written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lmzoo.checkpoints.checkpoint import Checkpoint, StoredHead, read_arguments
from lmzoo.checkpoints.config_table import ConfigTable
from lmzoo.checkpoints.engine import Layout, Row, Transform
from lmzoo.checkpoints.family_names import keras_hub_prefix
from lmzoo.checkpoints.formats.attention_heads import JoinedHeads, split_heads
from lmzoo.checkpoints.formats.hdf5 import Hdf5File
from lmzoo.checkpoints.formats.tensor_file import TensorFile
from lmzoo.checkpoints.keras_hub.heads import HEAD_IGNORED, embedder_length, head_in, head_tables, with_head
from lmzoo.checkpoints.sentence_transformers.modules import describe
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import CONFIG_FILE, MODEL_WEIGHTS_FILE, TASK_WEIGHTS_FILE, read_json
from lmzoo.registry.family import families_with

_PREFIX = "keras_hub>"
_KEYS = (
    "vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim", "dropout", "max_sequence_length",
)  # fmt: skip
_BLOCK = {
    "attention/query": "_self_attention_layer/query_dense",
    "attention/key": "_self_attention_layer/key_dense",
    "attention/value": "_self_attention_layer/value_dense",
    "attention/output_dense": "_self_attention_layer/output_dense",
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
        prefix: prefix of the names of its classes, if it is not as here.
        head_activation: activation in the head of its masked language model, whatever the backbone's is.
    """

    prefix: str = ""
    head_activation: str = "gelu"


def keras_hub_layout(
    layers: Mapping[str, str],
    block: str = "block_{i}",
    keys: tuple[str, ...] = (),
    allowed: Mapping[str, tuple[object, ...]] | None = None,
    omitted: tuple[str, ...] = (),
    transforms: Mapping[str, Transform] | None = None,
    dense_in_head: bool = False,
    embedder: bool = False,
    head_activation: str = KerasHubLayout.head_activation,
    stored_block: str = "transformer_encoder",
    prefix: str = "",
    **constants: object,
) -> KerasHubLayout:
    """The layout of a family.

    Args:
        layers: our layers outside of blocks -> their place in the file.
        block: path of our blocks.
        keys: the family's own keys in the configuration, in addition to those of every family.
        allowed: see `ConfigTable`.
        omitted: see `ConfigTable`.
        transforms: path of a weight with another layout in the file -> the transform.
        dense_in_head: whether the classification head has a dense layer before its last one.
        embedder: whether KerasHub has an embedder of the family.
        head_activation: see `KerasHubLayout`.
        stored_block: the name of their blocks, without numbers.
        prefix: see `KerasHubLayout`.
        **constants: our arguments that KerasHub's classes fix.
    """
    places = {**layers, **{f"{block}/{ours}": f"{stored_block}_{{i}}/{theirs}" for ours, theirs in _BLOCK.items()}}
    kinds = {"kernel": 0, "bias": 1, "gamma": 0, "beta": 1, "embeddings": 0}
    rows = {
        f"{layer}/{kind}": Row(f"layers/{place}/vars/{number}")
        for layer, place in places.items()
        for kind, number in kinds.items()
    }
    rows |= {path: Row(rows[path].name, transform) for path, transform in (transforms or {}).items()}
    return KerasHubLayout(
        name="KerasHub",
        prefix=prefix,
        head_activation=head_activation,
        config=ConfigTable(
            keys={key: key for key in (*_KEYS, *keys)},
            constants=constants,
            allowed=allowed or {},
            omitted=omitted,
            ignored=("dtype", "name", "trainable"),
        ),
        backbone=rows,
        heads=head_tables(dense_in_head, embedder),
        ignored=HEAD_IGNORED,
        # The first of several layers of one class has no number.
        aliases={rf"^layers/{stored_block}/": f"layers/{stored_block}_0/"},
    )


def _heads_axis(name: str) -> int | None:
    """The axis of the heads in a tensor; None if it has no heads."""
    if re.search(r"_self_attention_layer/(query|key|value)_dense/vars/[01]$", name):
        return 1 if name.endswith("0") else 0
    return 0 if name.endswith("_self_attention_layer/output_dense/vars/0") else None


def with_heads(tensors: Iterable[tuple[str, np.ndarray]], num_heads: int) -> Iterator[tuple[str, np.ndarray]]:
    """Turns tensors into those that KerasHub writes: the inverse of what reading does."""
    for name, array in split_heads(tensors, num_heads, _heads_axis):
        yield re.sub(r"(transformer_(encoder|decoder))_0/", r"\1/", name), array


def find_keras_hub(directory: Path) -> Checkpoint | None:
    """The checkpoint in a directory whose `config.json` names a class of KerasHub; None if there is none.

    Raises:
        PresetError: for the class of an unknown family, or a configuration that our model does not support.
    """
    file, config = directory / CONFIG_FILE, read_json(directory, CONFIG_FILE)
    name = config.get("registered_name")
    if not isinstance(name, str) or not name.startswith(_PREFIX):
        return None
    known = {f"{_PREFIX}{keras_hub_prefix(f)}Backbone": f for f in families_with("keras_hub")}
    if name not in known or not isinstance(config.get("config"), dict):
        raise PresetError(f"{file}: {name!r} is not supported; supported are {', '.join(known)}.")
    arguments = read_arguments(known[name], "keras_hub", config["config"], file)

    prefix, activation = keras_hub_prefix(known[name]), known[name].checkpoints["keras_hub"].head_activation
    head, head_arguments = head_in(directory, prefix, activation, arguments["hidden_dim"])

    def open_tensors() -> TensorFile:
        backbone = JoinedHeads(Hdf5File(directory / MODEL_WEIGHTS_FILE), arguments["num_heads"], _heads_axis)
        has_weights = head and known[name].checkpoints["keras_hub"].heads[head]
        return with_head(backbone, Hdf5File(directory / TASK_WEIGHTS_FILE)) if has_weights else backbone

    length = embedder_length(directory) if head == "embedding" else None
    notes = {"modules": describe(head_arguments)} if head == "embedding" else {}
    stored_head = StoredHead(head, lambda kind: dict(head_arguments))
    return Checkpoint(
        directory,
        "keras_hub",
        known[name],
        arguments,
        open_tensors,
        lambda: stored_head,
        sequence_length=length,
        notes=notes,
    )
