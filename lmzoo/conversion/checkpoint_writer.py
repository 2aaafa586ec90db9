"""Writes models in the formats of other libraries."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import keras
import numpy as np

from lmzoo.checkpoints.config_table import Arguments
from lmzoo.checkpoints.engine import Layout, tensors_of, weights_of
from lmzoo.checkpoints.family_names import keras_hub_prefix, names_in_transformers
from lmzoo.checkpoints.formats.hdf5 import write_hdf5
from lmzoo.checkpoints.formats.safetensors import write_safetensors
from lmzoo.checkpoints.formats.tensorflow import write_tensorflow_checkpoint
from lmzoo.checkpoints.google import google_files
from lmzoo.checkpoints.hugging_face import HuggingFaceLayout
from lmzoo.checkpoints.keras_hub import with_heads
from lmzoo.checkpoints.keras_hub_tokenizers import write_keras_hub_tokenizer
from lmzoo.checkpoints.tokenizer_files import write_tokenizer
from lmzoo.errors import PresetError
from lmzoo.family import Family, family_of
from lmzoo.files.atomic import atomic_directory
from lmzoo.files.preset_files import CONFIG_FILE, METADATA_FILE, MODEL_WEIGHTS_FILE, PRESET_ENTRIES, write_json
from lmzoo.head_kinds import task_name
from lmzoo.layers import MaskedLMHead
from lmzoo.presets.keras_preset import save_preset
from lmzoo.text import Preprocessor

Tensors: TypeAlias = Iterable[tuple[str, np.ndarray]]

_TOKENIZER_FILES = {
    "added_tokens.json", "merges.txt", "special_tokens_map.json", "spiece.model", "tokenizer.json",
    "tokenizer_config.json", "vocab.json", "vocab.txt",
}  # fmt: skip


def save_checkpoint(
    model: keras.Model,
    directory: str | Path,
    to: str,
    overwrite: bool = True,
    preprocessor: Preprocessor | None = None,
) -> None:
    """Writes a model in another library's format, tokenizer included.

    Args:
        model: a backbone or a task.
        directory: where to write. If writing fails, what was there stays untouched.
        to: `"hf"` for Hugging Face's transformers, `"keras_hub"` for KerasHub (backbones only), `"tf1"` for Google's
            BERT and ALBERT code, `"bilm"` for AllenNLP's and bilm-tf's ELMo, `"keras"` for a preset of lmzoo.
        overwrite: whether an existing directory may be replaced.
        preprocessor: the tokenizer to write, by default the task's.

    Raises:
        ValueError: for an unknown format, or a model that the format cannot hold.

    Example:

    ```python
    import lmzoo

    model = lmzoo.models.MaskedLM.from_preset("bert_nano_en_uncased")
    lmzoo.save_checkpoint(model, "bert_nano", to="hf")  # transformers.AutoModelForMaskedLM.from_pretrained("bert_nano")
    ```
    """
    preprocessor = preprocessor or getattr(model, "preprocessor", None)
    if to == "keras":
        save_preset(model, directory, overwrite, preprocessor)
        return
    if to not in _WRITERS:
        raise ValueError(f"`to` must be one of {', '.join(['keras', *_WRITERS])}, got {to!r}.")
    writer = _WRITERS[to]
    backbone = getattr(model, "backbone", model)
    family = family_of(backbone)
    tokens = writer.kind == "bilm" and getattr(backbone.config, "vocabulary_size", None)
    kind = "bilm_tokens" if tokens else writer.kind
    if kind not in family.checkpoints:
        kinds = [name for name, other in _WRITERS.items() if other.kind in family.checkpoints]
        raise PresetError(f"The family {family.name!r} has no format {to!r}: it has {', '.join(kinds) or 'none'}.")
    format = family.checkpoints[kind]
    changes, more = format.complete(backbone.config)
    config = _config(format, dataclasses.replace(backbone.config, **changes))
    weights = weights_of(model)
    if not getattr(model, "uses_pooler", True):
        weights = {path: weight for path, weight in weights.items() if not path.startswith(format.optional)}
    head = getattr(model, "head_kind", None)
    if head is not None:
        if head not in format.heads or to == "keras_hub":
            raise PresetError(
                f"The format {to!r} has no place for the head of a {task_name(head)}. Save `task.backbone`."
            )
        _check_head(model, backbone, to)
    files = writer.files(family)
    with atomic_directory(directory, marker=files[0], owns=set(files), overwrite=overwrite) as target:
        writer.model(target, model, family, config, itertools.chain(tensors_of(format, weights, head), more.items()))
        if preprocessor is not None and writer.tokenizer is not None:
            writer.tokenizer(target, preprocessor, family)
    if to == "tf1" and getattr(model, "labels", None):
        warnings.warn(
            "A TensorFlow 1 checkpoint has no place for the names of labels: pass `labels=` when you load it.",
            stacklevel=2,
        )


def _check_head(model: keras.Model, backbone: keras.Model, to: str) -> None:
    """Checks that the head's arguments are those that other libraries always use: their files cannot hold others."""
    fixed: dict[str, tuple[object, object]] = {"pooling": (getattr(model, "pooling", "first"), "first")}
    if to != "hf":
        fixed["multi_label"] = (getattr(model, "multi_label", False), False)
    if isinstance(model.head, MaskedLMHead):
        names = ("activation", "layer_norm_epsilon")
        fixed |= {name: (getattr(model.head, name), getattr(backbone.config, name)) for name in names}
    if objective := getattr(model, "objective", None):
        fixed["objective"] = (objective, family_of(backbone).objective)
    for name, (found, expected) in fixed.items():
        if found != expected:
            raise PresetError(
                f"The format {to!r} cannot express `{name}={found!r}` of a {type(model).__name__}: there it is always "
                f"{expected!r}. Build and train the task with that, or save `task.backbone`."
            )


def _config(format: Layout, config: Any) -> Arguments:
    """The configuration to write, after a check that reading it gives back ours."""
    ours = dataclasses.asdict(config)
    stored = format.config.write(ours, format.name)
    untold = {name: ours[name] for name in format.config.untold}
    again = dataclasses.asdict(type(config)(**{**format.config.read(stored, "the file"), **untold}))
    if lost := sorted(name for name, value in ours.items() if again[name] != value):
        raise PresetError(
            f"The format {format.name!r} cannot express `{lost[0]}={ours[lost[0]]!r}`: there it is {again[lost[0]]!r}."
        )
    return stored


def _write_hugging_face(target: Path, model: keras.Model, family: Family, config: Arguments, tensors: Tensors) -> None:
    head, names = getattr(model, "head_kind", None), names_in_transformers(family)
    if head == "regression":
        config |= {"problem_type": "regression", "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    elif getattr(model, "multi_label", False):
        config["problem_type"] = "multi_label_classification"
    if head is not None:
        layout: HuggingFaceLayout = family.checkpoints["hf"]
        tensors = ((layout.with_base(name, names.base), array) for name, array in tensors)
    config = {"architectures": [names.architecture(head)], "model_type": names.model_type, **config}
    if classes := getattr(model, "class_names", None):
        classes = list(model.labels or [f"LABEL_{i}" for i in range(len(classes))])
        config["id2label"] = {str(i): name for i, name in enumerate(classes)}
        config["label2id"] = {name: i for i, name in enumerate(classes)}
    write_json(target, CONFIG_FILE, config)
    write_safetensors(target / "model.safetensors", tensors)


def _write_google(target: Path, model: keras.Model, family: Family, config: Arguments, tensors: Tensors) -> None:
    config_file, weights_file = google_files(family)
    write_json(target, config_file, config)
    write_tensorflow_checkpoint(target / weights_file, tensors)


def _write_bilm(target: Path, model: keras.Model, family: Family, config: Arguments, tensors: Tensors) -> None:
    nested: dict[str, Any] = {}
    for key, value in config.items():
        *path, last = key.split(".")
        inside = nested
        for part in path:
            inside = inside.setdefault(part, {})
        inside[last] = value
    write_json(target, "options.json", nested)
    write_hdf5(target / "weights.hdf5", tensors)


def _write_keras_hub(target: Path, model: keras.Model, family: Family, config: Arguments, tensors: Tensors) -> None:
    name = f"{keras_hub_prefix(family)}Backbone"
    write_json(target, CONFIG_FILE, {"class_name": name, "config": config, "registered_name": f"keras_hub>{name}"})
    write_json(target, METADATA_FILE, {"parameter_count": model.count_params(), "keras_version": keras.__version__})
    write_hdf5(target / MODEL_WEIGHTS_FILE, with_heads(tensors, config["num_heads"]))


def _write_tokenizer(target: Path, preprocessor: Preprocessor, family: Family) -> None:
    peer = names_in_transformers(family).tokenizer if "hf" in family.checkpoints else None
    write_tokenizer(preprocessor.tokenizer, target, preprocessor.sequence_length, peer)


def _write_keras_hub_tokenizer(target: Path, preprocessor: Preprocessor, family: Family) -> None:
    write_keras_hub_tokenizer(preprocessor.tokenizer, target, f"{keras_hub_prefix(family)}Tokenizer")


def _files_of_google(family: Family) -> list[str]:
    config_file, weights_file = google_files(family)
    weights = [f"{weights_file}.{end}" for end in ("index", "data-00000-of-00001")]
    return [config_file, "checkpoint", *weights, *_TOKENIZER_FILES]


@dataclasses.dataclass(frozen=True)
class _Writer:
    """How a format is written.

    Attributes:
        kind: its key in `Family.checkpoints`.
        files: names of the files in a directory of the format, for a family; the first one identifies the format.
        model: writes the weights and the configuration.
        tokenizer: writes the tokenizer; None if the format has none.
    """

    kind: str
    files: Callable[[Family], Sequence[str]]
    model: Callable[[Path, keras.Model, Family, Arguments, Tensors], None]
    tokenizer: Callable[[Path, Preprocessor, Family], None] | None = None


_WRITERS = {
    "hf": _Writer(
        "hf",
        lambda family: [CONFIG_FILE, "model.safetensors", *_TOKENIZER_FILES],
        _write_hugging_face,
        _write_tokenizer,
    ),
    "tf1": _Writer("google", _files_of_google, _write_google, _write_tokenizer),
    "keras_hub": _Writer(
        "keras_hub", lambda family: [CONFIG_FILE, *PRESET_ENTRIES], _write_keras_hub, _write_keras_hub_tokenizer
    ),
    "bilm": _Writer("bilm", lambda family: ["options.json", "weights.hdf5"], _write_bilm),
}
