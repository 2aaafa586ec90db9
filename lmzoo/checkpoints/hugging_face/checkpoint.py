"""Checkpoints of Hugging Face's transformers: `config.json` and safetensors, pickled tensors or TensorFlow's HDF5."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmzoo.checkpoints.checkpoint import Checkpoint, StoredHead, read_checkpoint
from lmzoo.checkpoints.config_table import Arguments, ConfigTable, JsonObject
from lmzoo.checkpoints.engine import Layout, Row, Table, canonical_names, torch_modules
from lmzoo.checkpoints.family_names import Names, names_in_transformers
from lmzoo.checkpoints.formats.safetensors import SafetensorsFiles
from lmzoo.checkpoints.formats.tensor_file import LazyTensors, TensorFile, without_wrappers
from lmzoo.checkpoints.formats.torch import TorchFile
from lmzoo.checkpoints.hugging_face.families import architecture_in, detect_family, named_by
from lmzoo.checkpoints.hugging_face.heads import (
    EMBEDDING_HEAD,
    count_classes,
    count_outputs,
    find_heads,
    is_regression,
    read_classes,
)
from lmzoo.checkpoints.hugging_face.keys import HARMLESS_KEYS, RESTRICTED_KEYS
from lmzoo.checkpoints.hugging_face.tensorflow import (
    TENSORFLOW_FILES,
    advise_on_weights,
    open_tensorflow_model,
    refuse_tensorflow_names,
)
from lmzoo.checkpoints.torch_activations import read_activation
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import CONFIG_FILE, JsonFiles
from lmzoo.registry.family import Family

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "tanh": "tanh",
}
_WITH_CLASSES = ("classification", "token_classification")
PREDICTING_TOKENS = ("masked_lm", "pretraining")
_WITH_DROPOUT = (*_WITH_CLASSES, "multiple_choice", "regression")
_WEIGHTS_FILES = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
    *TENSORFLOW_FILES,
)  # fmt: skip
_CROSS_ENCODER_KEYS = {"sbert_ce_default_activation_function", "sentence_transformers"}
_HEAD_DROPOUT = ("classifier_dropout", "classifier_dropout_prob", "cls_dropout", "seq_classif_dropout")
ENCODER_KEYS = {
    "vocab_size": "vocabulary_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "hidden_size": "hidden_dim",
    "intermediate_size": "intermediate_dim",
    "hidden_dropout_prob": "dropout",
    "max_position_embeddings": "max_sequence_length",
    "type_vocab_size": "num_segments",
    "hidden_act": "activation",
    "layer_norm_eps": "layer_norm_epsilon",
    "initializer_range": "initializer_range",
}
# Every configuration of transformers also has these keys, whatever the family calls them.
_COMMON_NAMES = ("hidden_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers")
# What transformers assumes for a missing key, in BERT and in the families derived from it.
ENCODER_DEFAULTS = {
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}
BLOCK = {
    "attention/query": "attention.self.query",
    "attention/key": "attention.self.key",
    "attention/value": "attention.self.value",
    "attention/output_dense": "attention.output.dense",
    "attention_layer_norm": "attention.output.LayerNorm",
    "intermediate_dense": "intermediate.dense",
    "output_dense": "output.dense",
    "output_layer_norm": "output.LayerNorm",
}
EMBEDDINGS = {
    "embeddings/token_embedding": "embeddings.word_embeddings",
    "embeddings/position_embedding": "embeddings.position_embeddings",
    "embeddings/segment_embedding": "embeddings.token_type_embeddings",
    "embeddings/layer_norm": "embeddings.LayerNorm",
}
WORD_TABLE = "embeddings.word_embeddings.weight"


@dataclass(frozen=True)
class HuggingFaceLayout(Layout):
    """A `Layout`, and the names of a family in transformers.

    Attributes:
        names: Names of the family's classes, if they are not as here.
        head_activation: Activation of heads that predict tokens, where it is not that of the configuration.
        parts: Names of the backbone's modules.
    """

    names: Names | None = None
    head_activation: str | None = None
    parts: tuple[str, ...] = ("embeddings", "encoder", "transformer", "pooler")

    def __post_init__(self) -> None:
        """Add the head of embedders, whose modules are the same for every family."""
        object.__setattr__(self, "heads", {"embedding": EMBEDDING_HEAD, **self.heads})


def config_table(keys: Mapping[str, str] = ENCODER_KEYS, ignored: tuple[str, ...] = (), **table: Any) -> ConfigTable:
    """Return the table of a family's `config.json`: its own keys, and the keys of all families."""
    own = {argument: key for key, argument in keys.items()}
    common_names = {name: own.get(ENCODER_KEYS[name], name) for name in _COMMON_NAMES}
    aliases = {name: key for name, key in common_names.items() if name != key}
    usual = {
        "defaults": ENCODER_DEFAULTS,
        "training": {"attention_probs_dropout_prob": "dropout"},
        "values": {"activation": ACTIVATIONS},
    }
    common = {
        "aliases": aliases | table.pop("aliases", {}),
        "allowed": {**RESTRICTED_KEYS, **table.pop("allowed", {})},
        "ignored": HARMLESS_KEYS | _CROSS_ENCODER_KEYS | {*ignored},
    }
    return ConfigTable(keys=keys, **common, **{**usual, **table})


def own_config_table(keys: Mapping[str, tuple[str, object]], **table: Any) -> ConfigTable:
    """Return the table of a `config.json` with keys -> our argument and the default of transformers."""
    defaults = {theirs: default for theirs, (_, default) in keys.items()}
    own = {theirs: ours for theirs, (ours, _) in keys.items()}
    return config_table(own, **{"defaults": defaults, "training": {}, **table})


def under(layer: str, module: str, names: Mapping[str, str]) -> dict[str, str]:
    """Prepend a path to each of our layers in `names`, and one to each of their modules."""
    return {f"{layer}/{ours}": f"{module}.{theirs}" for ours, theirs in names.items()}


def hugging_face_layout(
    masked_lm: tuple[str, str, str],
    classifier: Mapping[str, str] | None = None,
    choice: Mapping[str, str] | None = None,
    sentence: str | None = None,
    detector: tuple[str, str] | None = None,
    **fields: Any,
) -> HuggingFaceLayout:
    """Return a `HuggingFaceLayout`, completed by what all families in transformers have in common.

    Args:
        masked_lm: Names in the head of a masked language model: the module of the dense layer, that of LayerNorm, and
            the tensor of the output's bias.
        classifier: Our layers of the classification head -> their modules, if there is more than `classifier`.
        choice: The same for multiple choice, if that head differs from the one for classification.
        sentence: The module of the head of next-sentence or sentence-order prediction, if the family has one.
        detector: The modules of both layers of the head that tells replaced tokens, for a family that is pre-trained
            so.
        **fields: Other fields of `HuggingFaceLayout`.
    """
    classifier = classifier or {"classifier/logits": "classifier"}
    dense, layer_norm, bias = masked_lm
    modules = {"masked_lm_head/dense": dense, "masked_lm_head/layer_norm": layer_norm}
    masked = {**torch_modules(modules), "masked_lm_head/output_bias": Row(bias)}
    all_heads: dict[str, Table] = {
        "classification": torch_modules(classifier),
        "regression": torch_modules(classifier),
        "multiple_choice": torch_modules(choice or classifier),
        "token_classification": torch_modules({"classifier/logits": "classifier"}),
        "question_answering": torch_modules({"span_head/logits": "qa_outputs"}),
        "masked_lm": masked,
    }
    if detector is None:
        all_heads["pretraining"] = {**masked, **torch_modules({"sentence_head": sentence} if sentence else {})}
    else:
        modules = {f"replaced_tokens/head/{ours}": m for ours, m in zip(("dense", "logits"), detector, strict=True)}
        all_heads["replaced_tokens"] = torch_modules(modules)
    aliases = {
        rf"^\w+\.(?=({'|'.join(fields.get('parts', HuggingFaceLayout.parts))})\.)": "",
        r"LayerNorm\.gamma$": "LayerNorm.weight",
        r"LayerNorm\.beta$": "LayerNorm.bias",
        **fields.pop("aliases", {}),
    }
    ignored = {r"(.*\.)?(position|token_type)_ids": "a buffer", **fields.pop("ignored", {})}
    name = "Hugging Face transformers"
    optional = ("pooler/", "replaced_tokens/generator/")
    return HuggingFaceLayout(name, heads=all_heads, aliases=aliases, ignored=ignored, optional=optional, **fields)


def find_hugging_face(files: JsonFiles, family: str | None = None) -> Checkpoint | None:
    """Return the checkpoint of transformers in a directory, or None if its `config.json` is of another library.

    `family` names the family of a checkpoint without `model_type`.

    Raises:
        PresetError: For an unsupported family, or a configuration that our model does not support.
    """
    directory = files.directory
    file = directory / CONFIG_FILE
    config = files.read(CONFIG_FILE)
    named = config.get("model_type") is not None or family is not None or named_by(architecture_in(file, config))
    if "registered_name" in config or not (named or _weights_file(directory)):
        return None
    weights = LazyTensors(functools.partial(open_tensors, directory))
    record = detect_family(directory, config, weights, family)
    read_head = functools.partial(_read_head, files, record, weights)
    return read_checkpoint(files, "hf", record, config, file, weights, read_head)


def _weights_file(directory: Path) -> str | None:
    """Return the name of the file to read the weights from, or None if there is none."""
    names = {path.name for path in directory.iterdir()}
    return next((name for name in _WEIGHTS_FILES if name in names), None)


def open_tensors(directory: Path) -> TensorFile:
    """Open safetensors, else a pickled state dict, else TensorFlow's HDF5, without prefixes of wrappers."""
    name = _weights_file(directory)
    if name is None:
        raise PresetError(
            f"{directory} holds a configuration but no weights: no model.safetensors, no pytorch_model.bin, no "
            f"tf_model.h5. {advise_on_weights(directory)}".rstrip()
        )
    if name in TENSORFLOW_FILES:
        return open_tensorflow_model(directory)
    files = SafetensorsFiles(directory) if name.startswith("model.") else TorchFile(directory / name)
    refuse_tensorflow_names(files)
    return without_wrappers(files)


def _read_head(files: JsonFiles, family: Family, weights: LazyTensors) -> StoredHead:
    """Find the head: `architectures` names its kind or, if it does not, the names of its tensors show it."""
    file = files.directory / CONFIG_FILE
    config = files.read(CONFIG_FILE)
    layout = family.checkpoints["hf"]
    names = names_in_transformers(family)
    architecture = architecture_in(file, config)
    named = names.kind(architecture) if architecture else None
    shapes = {}
    if _weights_file(files.directory) and (named is None or named in _WITH_CLASSES):
        tensors = weights.open()
        shapes = {name: tensors.shape(stored) for name, stored in canonical_names(layout, tensors).items()}

    def count(kind: str) -> int:
        return count_outputs(layout, kind, shapes) or count_classes(config)

    kinds = [named] if named else find_heads(layout, shapes, config)
    if named == "classification" and is_regression(config, count(named)):
        kinds = ["regression"]
    has_none = not kinds or architecture == names.architecture(None)  # as far as the file says
    return StoredHead(
        None if has_none else kinds[0], lambda kind: _head_arguments(layout, files, kind, count(kind)), kinds
    )


def _head_arguments(layout: HuggingFaceLayout, files: JsonFiles, kind: str, count: int) -> Arguments:
    """Read arguments of the constructor of the task with a kind of head of `count` outputs."""
    file = files.directory / CONFIG_FILE
    config = files.read(CONFIG_FILE)
    arguments = read_classes(file, config, count) if kind in _WITH_CLASSES else {}
    if kind == "classification" and config.get("problem_type") == "multi_label_classification":
        arguments["multi_label"] = True
    if kind == "regression":
        arguments = _output_activation(file, config)
    if kind == "seq2seq_lm":
        arguments = _read_beams(files)
    if kind in PREDICTING_TOKENS and layout.head_activation is not None:
        arguments["activation"] = layout.head_activation
    rates = [config[key] for key in _HEAD_DROPOUT if config.get(key) is not None]
    if rates and kind in _WITH_DROPOUT:
        arguments["dropout"] = rates[0]
    return arguments


def _output_activation(file: Path, config: JsonObject) -> Arguments:
    """Return the stored activation of a cross-encoder of Sentence Transformers; version 4 renamed the key."""
    newer = config.get("sentence_transformers")
    if isinstance(newer, dict) and newer.get("activation_fn") is not None:
        key = "sentence_transformers.activation_fn"
        stored = newer["activation_fn"]
    else:
        key = "sbert_ce_default_activation_function"
        stored = config.get(key)
    return {} if stored is None else {"output_activation": read_activation(stored, key, file)}


def _read_beams(files: JsonFiles) -> Arguments:
    """Read the settings of beam search: from `generation_config.json` or, in older checkpoints, `config.json`."""
    name = "generation_config.json"
    stored = files.read(name if (files.directory / name).is_file() else CONFIG_FILE)
    return {name: stored[name] for name in ("num_beams", "length_penalty") if stored.get(name) is not None}
