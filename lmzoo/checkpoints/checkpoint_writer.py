"""Writing of models in the file formats of other libraries."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from lmzoo.checkpoints.checkpoint import find_wrong_padding
from lmzoo.checkpoints.config_table import Arguments
from lmzoo.checkpoints.engine import Layout, convert_to_tensors
from lmzoo.checkpoints.family_names import keras_hub_prefix, names_in_transformers
from lmzoo.checkpoints.formats.hdf5 import write_hdf5
from lmzoo.checkpoints.formats.reshaped import stack
from lmzoo.checkpoints.formats.safetensors import write_safetensors
from lmzoo.checkpoints.formats.tensor_file import Arrays
from lmzoo.checkpoints.formats.tensorflow import write_tensorflow_checkpoint
from lmzoo.checkpoints.google import google_files
from lmzoo.checkpoints.hugging_face.checkpoint import POOLING_TOKENS, POOLINGS, PREDICTING_TOKENS
from lmzoo.checkpoints.keras_hub.checkpoint import to_keras_hub
from lmzoo.checkpoints.keras_hub.heads import embedder_config, write_embedder_preprocessor
from lmzoo.checkpoints.sentence_transformers.modules import MODULES_FILE
from lmzoo.checkpoints.sentence_transformers.writer import (
    SENTENCE_FILES,
    check_embedder,
    split_off_modules,
    write_modules,
    write_sequence_length,
)
from lmzoo.checkpoints.tokenizers.classes import find_class_with_packing
from lmzoo.checkpoints.tokenizers.files import write_tokenizer
from lmzoo.checkpoints.tokenizers.format import TokenizerFormat
from lmzoo.checkpoints.tokenizers.keras_hub import write_keras_hub_tokenizer
from lmzoo.checkpoints.torch_activations import write_activation
from lmzoo.errors import PresetError
from lmzoo.files.atomic import atomic_directory
from lmzoo.files.preset_files import (
    CONFIG_FILE,
    MANIFEST_FILE,
    METADATA_FILE,
    MODEL_WEIGHTS_FILE,
    PRESET_ENTRIES,
    TASK_FILE,
    write_json,
)
from lmzoo.layers.sublayers import get_stored_weights
from lmzoo.registry.family import Family, get_family
from lmzoo.registry.head_kinds import HasHead, task_name
from lmzoo.text import Preprocessor, Tokenizer

_TOKENIZER_FILES = {
    "added_tokens.json", "generation_config.json", "merges.txt", "source.spm", "special_tokens_map.json",
    "spiece.model", "spm.model", "target.spm", "tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt",
}  # fmt: skip


def check_format(to: str) -> None:
    """Check that `to` is the name of a format.

    Raises:
        ValueError: If it is not.
    """
    names = ["keras", *_WRITERS]
    if to not in names:
        raise ValueError(f"`to` must be one of {', '.join(names)}, got {to!r}.")


def write_checkpoint(
    model: keras.Model, directory: str | Path, to: str, overwrite: bool, preprocessor: Preprocessor | None
) -> None:
    """Write a model in another library's file format.

    Args:
        model: Backbone or task.
        directory: Directory to write.
        to: Name of the format: "hf", "tf1", "keras_hub" or "bilm".
        overwrite: Whether to replace an existing directory.
        preprocessor: Preprocessor with the tokenizer to write, or None to write only the model.

    Raises:
        ValueError: If `to` is not the name of a format.
        PresetError: If the family has no such format, or the format cannot hold the model.
        PathExistsError: If `directory` is not empty and `overwrite` is False.
    """
    check_format(to)
    writer = _WRITERS[to]
    task = model if isinstance(model, HasHead) else None
    head_kind = None if task is None else task.head_kind
    backbone = model if task is None else model.backbone
    family = get_family(backbone)
    has_vocabulary = writer.format == "bilm" and getattr(backbone.config, "vocabulary_size", None)
    format = "bilm_tokens" if has_vocabulary else writer.format
    if format not in family.checkpoints:
        formats = [name for name, candidate in _WRITERS.items() if candidate.format in family.checkpoints]
        raise PresetError(f"The family {family.name!r} has no format {to!r}: it has {', '.join(formats) or 'none'}.")
    layout = family.checkpoints[format]
    config_changes, extra_tensors = layout.complete(backbone.config)
    approximates_gelu = (
        layout.config.constants.get("activation") == "gelu_tanh" and backbone.config.activation == "gelu"
    )
    if approximates_gelu:
        config_changes = {**config_changes, "activation": "gelu_tanh"}
    merge_changes, weights = layout.merge(backbone.config, dict(get_stored_weights(model)))
    config = _convert_config(layout, dataclasses.replace(backbone.config, **config_changes, **merge_changes))
    if task is not None:
        is_embedder = head_kind == "embedding"
        if head_kind not in layout.heads or (to == "keras_hub" and not is_embedder):
            raise PresetError(
                f"The format {to!r} has no place for the head of a {task_name(task.head_kind)}. Save `task.backbone`."
            )
        if is_embedder:
            check_embedder(task, preprocessor, to)
        else:
            _check_head(task, to, layout)
        if not task.uses_pooler and not is_embedder:  # embedders are written with a whole backbone
            weights = {path: weight for path, weight in weights.items() if not path.startswith(layout.optional)}
    tensors = convert_to_tensors(layout, weights, head_kind)
    head_tensors = {row.name for row in layout.heads.get(head_kind or "", {}).values()}
    extra_tensors = {name: tensor for name, tensor in extra_tensors.items() if name not in head_tensors}
    if preprocessor is not None and (padding := find_wrong_padding(preprocessor.tokenizer, layout)):
        raise PresetError(f"{padding.problem} Save the backbone alone, or train with a vocabulary in that order.")
    files = writer.files(family)
    owned_names = {*files, MANIFEST_FILE}  # `verify` may have written a manifest of the earlier files
    with atomic_directory(directory, marker=files[0], owns=owned_names, overwrite=overwrite) as target:
        writer.model(target, model, family, config, itertools.chain(tensors, extra_tensors.items()))
        if preprocessor is not None and writer.tokenizer is not None:
            writer.tokenizer(target, preprocessor, family)
    if approximates_gelu:
        max_difference, stddev = _measure_tanh_effect(backbone)
        warnings.warn(
            f"This model has the exact GELU, for which the format {to!r} always stands for the tanh approximation: "
            f"read from it, hidden states of random tokens differ by up to {max_difference:.2g}, at a standard "
            f"deviation of {stddev:.2g}.",
            stacklevel=3,
        )
    if to == "tf1" and task is not None and task.labels:
        warnings.warn(
            "A TensorFlow 1 checkpoint has no place for the names of labels: pass `labels=` when you load it.",
            stacklevel=3,
        )


def _measure_tanh_effect(backbone: keras.Model) -> tuple[float, float]:
    """Measure the effect of GELU's tanh approximation on the last hidden states of random tokens.

    Returns:
        The maximum absolute difference of the hidden states, and their standard deviation.
    """
    approximate_model = type(backbone).from_config({**backbone.get_config(), "activation": "gelu_tanh"})
    approximate_model.set_weights([keras.ops.convert_to_numpy(value) for _, value in get_stored_weights(backbone)])
    shape = 4, min(64, backbone.config.max_sequence_length)
    ids = np.random.default_rng(0).integers(0, backbone.config.vocabulary_size, shape, "int32")
    features = {"token_ids": ids, "padding_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    inputs = {name: features[name] for name in backbone.input}
    exact_states, approximate_states = (
        keras.ops.convert_to_numpy(model(inputs)["sequence_output"]) for model in (backbone, approximate_model)
    )
    return float(np.abs(exact_states - approximate_states).max()), float(exact_states.std())


def _check_head(task: HasHead, to: str, layout: Layout) -> None:
    """Check that the settings of a task's head have the values that the format `to` implies.

    Raises:
        PresetError: If an argument of the head differs; the message names the argument.
    """
    head_config = task.get_config()
    backbone_config = task.backbone.config
    activation = getattr(layout, "head_activation", None)
    fixed_values = {"objective": task.family.objective}
    if getattr(layout, "pooling", None) is None:
        fixed_values["pooling"] = "first"
    if to != "hf":
        fixed_values |= {"multi_label": False, "output_activation": "linear"}
    fixed_values |= {name: getattr(backbone_config, name, None) for name in ("activation", "layer_norm_epsilon")}
    if task.head_kind in PREDICTING_TOKENS and activation is not None:
        fixed_values["activation"] = activation
    for name, expected in fixed_values.items():
        if head_config.get(name) not in (None, expected):
            raise PresetError(
                f"The format {to!r} cannot express `{name}={head_config[name]!r}` of a {type(task).__name__}: there it "
                f"is always {expected!r}. Build and train the task with that, or save `task.backbone`."
            )


def _convert_config(layout: Layout, config: Any) -> Arguments:
    """Convert a configuration to the format's keys, and check that reading the keys restores the configuration.

    If only `initializer_range` is not restored, warn instead of raising an error.

    Raises:
        PresetError: If the format cannot express a value; the message names the argument.
    """
    original_arguments = dataclasses.asdict(config)
    stored_config = layout.config.write(original_arguments, layout.name)
    omitted_values = {name: original_arguments[name] for name in layout.config.omitted}
    restored_arguments = dataclasses.asdict(
        type(config)(**{**layout.config.read(stored_config, "the file"), **omitted_values})
    )
    changed_names = sorted(name for name, value in original_arguments.items() if restored_arguments[name] != value)
    if changed_names == ["initializer_range"]:  # has no effect on stored weights
        warnings.warn(
            f"The format {layout.name!r} holds no `initializer_range`: weights that are initialized later will have a "
            f"deviation of {restored_arguments['initializer_range']:g}, not "
            f"{original_arguments['initializer_range']:g}.",
            stacklevel=2,
        )
    elif changed_names:
        raise PresetError(
            f"The format {layout.name!r} cannot express `{changed_names[0]}={original_arguments[changed_names[0]]!r}`: "
            f"there it is {restored_arguments[changed_names[0]]!r}."
        )
    return stored_config


def _write_hugging_face(target: Path, model: keras.Model, family: Family, config: Arguments, tensors: Arrays) -> None:
    names = names_in_transformers(family)
    head_kind = getattr(model, "head_kind", None)
    is_embedder = head_kind == "embedding"
    module_weights: dict[str, np.ndarray] = {}
    if is_embedder:
        tensors = split_off_modules(tensors, module_weights)
    elif head_kind is not None:
        prefixes = dict.fromkeys(family.checkpoints["hf"].parts, f"{names.base}.")
        tensors = ((prefixes.get(name.partition(".")[0], "") + name, array) for name, array in tensors)
        labels = model.labels or [f"LABEL_{i}" for i in range(1 if head_kind == "regression" else model.num_classes)]
        if (pooling_key := family.checkpoints["hf"].pooling) and head_kind in POOLING_TOKENS:
            config[pooling_key] = next(key for key, pooling in POOLINGS.items() if pooling == model.pooling)
        if labels:
            config["id2label"] = {str(i): name for i, name in enumerate(labels)}
            config["label2id"] = {name: i for i, name in enumerate(labels)}
        if not getattr(model, "tie_embeddings", True):
            config["tie_word_embeddings"] = False
        if model.multi_label:
            config["problem_type"] = "multi_label_classification"
        if head_kind == "regression":
            config["problem_type"] = "regression"
            config["sentence_transformers"] = {"activation_fn": write_activation(model.output_activation)}
        if head_kind == "seq2seq_lm" and model.preprocessor is not None:
            config |= _write_generation_config(target, model)
    if head_kind is not None and model.preprocessor is not None:
        config |= _get_missing_token_ids(config, model.preprocessor.tokenizer)
    architecture = names.architecture(None if is_embedder else head_kind)
    config = {"architectures": [architecture], "model_type": names.model_type, **config}
    write_json(target, CONFIG_FILE, config)
    write_safetensors(target / "model.safetensors", tensors)
    if is_embedder:
        write_modules(target, model, module_weights)


def _get_missing_token_ids(config: Arguments, tokenizer: Tokenizer) -> Arguments:
    """Return the tokenizer's ids of special tokens, by key, for the `*_token_id` keys that are None in `config`."""
    keys = [key for key, value in config.items() if key.endswith("_token_id") and value is None]
    tokens = {key: getattr(tokenizer, TokenizerFormat.tokens[key.removesuffix("_id")]) for key in keys}
    return {key: tokenizer.token_to_id(token) for key, token in tokens.items() if token is not None}


def _write_generation_config(target: Path, model: Any) -> Arguments:
    """Write the `generation_config.json` of a sequence-to-sequence task, and return the special token ids in it."""
    tokenizer = model.preprocessor.tokenizer
    (end_id,) = model.preprocessor.special_ids()[2]
    special_ids = {"decoder_start_token_id": tokenizer.pad_id, "pad_token_id": tokenizer.pad_id, "eos_token_id": end_id}
    settings = {
        "bad_words_ids": [[tokenizer.pad_id]],
        "length_penalty": model.length_penalty,
        "max_length": model.backbone.config.max_sequence_length,
        "num_beams": model.num_beams,
        "renormalize_logits": True,
    }
    if model.backbone.forces_end:
        settings["forced_eos_token_id"] = end_id
    write_json(target, "generation_config.json", {**special_ids, **settings})
    return special_ids


def _write_google(target: Path, model: keras.Model, family: Family, config: Arguments, tensors: Arrays) -> None:
    config_file, weights_file = google_files(family)
    tensors = stack(tensors, family.checkpoints["google"].stacked)
    write_json(target, config_file, config)
    write_tensorflow_checkpoint(target / weights_file, tensors)


def _write_bilm(target: Path, model: keras.Model, family: Family, config: Arguments, tensors: Arrays) -> None:
    options: dict[str, Any] = {}
    for key, value in config.items():
        *sections, option = key.split(".")
        section = options
        for section_name in sections:
            section = section.setdefault(section_name, {})
        section[option] = value
    write_json(target, "options.json", options)
    write_hdf5(target / "weights.hdf5", tensors)


def _write_keras_hub(target: Path, model: keras.Model, family: Family, config: Arguments, tensors: Arrays) -> None:
    class_name = f"{keras_hub_prefix(family)}Backbone"
    serialized_backbone = {"class_name": class_name, "config": config, "registered_name": f"keras_hub>{class_name}"}
    write_json(target, CONFIG_FILE, serialized_backbone)
    if isinstance(model, HasHead):
        task_config = embedder_config(
            keras_hub_prefix(family), serialized_backbone, model.name, model.pooling, model.normalize
        )
        write_json(target, TASK_FILE, task_config)
    write_json(target, METADATA_FILE, {"parameter_count": model.count_params(), "keras_version": keras.__version__})
    write_hdf5(target / MODEL_WEIGHTS_FILE, to_keras_hub(tensors, family.checkpoints["keras_hub"], config))


def _write_tokenizer(target: Path, preprocessor: Preprocessor, family: Family) -> None:
    tokenizer = preprocessor.tokenizer
    packing = dataclasses.replace(preprocessor.packing, zero_segments=False)
    tokenizer_class = find_class_with_packing(tokenizer, packing, family)
    name = None if tokenizer_class is None else tokenizer_class.name
    write_tokenizer(tokenizer, target, preprocessor.sequence_length, name, packing if tokenizer_class is None else None)
    if (target / MODULES_FILE).is_file():
        write_sequence_length(target, preprocessor)


def _write_keras_hub_preprocessor(target: Path, preprocessor: Preprocessor, family: Family) -> None:
    if not family.checkpoints["keras_hub"].has_tokenizer:
        warnings.warn(f"KerasHub has no tokenizer for {family.name!r}: only the model is written.", stacklevel=2)
        return
    write_keras_hub_tokenizer(preprocessor.tokenizer, target, f"{keras_hub_prefix(family)}Tokenizer")
    if (target / TASK_FILE).is_file():
        write_embedder_preprocessor(target, keras_hub_prefix(family), preprocessor.sequence_length)


def _list_google_files(family: Family) -> list[str]:
    config_file, weights_file = google_files(family)
    weights_files = [f"{weights_file}.{suffix}" for suffix in ("index", "data-00000-of-00001")]
    return [config_file, "checkpoint", *weights_files, *_TOKENIZER_FILES]


@dataclasses.dataclass(frozen=True)
class _Writer:
    """The functions that write one file format.

    Attributes:
        format: Key of the format in `Family.checkpoints`.
        files: Function that returns the file names of the format for a family. The first name identifies the format.
        model: Function that writes the weights and the configuration of a model.
        tokenizer: Function that writes the tokenizer, or None if the format has none.
    """

    format: str
    files: Callable[[Family], Sequence[str]]
    model: Callable[[Path, keras.Model, Family, Arguments, Arrays], None]
    tokenizer: Callable[[Path, Preprocessor, Family], None] | None = None


_WRITERS = {
    "hf": _Writer(
        "hf",
        lambda family: ["model.safetensors", CONFIG_FILE, *_TOKENIZER_FILES, *SENTENCE_FILES],
        _write_hugging_face,
        _write_tokenizer,
    ),
    "tf1": _Writer("google", _list_google_files, _write_google, _write_tokenizer),
    "keras_hub": _Writer(
        "keras_hub",
        lambda family: [MODEL_WEIGHTS_FILE, *PRESET_ENTRIES],
        _write_keras_hub,
        _write_keras_hub_preprocessor,
    ),
    "bilm": _Writer("bilm", lambda family: ["options.json", "weights.hdf5"], _write_bilm),
}
