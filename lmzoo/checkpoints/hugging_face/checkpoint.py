"""Checkpoints of Hugging Face's transformers: `config.json`, and safetensors, pickled or TensorFlow HDF5 files."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmzoo.checkpoints.checkpoint import Checkpoint, StoredHead, read_checkpoint
from lmzoo.checkpoints.config_table import Arguments, ConfigTable, JsonObject, format_keys, require_value
from lmzoo.checkpoints.engine import TOKEN_TABLE, TRANSPOSED, Layout, Row, Table, canonical_names, torch_modules
from lmzoo.checkpoints.family_names import Names, names_in_transformers
from lmzoo.checkpoints.formats.safetensors import SafetensorsFiles
from lmzoo.checkpoints.formats.tensor_file import LazyTensors, Place, PlacedTensors, TensorFile, strip_wrappers
from lmzoo.checkpoints.formats.torch import TorchFile
from lmzoo.checkpoints.hugging_face.families import detect_family, match_prefixes, read_architecture
from lmzoo.checkpoints.hugging_face.heads import (
    EMBEDDING_HEAD,
    count_classes,
    count_outputs,
    find_heads,
    is_regression,
    put_named_head_first,
    read_classes,
)
from lmzoo.checkpoints.hugging_face.keys import HARMLESS_KEYS, RESTRICTED_KEYS, UNSUPPORTED_GENERATION
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
POOLING_TOKENS = ("classification", "multiple_choice", "regression")
POOLINGS = {"cls": "first", "mean": "mean"}  # name in transformers -> name in lmzoo
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
# transformers accepts these keys in every configuration, even in families with other names for them.
_COMMON_NAMES = ("hidden_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers")
# Default values in transformers for BERT and the families derived from it.
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
# Paths of the kernels of heads that are not tied to the token embeddings.
OWN_KERNEL = "masked_lm_head/output_projection/kernel"
_OUTPUT_KERNELS = ("output_projection/kernel", OWN_KERNEL)
WORD_TABLE = "embeddings.word_embeddings.weight"


@dataclass(frozen=True)
class HuggingFaceLayout(Layout):
    """A `Layout` for checkpoints of transformers.

    Attributes:
        names: Names of the family in transformers, or None to derive them from lmzoo's names.
        head_activation: Activation of heads that predict tokens, or None for the activation in the configuration.
        parts: Names of the backbone's top-level modules.
        pooling: Key of `config.json` for the pooling of hidden states in heads for whole texts, or None if there is no
            such key.
        head_values: For each kind of head, a dict from a key of `config.json` that only this head reads to the
            supported values. A file may lack such a key.
        tied: Function from the content of `config.json` to a dict from the name of each tensor that transformers omits,
            since it is tied to another tensor, to the name of the other tensor.
    """

    names: Names | None = None
    head_activation: str | None = None
    parts: tuple[str, ...] = ("embeddings", "encoder", "transformer", "pooler")
    pooling: str | None = None
    head_values: Mapping[str, Mapping[str, Collection[object]]] = field(default_factory=dict)
    tied: Callable[[JsonObject], Mapping[str, str]] = lambda stored: {}

    def __post_init__(self) -> None:
        """Add the table of the embedding head, which is the same for every family."""
        object.__setattr__(self, "heads", {"embedding": EMBEDDING_HEAD, **self.heads})


def config_table(keys: Mapping[str, str] = ENCODER_KEYS, ignored: tuple[str, ...] = (), **table: Any) -> ConfigTable:
    """Return the table of a family's `config.json`, completed with the keys that all families share.

    Args:
        keys: Dict from file key to argument, for the keys that the family reads.
        ignored: File keys of the family that do not change what the model computes.
        **table: Other fields of `ConfigTable`.
    """
    keys_by_argument = {argument: key for key, argument in keys.items()}
    common_names = {name: keys_by_argument.get(ENCODER_KEYS[name], name) for name in _COMMON_NAMES}
    aliases = {name: key for name, key in common_names.items() if name != key}
    overridable_fields = {
        "defaults": ENCODER_DEFAULTS,
        "training": {"attention_probs_dropout_prob": "dropout"},
        "values": {"activation": ACTIVATIONS},
    }
    merged_fields = {
        "aliases": aliases | table.pop("aliases", {}),
        "allowed": {**RESTRICTED_KEYS, **table.pop("allowed", {})},
        "ignored": HARMLESS_KEYS | _CROSS_ENCODER_KEYS | {*ignored},
    }
    return ConfigTable(keys=keys, **merged_fields, **{**overridable_fields, **table})


def own_config_table(keys: Mapping[str, tuple[str, object]], **table: Any) -> ConfigTable:
    """Return the table of a family's `config.json` from its keys and their defaults.

    Args:
        keys: Dict from file key to the argument and the default value in transformers.
        **table: Other fields of `ConfigTable`.
    """
    defaults = {key: default for key, (_, default) in keys.items()}
    arguments = {key: argument for key, (argument, _) in keys.items()}
    return config_table(arguments, **{"defaults": defaults, "training": {}, **table})


def add_prefixes(layer: str, module: str, names: Mapping[str, str]) -> dict[str, str]:
    """Prefix the layer paths and the module names in a mapping.

    Args:
        layer: Prefix of the layer paths, such as "block_{i}".
        module: Prefix of the module names, such as "encoder.layer.{i}".
        names: Dict from layer path to module name.
    """
    return {f"{layer}/{sublayer}": f"{module}.{submodule}" for sublayer, submodule in names.items()}


def hugging_face_layout(
    masked_lm: tuple[str, str, str],
    classifier: Mapping[str, str] | None = None,
    choice: Mapping[str, str] | None = None,
    sentence: str | None = None,
    detector: tuple[str, str] | None = None,
    tokens: Mapping[str, str] | None = None,
    answers: Mapping[str, str] | None = None,
    **fields: Any,
) -> HuggingFaceLayout:
    """Return the layout of an encoder family in transformers, completed with the heads that such families share.

    Args:
        masked_lm: Names in the masked language modeling head: the module of the dense layer, the module of LayerNorm
            and the tensor of the output bias.
        classifier: Dict from layer path to module name in the classification head; by default, one layer, `classifier`.
        choice: Dict from layer path to module name in the multiple choice head; by default, the value of `classifier`.
        sentence: Module of the head for next-sentence or sentence-order prediction, or None if there is no such head.
        detector: Modules of the two layers in the replaced-token detection head, or None if there is no such head.
        tokens: Dict from layer path to module name in the token classification head; by default, one layer,
            `classifier`.
        answers: Dict from layer path to module name in the question answering head; by default, one layer,
            `qa_outputs`.
        **fields: Other fields of `HuggingFaceLayout`.
    """
    classifier = classifier or {"classifier/logits": "classifier"}
    masked_lm_table = _make_masked_lm_rows(*masked_lm, fields["backbone"], fields["copies"])
    all_heads: dict[str, Table] = {
        "classification": torch_modules(classifier),
        "regression": torch_modules(classifier),
        "multiple_choice": torch_modules(choice or classifier),
        "token_classification": torch_modules(tokens or {"classifier/logits": "classifier"}),
        "question_answering": torch_modules(answers or {"span_head/logits": "qa_outputs"}),
        "masked_lm": masked_lm_table,
    }
    if detector is None:
        all_heads["pretraining"] = {**masked_lm_table, **torch_modules({"sentence_head": sentence} if sentence else {})}
    else:
        modules = {
            f"replaced_tokens/head/{layer}": module for layer, module in zip(("dense", "logits"), detector, strict=True)
        }
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


def output_kernel(name: str) -> Table:
    """Return the table of a `CausalLM`'s head: its kernel, stored as the tensor `name`.

    If the kernel is tied to the token embeddings, the tensor is a copy of them.
    """
    return {_OUTPUT_KERNELS[0]: Row(name, TRANSPOSED)}


def _make_masked_lm_rows(dense: str, layer_norm: str, bias: str, backbone: Table, copies: Mapping[str, str]) -> Table:
    """Return the rows of a masked language modeling head.

    If the kernel is not tied to the token embeddings, it is stored as the tensor that would otherwise be a copy of the
    embeddings. The bias is then likewise stored under the name of its copy, not under its own name.

    Args:
        dense: Name of the module of the dense layer.
        layer_norm: Name of the module of LayerNorm.
        bias: Name of the tensor of the output bias.
        backbone: Table of the backbone.
        copies: Dict from the name of a copy to the name of the original tensor, as in `Layout.copies`.
    """
    copies_by_original = {original: copy for copy, original in copies.items()}
    bias_copy = copies_by_original.get(bias)
    bias_row = Row(bias_copy, alternative=(OWN_KERNEL, bias)) if bias_copy else Row(bias)
    modules = {"masked_lm_head/dense": dense, "masked_lm_head/layer_norm": layer_norm}
    return {
        **torch_modules(modules),
        "masked_lm_head/output_bias": bias_row,
        OWN_KERNEL: Row(copies_by_original[backbone[TOKEN_TABLE].name], TRANSPOSED),
    }


def find_hugging_face(files: JsonFiles, family: str | None = None) -> Checkpoint | None:
    """Open the transformers checkpoint in a directory, or return None if it holds none.

    It holds none if `config.json` is from KerasHub, or if no family is stated and there are no weights.

    Args:
        files: JSON files of the directory.
        family: Name of the family, such as "bert", for a checkpoint without `model_type`.

    Raises:
        PresetError: If the family or the configuration is not supported.
    """
    directory = files.directory
    file = directory / CONFIG_FILE
    config = files.read(CONFIG_FILE)
    has_family = (
        config.get("model_type") is not None or family is not None or match_prefixes(read_architecture(file, config))
    )
    if "registered_name" in config or not (has_family or find_weights_file(directory)):
        return None
    weights = LazyTensors(functools.partial(open_tensors, directory))
    detected_family = detect_family(directory, config, weights, family)
    if tied_names := detected_family.checkpoints["hf"].tied(config):
        layout = detected_family.checkpoints["hf"]
        weights = LazyTensors(functools.partial(_open_with_tied, weights, layout, tied_names))
    read_head = functools.partial(_read_head, files, detected_family, weights)
    return read_checkpoint(files, "hf", detected_family, config, file, weights, read_head)


def find_weights_file(directory: Path) -> str | None:
    """Return the name of the preferred weights file in a directory, or None if there is no weights file."""
    names = {path.name for path in directory.iterdir()}
    return next((name for name in _WEIGHTS_FILES if name in names), None)


def open_tensors(directory: Path) -> TensorFile:
    """Open the weights in a directory, without the prefixes that wrappers add to tensor names.

    Safetensors are preferred to pickled state dicts, and state dicts to TensorFlow's HDF5.

    Raises:
        PresetError: If there are no weights, or a file is damaged or has the tensor names of a TensorFlow class.
    """
    name = find_weights_file(directory)
    if name is None:
        raise PresetError(
            f"{directory} holds a configuration but no weights: no model.safetensors, no pytorch_model.bin, no "
            f"tf_model.h5. {advise_on_weights(directory)}".rstrip()
        )
    if name in TENSORFLOW_FILES:
        return open_tensorflow_model(directory)
    tensors = SafetensorsFiles(directory) if name.startswith("model.") else TorchFile(directory)
    refuse_tensorflow_names(tensors)
    return strip_wrappers(tensors)


def _open_with_tied(weights: LazyTensors, layout: HuggingFaceLayout, tied_names: Mapping[str, str]) -> TensorFile:
    """Open the weights, with additional names for tensors that are tied to stored ones.

    Args:
        weights: Tensors of the checkpoint.
        layout: Layout of the checkpoint.
        tied_names: Dict from the name of an omitted tensor to the name of the stored tensor to which it is tied.
    """
    file = weights.open()
    stored_names = canonical_names(layout, file)
    places = {name: Place(file, name) for name in file.names()}
    for name, original_name in tied_names.items():
        if name not in stored_names and original_name in stored_names:
            places[name] = Place(file, stored_names[original_name])
    return PlacedTensors(file.path, places, file.prefix)


def _read_head(files: JsonFiles, family: Family, weights: LazyTensors) -> StoredHead:
    """Return the stored head and its alternatives, identified by `architectures` and by the tensor names.

    A file may also hold heads that `architectures` does not name, in addition to the named head or in place of it.
    Tasks can load these heads.
    """
    file = files.directory / CONFIG_FILE
    config = files.read(CONFIG_FILE)
    layout = family.checkpoints["hf"]
    names = names_in_transformers(family)
    architecture = read_architecture(file, config)
    named_kind = names.kind(architecture) if architecture else None
    shapes = {}
    if find_weights_file(files.directory):
        tensors = weights.open()
        shapes = {name: tensors.shape(stored_name) for name, stored_name in canonical_names(layout, tensors).items()}

    def count_head_outputs(kind: str) -> int:
        return count_outputs(layout, kind, shapes) or count_classes(config)

    kinds = find_heads(layout, shapes, config)
    if named_kind:
        is_regressor = named_kind == "classification" and is_regression(config, count_head_outputs(named_kind))
        kinds = put_named_head_first(layout, shapes, "regression" if is_regressor else named_kind, kinds)
    has_no_head = not kinds or architecture == names.architecture(None)  # the class without a head
    return StoredHead(
        None if has_no_head else kinds[0],
        lambda kind: _read_head_arguments(layout, files, kind, count_head_outputs(kind)),
        kinds,
    )


def _read_head_arguments(layout: HuggingFaceLayout, files: JsonFiles, kind: str, count: int) -> Arguments:
    """Return the stored task constructor arguments for a kind of head with `count` outputs.

    Raises:
        PresetError: If a setting is not supported.
    """
    file = files.directory / CONFIG_FILE
    config = files.read(CONFIG_FILE)
    for key, values in layout.head_values.get(kind, {}).items():
        if key in config:
            require_value(config[key] in values, file, key, " or ".join(map(repr, values)), config[key])
    arguments = read_classes(file, config, count) if kind in _WITH_CLASSES else {}
    if kind == "classification" and config.get("problem_type") == "multi_label_classification":
        arguments["multi_label"] = True
    if kind == "regression":
        if count > 1:
            raise PresetError(f"{file}: The head returns {count} numbers, a TextRegressor only one. Load the backbone.")
        arguments = _read_output_activation(file, config)
    if kind == "seq2seq_lm":
        arguments = _read_beam_settings(files)
    if layout.pooling and kind in POOLING_TOKENS:
        pooling = config.get(layout.pooling, "cls")
        require_value(pooling in POOLINGS, file, layout.pooling, " or ".join(map(repr, POOLINGS)), pooling)
        arguments["pooling"] = POOLINGS[pooling]
    if kind in PREDICTING_TOKENS and layout.head_activation is not None:
        arguments["activation"] = layout.head_activation
    has_kernel = any(path in layout.heads[kind] for path in _OUTPUT_KERNELS)
    if has_kernel and config.get("tie_word_embeddings") is False:
        arguments["tie_embeddings"] = False
    dropout_rates = [config[key] for key in _HEAD_DROPOUT if config.get(key) is not None]
    if dropout_rates and kind in _WITH_DROPOUT:
        arguments["dropout"] = dropout_rates[0]
    return arguments


def _read_output_activation(file: Path, config: JsonObject) -> Arguments:
    """Return the stored argument `output_activation` of a cross-encoder, or an empty dict if it is not stored.

    Its key in `config.json` changed in Sentence Transformers 4.

    Raises:
        PresetError: If the activation is not supported.
    """
    settings = config.get("sentence_transformers")
    if isinstance(settings, dict) and settings.get("activation_fn") is not None:
        key = "sentence_transformers.activation_fn"
        activation = settings["activation_fn"]
    else:
        key = "sbert_ce_default_activation_function"
        activation = config.get(key)
    return {} if activation is None else {"output_activation": read_activation(activation, key, file)}


def _read_beam_settings(files: JsonFiles) -> Arguments:
    """Return the beam search settings from `generation_config.json` or, in older checkpoints, `config.json`.

    Other settings that change the generated texts are ignored with a warning.

    Raises:
        PresetError: If targets begin with another token than the padding token.
    """
    file_name = "generation_config.json"
    file = files.directory / (file_name if (files.directory / file_name).is_file() else CONFIG_FILE)
    generation_config = files.read(file.name)
    pad_id = generation_config.get("pad_token_id")
    if pad_id is None:
        pad_id = files.read(CONFIG_FILE).get("pad_token_id")
    start_id = generation_config.get("decoder_start_token_id")
    is_valid = None in (pad_id, start_id) or start_id == pad_id
    require_value(is_valid, file, "decoder_start_token_id", f"`pad_token_id`, which is {pad_id}", start_id)
    _warn_about_ignored_settings(file, generation_config, pad_id)
    return {
        name: generation_config[name]
        for name in ("num_beams", "length_penalty")
        if generation_config.get(name) is not None
    }


def _warn_about_ignored_settings(file: Path, generation_config: JsonObject, pad_id: object) -> None:
    """Warn about settings for generation that lmzoo lacks, if any has an effect."""
    harmless_values = {**UNSUPPORTED_GENERATION, "bad_words_ids": (None, [], [[pad_id]])}  # padding is never generated
    ignored_settings = {
        key: generation_config[key]
        for key, values in harmless_values.items()
        if key in generation_config and generation_config[key] not in values
    }
    if ignored_settings:
        warnings.warn(
            f"{file}: ignoring generation settings that lmzoo lacks: {format_keys(ignored_settings)}. Generated texts "
            "may differ from transformers'.",
            stacklevel=2,
        )
