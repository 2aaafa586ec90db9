"""Task heads in KerasHub's checkpoints: `task.json` and `task.weights.h5`."""

from __future__ import annotations

import re
from pathlib import Path

from lmzoo.checkpoints.config_table import Arguments, ConfigTable, JsonObject, KeyReader, require_value
from lmzoo.checkpoints.engine import Row, Table, keras_layers
from lmzoo.checkpoints.formats.hdf5 import Hdf5File
from lmzoo.checkpoints.formats.tensor_file import Place, PlacedTensors, TensorFile
from lmzoo.common.arguments import is_integer
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import PREPROCESSOR_FILE, TASK_FILE, TOKENIZER_FILE, read_json, write_json

HEAD_PREFIX = "head/"  # prefix of the head's tensors, since their file repeats names of the backbone's file
_PACKAGE = re.compile(r"keras_(?:hub|nlp)>(.*)")  # KerasHub was called KerasNLP until 2024
_OLD_LAYERS = "_layer_checkpoint_dependencies/"  # prefix of all layers in files of early versions of Keras
_LAYERS = "layers/"
# Class name in KerasHub, without the family's prefix -> kind of head. KerasNLP's classifiers have the second name.
_KINDS = {
    "TextClassifier": "classification",
    "Classifier": "classification",
    "TextEmbedder": "embedding",
    "MaskedLM": "masked_lm",
}
_IGNORED = ("backbone", "dtype", "name", "preprocessor", "trainable")
# A softmax in KerasHub makes no difference, since `classify` applies one to the logits.
_CLASSIFIER = ConfigTable(
    keys={"num_classes": "num_classes", "dropout": "dropout", "hidden_dim": "hidden_dim"},
    defaults={"hidden_dim": None},
    allowed={"activation": (None, "linear", "softmax")},
    ignored=_IGNORED,
)
_EMBEDDER = ConfigTable(
    keys={"pooling_mode": "pooling", "normalize": "normalize"},
    values={"pooling": {"mean": "mean", "cls": "cls", "max": "max"}},
    ignored=_IGNORED,
)
_MASKED_LM = ConfigTable(keys={}, ignored=_IGNORED)

# KerasHub only uses the settings of masks in training.
_PREPROCESSOR = ConfigTable(
    keys={"sequence_length": "sequence_length"},
    defaults={"sequence_length": None},
    ignored=(
        "audio_converter", "config_file", "dtype", "image_converter", "mask_selection_length", "mask_selection_rate",
        "mask_token_rate", "name", "random_token_rate", "tokenizer", "trainable", "truncate", "video_converter",
    ),
)  # fmt: skip

HEAD_IGNORED = {rf"{HEAD_PREFIX}optimizer/.*": "the optimizer's state"}


def head_tables(dense: bool, embedder: bool) -> dict[str, Table]:
    """Return the tables of a family's heads by kind of head.

    Args:
        dense: Whether the classification head has a dense layer before its output layer.
        embedder: Whether KerasHub has an embedder for the family. The head of an embedder has no weights.
    """
    classifier = {"classifier/dense": "dense", "classifier/logits": "dense_1"}
    masked_lm = {f"masked_lm_head/{name}": f"masked_lm_head/_intermediate_{name}" for name in ("dense", "layer_norm")}
    bias = Row(f"{HEAD_PREFIX}layers/masked_lm_head/vars/0")
    return {
        **({"embedding": {}} if embedder else {}),
        "classification": keras_layers(classifier if dense else {"classifier/logits": "dense"}, HEAD_PREFIX),
        "masked_lm": {**keras_layers(masked_lm, HEAD_PREFIX), "masked_lm_head/output_bias": bias},
    }


def read_class_name(serialized_object: JsonObject) -> str | None:
    """Return the name of an object's class in KerasHub or KerasNLP, or None if its class is from another library."""
    match = _PACKAGE.fullmatch(str(serialized_object.get("registered_name")))
    return match[1] if match else None


def open_weights(path: Path) -> TensorFile:
    """Open a weights file, and give the layers their current names if an early version of Keras wrote the file."""
    file = Hdf5File(path)
    if any(name.startswith(_LAYERS) for name in file.names()):
        return file
    return PlacedTensors(path, {name.replace(_OLD_LAYERS, _LAYERS): Place(file, name) for name in file.names()})


def find_head(
    directory: Path, prefix: str, masked_lm: Arguments, hidden_dim: int, reader: KeyReader
) -> tuple[str | None, Arguments]:
    """Return the kind and the task constructor arguments of the head, or (None, {}) if no supported head is stored.

    Args:
        directory: Directory of the checkpoint.
        prefix: Prefix of the family's class names in KerasHub.
        masked_lm: Constructor arguments of the family's masked language modeling head.
        hidden_dim: Width of the backbone.
        reader: Collector of unknown keys.

    Raises:
        PresetError: If the head has unsupported settings.
    """
    file = directory / TASK_FILE
    serialized_task = read_json(directory, TASK_FILE) if file.is_file() else {}
    name = read_class_name(serialized_task)
    kind = next((kind for suffix, kind in _KINDS.items() if name == f"{prefix}{suffix}"), None)
    if kind is None:
        return None, {}
    if not isinstance(config := serialized_task.get("config"), dict):
        raise PresetError(f"{file} lacks the `config` of {name}.")
    if kind == "masked_lm":
        reader.read(_MASKED_LM, config, file)
        return kind, masked_lm
    if kind == "embedding":
        arguments = reader.read(_EMBEDDER, config, file)
        normalize = arguments["normalize"]
        require_value(isinstance(normalize, bool), file, "normalize", "true or false", normalize)
        return kind, arguments
    arguments = reader.read(_CLASSIFIER, config, file)
    dense_width = arguments.pop("hidden_dim")
    require_value(dense_width in (None, hidden_dim), file, "hidden_dim", f"the backbone's, {hidden_dim}", dense_width)
    return kind, arguments


def read_preprocessor_length(directory: Path, reader: KeyReader) -> int | None:
    """Return the sequence length of the stored preprocessor, or None if no file specifies it.

    Args:
        directory: Directory of the checkpoint.
        reader: Collector of unknown keys.

    Raises:
        PresetError: If the length is not a positive integer.
    """
    file = directory / PREPROCESSOR_FILE
    serialized_preprocessor = read_json(directory, PREPROCESSOR_FILE) if file.is_file() else {}
    config = serialized_preprocessor.get("config")
    length = reader.read(_PREPROCESSOR, config, file)["sequence_length"] if isinstance(config, dict) else None
    require_value(length is None or is_integer(length, 1), file, "sequence_length", "a positive integer", length)
    return length


def embedder_config(
    prefix: str, backbone: JsonObject, name: str, pooling: str | list[str], normalize: bool
) -> Arguments:
    """Return the content of `task.json` for an embedder.

    Args:
        prefix: Prefix of the family's class names in KerasHub.
        backbone: Content of `config.json`.
        name: Name of the model.
        pooling: Pooling mode: "mean", "cls" or "max".
        normalize: Whether embeddings are scaled to unit length.

    Raises:
        PresetError: If KerasHub does not support `pooling`.
    """
    modes = _EMBEDDER.values["pooling"]
    if not isinstance(pooling, str) or pooling not in modes:
        raise PresetError(f"KerasHub's embedders have the poolings {', '.join(modes)}, not {pooling!r:.60}.")
    config = {"backbone": backbone, "preprocessor": None, "name": name}
    return _serialize(f"{prefix}TextEmbedder", {**config, "pooling_mode": pooling, "normalize": normalize})


def write_embedder_preprocessor(target: Path, prefix: str, sequence_length: int) -> None:
    """Write an embedder's preprocessor to its own file and to `task.json`.

    The tokenizer's files and `task.json` must already have been written.
    """
    config = {"tokenizer": read_json(target, TOKENIZER_FILE), "sequence_length": sequence_length}
    preprocessor = _serialize(
        f"{prefix}TextEmbedderPreprocessor",
        {**config, "config_file": PREPROCESSOR_FILE, "truncate": "round_robin"},
    )
    write_json(target, PREPROCESSOR_FILE, preprocessor)
    task = read_json(target, TASK_FILE)
    write_json(target, TASK_FILE, {**task, "config": {**task["config"], "preprocessor": preprocessor}})


def _serialize(name: str, config: Arguments) -> Arguments:
    return {"class_name": name, "config": config, "registered_name": f"keras_hub>{name}"}


def add_head(backbone: TensorFile, head: TensorFile) -> TensorFile:
    """Combine the tensors of a backbone and of its head, adding "head/" to the names of the head's tensors."""
    places = {name: Place(backbone, name) for name in backbone.names()}
    places |= {HEAD_PREFIX + name: Place(head, name) for name in head.names()}
    return PlacedTensors(backbone.path.parent, places)
