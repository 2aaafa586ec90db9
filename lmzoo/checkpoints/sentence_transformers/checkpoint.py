"""Checkpoints of Sentence Transformers: embedders and cross-encoders, with modules, sequence length and prompts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from lmzoo.checkpoints.checkpoint import Checkpoint, StoredHead
from lmzoo.checkpoints.config_table import Arguments, ConfigTable, KeyReader, require_value
from lmzoo.checkpoints.engine import Plan
from lmzoo.checkpoints.formats.tensor_file import LazyTensors, Place, PlacedTensors, TensorFile
from lmzoo.checkpoints.hugging_face.checkpoint import find_hugging_face, find_weights_file, open_tensors
from lmzoo.checkpoints.sentence_transformers.modules import (
    MODULES_FILE,
    Module,
    describe,
    read_head,
    read_modules,
)
from lmzoo.checkpoints.tokenizers.classes import get_family_packing
from lmzoo.checkpoints.torch_activations import read_activation
from lmzoo.common.arguments import is_integer
from lmzoo.errors import PresetError
from lmzoo.files.inside import has_file
from lmzoo.files.preset_files import JsonFiles
from lmzoo.registry.head_kinds import HasHead
from lmzoo.search.nearest import SIMILARITIES
from lmzoo.text import Preprocessor, Tokenizer

SETTINGS_FILE = "config_sentence_transformers.json"
LENGTH_FILES = (  # the current name first; early versions named the file after the family
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)

_EMBEDDER = "SentenceTransformer"
_CROSS_ENCODER = "CrossEncoder"
# Type of the model -> the supported task and output names in the settings of its Transformer.
_TASKS = {
    _EMBEDDER: ("feature-extraction", "last_hidden_state", "token_embeddings"),
    _CROSS_ENCODER: ("sequence-classification", "logits", "scores"),
}
_EMPTY = (
    "config_args", "config_kwargs", "model_args", "model_kwargs", "processing_kwargs", "processor_kwargs",
    "tokenizer_args",
)  # fmt: skip
_UNSET = ("document_length", "query_expansion", "query_length", "tokenizer_name_or_path")
_DEFAULTS: dict[str, object] = {  # of the settings file
    "model_type": _EMBEDDER,
    "prompts": {},
    "default_prompt_name": None,
    "truncate_dim": None,
    "activation_fn": None,
}
_SETTINGS = ConfigTable(
    keys={key: key for key in _DEFAULTS},
    defaults=_DEFAULTS,
    ignored=("__version__", "keep_in_fp32_modules", "requirements", "similarity_fn_name"),
)


@dataclass(frozen=True)
class SentenceCheckpoint:
    """A checkpoint of Sentence Transformers; implements `lmzoo.presets.source.Source`.

    Attributes:
        directory: Directory of the checkpoint.
        transformer: Checkpoint of the Transformer alone, which may have another head.
        task: Checkpoint of the Transformer and the modules after it: an embedder or a cross-encoder.
        do_lower_case: Whether to lowercase text even if the tokenizer's own files do not say so.
    """

    directory: Path
    transformer: Checkpoint
    task: Checkpoint
    do_lower_case: bool = False

    @property
    def head(self) -> str | None:
        """Kind of the stored head, or None if there is no head."""
        return self.task.head

    @property
    def backbone_class(self) -> type[keras.Model]:
        """Backbone class of the family."""
        return self.transformer.backbone_class

    def build(self, overrides: Mapping[str, Any], load_weights: bool = True) -> keras.Model:
        """Build the backbone with random weights.

        Args:
            overrides: Constructor arguments that replace the stored ones.
            load_weights: Whether the stored weights will be loaded into the backbone.

        Raises:
            PresetError: If the configuration describes a far larger model than the stored weights.
        """
        return self.transformer.build(overrides, load_weights)

    def get_head_arguments(self, cls: type[HasHead]) -> Arguments | None:
        """Return the constructor arguments for task `cls` if its head is stored, else None."""
        return self._part_for(cls).get_head_arguments(cls)

    def _part_for(self, model: keras.Model | type[HasHead]) -> Checkpoint:
        return self.task if getattr(model, "head_kind", None) == self.task.head else self.transformer

    def preprocessor(self) -> Preprocessor:
        """Return a preprocessor with the stored tokenizer, packing, sequence length and lowercasing.

        Raises:
            PresetError: If a file is missing, the tokenizer or packing is not supported, or the tokenizer cannot
                lowercase text as the settings demand.
        """
        base = self.transformer.preprocessor()
        packing = base.packing
        tokenizer = _make_lowercase(base.tokenizer, self.directory) if self.do_lower_case else base.tokenizer
        is_default = packing == get_family_packing(self.transformer.family, tokenizer)
        if is_default and self.transformer.family.backbone.causal:
            packing = dataclasses.replace(packing, end="")  # transformers adds no special tokens for decoders
        return Preprocessor(tokenizer, packing, base.sequence_length)

    def load(self, model: keras.Model, with_head: bool = True) -> Plan:
        """Load the stored weights into a backbone or task and return the executed plan.

        Args:
            model: Backbone or task.
            with_head: Whether to load the head of a task; if False, only its backbone is loaded.

        Raises:
            PresetError: If a tensor is missing, unexpected, or of the wrong shape or dtype, or two copies of a tensor
                differ.
        """
        checkpoint = self._part_for(model) if with_head else self.transformer
        return checkpoint.load(model, with_head)

    def load_shared(self, model: HasHead) -> list[str]:
        """Load the backbone of a task, and its head if the files hold all weights of the head; see `Checkpoint`."""
        return self._part_for(model).load_shared(model)

    def close(self) -> None:
        """Close the weight files."""
        self.transformer.close()
        self.task.close()

    def report(self, model: keras.Model) -> dict[str, str]:
        """Load all weights into `model` and return a report on the checkpoint, a dict from topic to text."""
        return self._part_for(model).report(model)


def find_sentence_transformers(files: JsonFiles, family: str | None = None) -> SentenceCheckpoint | None:
    """Open the Sentence Transformers checkpoint in a directory, or return None if it has no `modules.json`.

    Args:
        files: JSON files of the directory.
        family: Name of the family, such as "bert", for a Transformer that does not specify it.

    Raises:
        PresetError: If a module or a setting is not supported; the message names the module or setting, and its file.
    """
    directory = files.directory
    if not has_file(directory, MODULES_FILE):
        return None
    reader = KeyReader()
    modules = read_modules(directory, reader)
    settings = _read_settings(reader, files)
    if modules[0].kind != "Transformer":
        raise PresetError(f"{directory / MODULES_FILE} begins with a {modules[0].kind}, expected a Transformer.")
    transformer_directory = modules[0].directory
    transformer_files = files if transformer_directory == directory else JsonFiles(transformer_directory)
    transformer = find_hugging_face(transformer_files, family)
    if transformer is None:
        raise PresetError(
            f"{transformer_directory} holds no model of Hugging Face's: its config.json names no `model_type`."
        )
    sequence_length, lowercase = _read_length_and_case(reader, transformer_files, settings["model_type"])
    transformer = dataclasses.replace(transformer, sequence_length=sequence_length)
    if settings["model_type"] == _CROSS_ENCODER:
        task = _read_cross_encoder(directory, transformer, modules, settings)
    else:
        task = _read_embedder(files, transformer, modules, settings, reader)
    reader.warn()
    task = dataclasses.replace(task, notes={**task.notes, **reader.report(directory)})
    return SentenceCheckpoint(directory, transformer, task, lowercase)


def _read_settings(reader: KeyReader, files: JsonFiles) -> Arguments:
    """Read and check the settings of a checkpoint.

    Returns:
        The settings by key, and two more entries: "similarity", the stored similarity function or, if it is missing or
        not supported, the default; and "unused", a dict with the stored function if it is not supported.

    Raises:
        PresetError: If a setting is invalid; the message names the file and the key.
    """
    file = files.directory / SETTINGS_FILE
    stored_settings = files.read_if_present(SETTINGS_FILE)
    settings = reader.read(_SETTINGS, stored_settings, file)
    model_type = settings["model_type"]
    require_value(model_type in _TASKS, file, "model_type", " or ".join(_TASKS), model_type)
    prompts = settings["prompts"]
    has_texts = isinstance(prompts, dict) and all(isinstance(text, str | None) for text in prompts.values())
    require_value(has_texts, file, "prompts", "an object with texts", prompts)
    surrogate = re.search("[\ud800-\udfff]", "".join([*prompts, *filter(None, prompts.values())]))
    require_value(surrogate is None, file, "prompts", "valid Unicode", prompts)
    settings["prompts"] = {name: text or "" for name, text in prompts.items()}
    default_prompt = settings["default_prompt_name"]
    is_valid = default_prompt is None or (isinstance(default_prompt, str) and default_prompt in prompts)
    require_value(is_valid, file, "default_prompt_name", f"one of {[*prompts]!r:.100}", default_prompt)
    dimension = settings["truncate_dim"]
    require_value(dimension is None or is_integer(dimension, 1), file, "truncate_dim", "a positive integer", dimension)
    similarity = stored_settings.get("similarity_fn_name")
    is_supported = similarity is None or similarity in SIMILARITIES
    settings["similarity"] = similarity if similarity and is_supported else SIMILARITIES[0]
    settings["unused"] = {} if is_supported else {"similarity_fn_name": similarity}
    return settings


def _read_length_and_case(reader: KeyReader, files: JsonFiles, model_type: str) -> tuple[int | None, bool]:
    """Return `max_seq_length` and `do_lower_case` of the Transformer, by default None and False.

    Raises:
        PresetError: If a setting is invalid or not supported; the message names the file and the key.
    """
    task_name, method_output_name, output_name = _TASKS[model_type]
    table = ConfigTable(
        keys={"max_seq_length": "length", "do_lower_case": "lowercase"},
        defaults={"max_seq_length": None, "do_lower_case": False},
        allowed={
            "transformer_task": (task_name,),
            "modality_config": ({"text": {"method": "forward", "method_output_name": method_output_name}},),
            "module_output_name": (output_name,),
            **{key: ({}, None) for key in _EMPTY},
            **dict.fromkeys(_UNSET, (None,)),
        },
        ignored=("unpad_inputs",),
    )
    name = next((name for name in LENGTH_FILES if has_file(files.directory, name)), None)
    if name is None:
        return None, False
    file = files.directory / name
    settings = reader.read(table, files.read(name), file)
    length = settings["length"]
    lowercase = settings["lowercase"]
    require_value(length is None or is_integer(length, 1), file, "max_seq_length", "a positive integer", length)
    require_value(isinstance(lowercase, bool | None), file, "do_lower_case", "true or false", lowercase)
    return length, bool(lowercase)


def _read_embedder(
    files: JsonFiles, transformer: Checkpoint, modules: list[Module], settings: Arguments, reader: KeyReader
) -> Checkpoint:
    """Return the checkpoint of an embedder: the Transformer, the modules after it and the settings."""
    arguments = read_head(modules, transformer.arguments["hidden_dim"], reader)
    if settings["truncate_dim"] is not None:  # truncation follows all modules
        normalization = [{"kind": "normalize"}] if arguments["normalize"] else []
        truncation = {"kind": "truncate", "units": settings["truncate_dim"]}
        arguments = {
            **arguments,
            "normalize": False,
            "projection": [*arguments["projection"], *normalization, truncation],
        }
    prompts = settings["prompts"]
    default_prompt = settings["default_prompt_name"]
    weights = LazyTensors(lambda: _join_tensors(files.directory, transformer.weights.open(), modules[2:]))
    notes = {"modules": describe(arguments)}
    if any(prompts.values()):
        prompt_names = ", ".join(name for name, text in prompts.items() if text)
        notes["prompts"] = f"{prompt_names}; by default {default_prompt or 'none'}"
    for key, value in settings["unused"].items():
        notes[f"not used: {key}"] = f"{value!r:.100} in {SETTINGS_FILE}"
    notes |= _describe_length(transformer)

    def read_arguments(kind: str) -> Arguments:
        if find_weights_file(transformer.directory):
            _check_shapes(arguments["projection"], weights)
        search_arguments = {"prompts": prompts, "default_prompt": default_prompt, "similarity": settings["similarity"]}
        return {**arguments, **search_arguments}

    head = StoredHead("embedding", read_arguments)
    return dataclasses.replace(transformer, files=files, weights=weights, read_head=lambda: head, notes=notes)


def _check_shapes(layers: list[dict[str, Any]], weights: LazyTensors) -> None:
    """Check, before building any layer, that the output sizes of dense layers match their stored tensors.

    Raises:
        PresetError: If an output size differs; the message names the file.
    """
    for layer_number, layer in enumerate(layers):
        if layer["kind"] != "dense":
            continue
        tensors = weights.open()
        name = f"modules.{layer_number}.linear.weight"
        if name in tensors.names() and tensors.shape(name)[:1] != (layer["units"],):
            raise PresetError(
                f"{tensors.file_of(name)}: 'linear.weight' has shape {tensors.shape(name)}, but according to its "
                f"configuration `out_features` is {layer['units']:,}. Nothing was built."
            )


def _describe_length(transformer: Checkpoint) -> dict[str, str]:
    length = transformer.sequence_length
    return {} if length is None else {"sequence length": f"{length} tokens"}


def _join_tensors(directory: Path, transformer: TensorFile, modules: list[Module]) -> TensorFile:
    """Combine the tensors of the Transformer and of the modules after it, with the names in `EMBEDDING_HEAD`."""
    places = {name: Place(transformer, name) for name in transformer.names()}
    for module_number, module in enumerate(modules):
        if module.kind in ("Dense", "LayerNorm"):
            file = open_tensors(module.directory)
            places |= {f"modules.{module_number}.{name}": Place(file, name) for name in file.names()}
    return PlacedTensors(directory, places)


def _read_cross_encoder(
    directory: Path, transformer: Checkpoint, modules: list[Module], settings: Arguments
) -> Checkpoint:
    """Return the checkpoint of a cross-encoder: the Transformer, with the output activation in the settings.

    Raises:
        PresetError: If there are other modules, or the default prompt is not empty.
    """
    kinds = [module.kind for module in modules]
    if kinds != ["Transformer"]:
        raise PresetError(
            f"{directory / MODULES_FILE} lists {', '.join(kinds)}: a CrossEncoder is a Transformer alone."
        )
    if settings["default_prompt_name"] is not None and settings["prompts"][settings["default_prompt_name"]]:
        raise PresetError(f"{directory / SETTINGS_FILE}: `default_prompt_name` of a CrossEncoder is not supported.")
    transformer = dataclasses.replace(transformer, notes={"modules": "Transformer", **_describe_length(transformer)})
    if settings["activation_fn"] is None:
        return transformer
    stored_head = transformer.stored_head
    file = directory / SETTINGS_FILE

    def read_arguments(kind: str) -> Arguments:
        if kind != "regression":
            return stored_head.arguments(kind)
        activation = read_activation(settings["activation_fn"], "activation_fn", file)
        return {**stored_head.arguments(kind), "output_activation": activation}

    return dataclasses.replace(
        transformer, read_head=lambda: dataclasses.replace(stored_head, arguments=read_arguments)
    )


def _make_lowercase(tokenizer: Tokenizer, directory: Path) -> Tokenizer:
    """Return a copy of a tokenizer that also lowercases text, or the tokenizer itself if it already does.

    Args:
        tokenizer: Tokenizer to copy.
        directory: Directory of the checkpoint, for messages.

    Raises:
        PresetError: If the tokenizer cannot lowercase text.
    """
    config = tokenizer.get_config()
    if config.get("lowercase"):
        return tokenizer
    if "lowercase" not in config or "strip_accents" not in config:
        raise PresetError(
            f"{directory}: `do_lower_case` is true next to `max_seq_length`, but a {type(tokenizer).__name__} keeps "
            "the case of text. Set it to false if that is right."
        )
    strip_accents = config["strip_accents"] or False  # if unset, it would follow `lowercase`
    cls: Any = type(tokenizer)
    return cls(**{**config, "vocabulary": tokenizer.base_vocabulary, "lowercase": True, "strip_accents": strip_accents})
