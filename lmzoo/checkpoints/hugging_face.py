"""Checkpoints of Hugging Face's transformers: `config.json` beside safetensors or pickled PyTorch tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmzoo.checkpoints.checkpoint import Checkpoint, read_arguments
from lmzoo.checkpoints.config_table import ConfigTable
from lmzoo.checkpoints.engine import Layout, Row, torch_modules
from lmzoo.checkpoints.formats.safetensors import SafetensorsFiles
from lmzoo.checkpoints.formats.tensor_file import TensorFile
from lmzoo.checkpoints.formats.torch import TorchFile
from lmzoo.errors import PresetError
from lmzoo.family import Family, families
from lmzoo.files.preset_files import CONFIG_FILE, read_json

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "tanh": "tanh",
}
# What follows "For" in a class name of transformers, and our task; a SequenceClassification may be a `TextRegressor`.
TASKS = {
    "MaskedLM": "MaskedLM",
    "PreTraining": "Pretrainer",
    "SequenceClassification": "TextClassifier",
    "TokenClassification": "TokenClassifier",
    "QuestionAnswering": "QuestionAnswerer",
    "MultipleChoice": "MultipleChoice",
}
# The part of a model with a head that is a model without one: the family's name stands before its tensors.
_BASE = r"(embeddings|encoder|transformer|pooler)\."
# Keys of every configuration that do not change what the model computes, or that only a head needs.
_IGNORED = {
    "_attn_implementation_autoset", "_name_or_path", "_num_labels", "architectures", "bos_token_id",
    "chunk_size_feed_forward", "classifier_dropout", "cls_token_id", "dtype", "eos_token_id", "finetuning_task",
    "gradient_checkpointing", "id2label", "label2id", "language", "model_type", "num_labels", "output_attentions",
    "output_hidden_states", "output_past", "pad_token_id", "problem_type", "return_dict", "sep_token_id",
    "tie_word_embeddings", "tokenizer_class", "torch_dtype", "torchscript", "transformers_version", "use_bfloat16",
    "use_cache",
}  # fmt: skip
_HEAD_DROPOUT = ("classifier_dropout", "classifier_dropout_prob", "seq_classif_dropout")
_ONLY: dict[str, tuple[Any, ...]] = {
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
# What transformers takes for a missing key, in BERT and in what was made from it.
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


def config_table(keys: Mapping[str, str] = ENCODER_KEYS, ignored: tuple[str, ...] = (), **table: Any) -> ConfigTable:
    """The table of a family's `config.json`: its own keys, and those of all families."""
    table = {"defaults": ENCODER_DEFAULTS, "training": {"attention_probs_dropout_prob": "dropout"}, **table}
    return ConfigTable(
        keys=keys,
        values={"activation": ACTIVATIONS},
        **{**table, "only": {**_ONLY, **table.get("only", {})}, "ignored": _IGNORED | {*ignored}},
    )


def under(layer: str, module: str, names: Mapping[str, str]) -> dict[str, str]:
    """`names` with a path before each layer and each module."""
    return {f"{layer}/{ours}": f"{module}.{theirs}" for ours, theirs in names.items()}


def hugging_face_format(
    masked_lm: tuple[str, str, str],
    classifier: Mapping[str, str] | None = None,
    choice: Mapping[str, str] | None = None,
    sentence: str | None = None,
    **fields: Any,
) -> Layout:
    """A `Layout` with what holds for all of transformers' families.

    Args:
        masked_lm: of the head of a masked language model the modules of the dense layer and of LayerNorm, and the
            tensor of the output's bias.
        classifier: layers of the classification head and their modules, if it is more than `classifier`.
        choice: the same of the head of multiple choice, if it is not that of classification.
        sentence: the module of the head of next-sentence or sentence-order prediction, if the family has one.
        **fields: of `Layout`.
    """
    dense, layer_norm, bias = masked_lm
    modules = {"masked_lm_head/dense": dense, "masked_lm_head/layer_norm": layer_norm}
    masked = {**torch_modules(modules), "masked_lm_head/output_bias": Row(bias)}
    classifier = classifier or {"classifier/logits": "classifier"}
    heads = {
        "MaskedLM": masked,
        "Pretrainer": {**masked, **torch_modules({"sentence_head": sentence} if sentence else {})},
        "TextClassifier": torch_modules(classifier),
        "TextRegressor": torch_modules(classifier),
        "MultipleChoice": torch_modules(choice or classifier),
        "TokenClassifier": torch_modules({"classifier/logits": "classifier"}),
        "QuestionAnswerer": torch_modules({"span_head/logits": "qa_outputs"}),
    }
    aliases = {
        rf"^\w+\.(?={_BASE})": "",
        r"LayerNorm\.gamma$": "LayerNorm.weight",
        r"LayerNorm\.beta$": "LayerNorm.bias",
    }
    ignored = {r"(.*\.)?position_ids": "a buffer", **fields.pop("ignored", {})}
    name = "Hugging Face transformers"
    return Layout(name, heads=heads, aliases=aliases, ignored=ignored, optional=("pooler/",), **fields)


def with_base(name: str, family: str) -> str:
    """A tensor's name in a model with a head, as opposed to one without."""
    return f"{family}.{name}" if re.match(_BASE, name) else name


def find_hugging_face(directory: Path) -> Checkpoint | None:
    """The checkpoint in a directory whose `config.json` has a `model_type`; None if there is none.

    Raises:
        PresetError: for a type that is not one of a family here, or a configuration that its model cannot follow.
    """
    file = directory / CONFIG_FILE
    config = read_json(directory, CONFIG_FILE) if file.is_file() else {}
    if "model_type" not in config:
        return None
    known = {name: family for name, family in families().items() if "hf" in family.checkpoints}
    family = known.get(str(config["model_type"]))
    if family is None:
        raise PresetError(
            f"{file}: models of type {config['model_type']!r:.60} are not known; known are {', '.join(known)}."
        )
    arguments = read_arguments(family, "hf", config, file)
    head = _head(directory, config) if config.get("architectures") else (_unnamed_head(directory, family), {})
    return Checkpoint(directory, "hf", family, arguments, lambda: _open_tensors(directory), *head)


def _open_tensors(directory: Path) -> TensorFile:
    """The weights: safetensors if there are any, otherwise a pickled state dict."""
    names = {path.name for path in directory.iterdir()}
    if {"model.safetensors", "model.safetensors.index.json"} & names:
        return SafetensorsFiles(directory)
    for name in ("pytorch_model.bin", "pytorch_model.bin.index.json"):
        if name in names:
            return TorchFile(directory / name)
    raise PresetError(f"{directory} holds a configuration but no weights: no model.safetensors, no pytorch_model.bin.")


def _unnamed_head(directory: Path, family: Family) -> str | None:
    """The head that the tensors show where `config.json` names none, as of Google's small BERTs."""
    head = family.checkpoints["hf"].heads.get("MaskedLM", {})
    held = _open_tensors(directory).names()
    return "MaskedLM" if head and head["masked_lm_head/output_bias"].name in held else None


def _head(directory: Path, config: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Our task for the head that `config.json` names, and its constructor's arguments; (None, {}) for none."""
    architecture = (config.get("architectures") or [""])[0]
    task = TASKS.get(architecture.partition("For")[2])
    arguments: dict[str, Any] = {}
    if task in ("TextClassifier", "TokenClassifier"):
        arguments = _classes(directory, config)
    if task == "TextClassifier":
        problem = config.get("problem_type")
        if problem == "regression" or (problem is None and arguments["num_classes"] == 1):
            task, arguments = "TextRegressor", {}
        elif problem == "multi_label_classification":
            arguments["multi_label"] = True
    rates = [config[key] for key in _HEAD_DROPOUT if config.get(key) is not None]
    if rates and task in ("TextClassifier", "TextRegressor", "TokenClassifier", "MultipleChoice"):
        arguments["dropout"] = rates[0]
    return task, arguments


def _classes(directory: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """`num_classes`, and `labels` if the classes have names."""
    names = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    try:
        labels = [names[key] for key in sorted(names, key=int)]
        numbers = sorted(map(int, names))
    except (TypeError, ValueError):
        labels, numbers = [], [-1]
    if numbers != list(range(len(labels))) or not all(isinstance(label, str) for label in labels):
        raise PresetError(
            f"{directory / CONFIG_FILE}: `id2label` must map the numbers from 0 to names, got {names!r:.80}."
        )
    if labels == [f"LABEL_{i}" for i in range(len(labels))]:  # transformers' way to say that there are no names
        return {"num_classes": len(labels)}
    return {"num_classes": len(labels), "labels": labels}
