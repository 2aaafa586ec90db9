"""Checkpoints of Hugging Face's transformers: `config.json` and safetensors or pickled PyTorch tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmzoo.checkpoints import sentence_modules
from lmzoo.checkpoints.checkpoint import Checkpoint, read_arguments
from lmzoo.checkpoints.config_table import Arguments, ConfigTable, JsonObject
from lmzoo.checkpoints.engine import Layout, Row, Table, torch_modules
from lmzoo.checkpoints.family_names import Names, names_in_transformers
from lmzoo.checkpoints.formats.safetensors import SafetensorsFiles
from lmzoo.checkpoints.formats.tensor_file import TensorFile
from lmzoo.checkpoints.formats.torch import TorchFile
from lmzoo.checkpoints.torch_activations import read_activation
from lmzoo.errors import PresetError
from lmzoo.family import families_with
from lmzoo.files.preset_files import CONFIG_FILE, read_json

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "tanh": "tanh",
}
_WITH_CLASSES = ("classification", "token_classification")
_WITH_DROPOUT = (*_WITH_CLASSES, "multiple_choice", "regression")
# Keys of every family that do not change what the model computes, or that only a head needs.
_IGNORED = {
    "_attn_implementation_autoset", "_name_or_path", "_num_labels", "architectures", "bos_token_id",
    "chunk_size_feed_forward", "classifier_dropout", "cls_token_id", "dtype", "eos_token_id", "finetuning_task",
    "gradient_checkpointing", "id2label", "label2id", "language", "model_type", "num_labels", "output_attentions",
    "output_hidden_states", "output_past", "pad_token_id", "problem_type", "return_dict",
    "sbert_ce_default_activation_function", "sentence_transformers", "sep_token_id", "tie_word_embeddings",
    "tokenizer_class", "torch_dtype", "torchscript", "transformers_version", "use_bfloat16", "use_cache",
}  # fmt: skip
_HEAD_DROPOUT = ("classifier_dropout", "classifier_dropout_prob", "seq_classif_dropout")
_ALLOWED: dict[str, tuple[object, ...]] = {
    "add_cross_attention": (False,),
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "position_embedding_type": ("absolute",),
    "pruned_heads": ({},),
}
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
        names: names of the family's classes, if they are not as here.
        parts: names of the backbone's modules.
    """

    names: Names | None = None
    parts: tuple[str, ...] = ("embeddings", "encoder", "transformer", "pooler")

    def __post_init__(self) -> None:
        """Adds the head of embedders, whose modules are the same for every family."""
        object.__setattr__(self, "heads", {"embedding": sentence_modules.HEAD, **self.heads})

    def with_base(self, name: str, base: str) -> str:
        """Turns a tensor's name in a backbone into its name in a model with a head."""
        return f"{base}.{name}" if name.partition(".")[0] in self.parts else name


def config_table(keys: Mapping[str, str] = ENCODER_KEYS, ignored: tuple[str, ...] = (), **table: Any) -> ConfigTable:
    """The table of a family's `config.json`: its own keys, and those of all families."""
    usual = {
        "defaults": ENCODER_DEFAULTS,
        "training": {"attention_probs_dropout_prob": "dropout"},
        "values": {"activation": ACTIVATIONS},
    }
    allowed = {**_ALLOWED, **table.get("allowed", {})}
    return ConfigTable(keys=keys, **{**usual, **table, "allowed": allowed, "ignored": _IGNORED | {*ignored}})


def own_config_table(keys: Mapping[str, tuple[str, object]], **table: Any) -> ConfigTable:
    """The same, from its keys to ours with what transformers assumes for a missing one."""
    defaults = {theirs: default for theirs, (_, default) in keys.items()}
    return config_table({theirs: ours for theirs, (ours, _) in keys.items()}, defaults=defaults, training={}, **table)


def under(layer: str, module: str, names: Mapping[str, str]) -> dict[str, str]:
    """Prepends a path to each of our layers in `names`, and one to each of their modules."""
    return {f"{layer}/{ours}": f"{module}.{theirs}" for ours, theirs in names.items()}


def hugging_face_layout(
    masked_lm: tuple[str, str, str] | None = None,
    classifier: Mapping[str, str] | None = None,
    choice: Mapping[str, str] | None = None,
    sentence: str | None = None,
    **fields: Any,
) -> HuggingFaceLayout:
    """A `HuggingFaceLayout`, completed by what all families in transformers have in common.

    Args:
        masked_lm: names in the head of a masked language model: the module of the dense layer, that of LayerNorm, and
            the tensor of the output's bias; None if the family has no such head.
        classifier: our layers of the classification head -> their modules, if there is more than `classifier`.
        choice: the same for multiple choice, if that head differs from the one for classification.
        sentence: the module of the head of next-sentence or sentence-order prediction, if the family has one.
        **fields: other fields of `HuggingFaceLayout`.
    """
    classifier = classifier or {"classifier/logits": "classifier"}
    all_heads: dict[str, Table] = {
        "classification": torch_modules(classifier),
        "regression": torch_modules(classifier),
        "multiple_choice": torch_modules(choice or classifier),
        "token_classification": torch_modules({"classifier/logits": "classifier"}),
        "question_answering": torch_modules({"span_head/logits": "qa_outputs"}),
    }
    if masked_lm is not None:
        dense, layer_norm, bias = masked_lm
        modules = {"masked_lm_head/dense": dense, "masked_lm_head/layer_norm": layer_norm}
        masked = {**torch_modules(modules), "masked_lm_head/output_bias": Row(bias)}
        all_heads["masked_lm"] = masked
        all_heads["pretraining"] = {**masked, **torch_modules({"sentence_head": sentence} if sentence else {})}
    aliases = {
        rf"^\w+\.(?=({'|'.join(HuggingFaceLayout.parts)})\.)": "",
        r"LayerNorm\.gamma$": "LayerNorm.weight",
        r"LayerNorm\.beta$": "LayerNorm.bias",
    }
    ignored = {r"(.*\.)?position_ids": "a buffer", **fields.pop("ignored", {})}
    name = "Hugging Face transformers"
    return HuggingFaceLayout(name, heads=all_heads, aliases=aliases, ignored=ignored, optional=("pooler/",), **fields)


def find_hugging_face(directory: Path) -> Checkpoint | None:
    """The checkpoint in a directory whose `config.json` has a `model_type`; None if there is none.

    Raises:
        PresetError: for an unknown type of model, or a configuration that our model does not support.
    """
    file, config = directory / CONFIG_FILE, read_json(directory, CONFIG_FILE)
    if "model_type" not in config:
        return None
    known = {names_in_transformers(family).model_type: family for family in families_with("hf")}
    family = known.get(str(config["model_type"]))
    if family is None:
        raise PresetError(
            f"{file}: models of type {config['model_type']!r:.60} are not supported; supported are {', '.join(known)}."
        )
    arguments = read_arguments(family, "hf", config, file)
    if config.get("architectures"):
        head = _named_head(file, config, names_in_transformers(family))
    else:
        head = (_unnamed_head(directory, family.checkpoints["hf"]), {})
    return Checkpoint(directory, "hf", family, arguments, lambda: open_tensors(directory), *head)


def open_tensors(directory: Path) -> TensorFile:
    """Return the weights in a directory: safetensors if there are any, otherwise a pickled state dict."""
    names = {path.name for path in directory.iterdir()}
    if {"model.safetensors", "model.safetensors.index.json"} & names:
        return SafetensorsFiles(directory)
    for name in ("pytorch_model.bin", "pytorch_model.bin.index.json"):
        if name in names:
            return TorchFile(directory / name)
    raise PresetError(f"{directory} holds a configuration but no weights: no model.safetensors, no pytorch_model.bin.")


def _unnamed_head(directory: Path, layout: Layout) -> str | None:
    """The kind of head that the tensors show, for a `config.json` that names none, as in Google's small BERTs."""
    head = layout.heads.get("masked_lm", {})
    held = open_tensors(directory).names()
    return "masked_lm" if head and head["masked_lm_head/output_bias"].name in held else None


def _named_head(file: Path, config: JsonObject, names: Names) -> tuple[str | None, Arguments]:
    """The kind of head that `config.json` names, and arguments for its task's constructor; (None, {}) for no head."""
    kind = names.kind(str(config["architectures"][0]))
    arguments = _classes(file, config) if kind in _WITH_CLASSES else {}
    if kind == "classification":
        problem = config.get("problem_type")
        if problem == "regression" or (problem is None and arguments["num_classes"] == 1):
            kind, arguments = "regression", _output_activation(file, config)
        elif problem == "multi_label_classification":
            arguments["multi_label"] = True
    if kind == "seq2seq_lm":
        arguments = _beams(file.parent, config)
    rates = [config[key] for key in _HEAD_DROPOUT if config.get(key) is not None]
    if rates and kind in _WITH_DROPOUT:
        arguments["dropout"] = rates[0]
    return kind, arguments


def _output_activation(file: Path, config: JsonObject) -> Arguments:
    """The activation that a cross-encoder of Sentence Transformers stores; version 4 has renamed the key."""
    newer = config.get("sentence_transformers")
    if isinstance(newer, dict) and newer.get("activation_fn") is not None:
        key, stored = "sentence_transformers.activation_fn", newer["activation_fn"]
    else:
        key = "sbert_ce_default_activation_function"
        stored = config.get(key)
    return {} if stored is None else {"output_activation": read_activation(stored, key, file)}


def _beams(directory: Path, config: JsonObject) -> Arguments:
    """How the checkpoint searches: generation_config.json says so or, in older ones, `config.json`."""
    own = directory / "generation_config.json"
    found = read_json(directory, own.name) if own.is_file() else config
    return {name: found[name] for name in ("num_beams", "length_penalty") if found.get(name) is not None}


def _classes(file: Path, config: JsonObject) -> Arguments:
    """`num_classes`, and `labels` if the classes have names."""
    names = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    try:
        labels = [names[key] for key in sorted(names, key=int)]
        numbers = sorted(map(int, names))
    except (TypeError, ValueError):
        labels, numbers = [], [-1]
    if numbers != list(range(len(labels))) or not all(isinstance(label, str) for label in labels):
        raise PresetError(f"{file}: `id2label` must map the numbers from 0 to names, got {names!r:.80}.")
    if labels == [f"LABEL_{i}" for i in range(len(labels))]:  # transformers' placeholders for missing names
        return {"num_classes": len(labels)}
    return {"num_classes": len(labels), "labels": labels}
