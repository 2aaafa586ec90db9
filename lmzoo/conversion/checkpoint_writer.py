"""Models to files of other libraries."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from lmzoo.checkpoints.engine import Layout, tensors_of, weights_of
from lmzoo.checkpoints.formats.hdf5 import write_hdf5
from lmzoo.checkpoints.formats.safetensors import write_safetensors
from lmzoo.checkpoints.formats.tensorflow import write_tensorflow_checkpoint
from lmzoo.checkpoints.hugging_face import TASKS, with_base
from lmzoo.checkpoints.keras_hub import with_heads
from lmzoo.checkpoints.keras_hub_tokenizers import write_keras_hub_tokenizer
from lmzoo.checkpoints.tokenizers import write_tokenizer
from lmzoo.errors import PresetError
from lmzoo.family import family_of
from lmzoo.files.atomic import atomic_directory
from lmzoo.files.preset_files import CONFIG_FILE, METADATA_FILE, MODEL_WEIGHTS_FILE, PRESET_ENTRIES, write_json
from lmzoo.presets.loading import save_preset

_TOKENIZER_FILES = {
    "added_tokens.json", "merges.txt", "special_tokens_map.json", "spiece.model", "tokenizer.json",
    "tokenizer_config.json", "vocab.json", "vocab.txt",
}  # fmt: skip


def save_checkpoint(
    model: Any, directory: str | Path, to: str, overwrite: bool = True, preprocessor: Any = None
) -> None:
    """Writes a model in another library's format, tokenizer included.

    Args:
        model: a backbone or a task.
        directory: where to. A failure leaves what was there untouched.
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
        raise PresetError(
            f"There are no {to} files of the family {family.name!r}: it has {', '.join(kinds) or 'none'}."
        )
    format = family.checkpoints[kind]
    said, more = format.complete(backbone.config)
    config = _config(format, dataclasses.replace(backbone.config, **said))
    weights = weights_of(model)
    if not getattr(model, "uses_pooler", True):
        weights = {path: weight for path, weight in weights.items() if not path.startswith(format.optional)}
    head = type(model).__name__ if model is not backbone else None
    if head == "Pretrainer" and model.objective is None:
        head = "MaskedLM"  # there is nothing else in it
    if head is not None and (head not in format.heads or to == "keras_hub"):
        raise PresetError(f"The format {to!r} has no place for the head of a {head}. Save `task.backbone`.")
    _check_head(model, backbone, to)
    marker = writer.marker.format(family=family.name)
    with atomic_directory(directory, marker=marker, owns=writer.owns | {marker}, overwrite=overwrite) as target:
        tensors = itertools.chain(tensors_of(format, weights, head), more.items())
        writer.model(target, model, head, config, tensors)
        if preprocessor is not None:
            writer.tokenizer(target, backbone, preprocessor)
    if to == "tf1" and getattr(model, "labels", None):
        warnings.warn(
            "A TensorFlow 1 checkpoint has no place for the names of labels: say `labels=` when you load it.",
            stacklevel=2,
        )


def _check_head(model: Any, backbone: Any, to: str) -> None:
    """Checks that other libraries compute what the head does: they have no word for its arguments."""
    if type(model).__name__ in ("MaskedLM", "Pretrainer"):
        names = ("activation", "layer_norm_epsilon")
        told = {name: (getattr(model.head, name), getattr(backbone.config, name)) for name in names}
        if objective := getattr(model, "objective", None):
            told["objective"] = (objective, family_of(backbone).objective)
    else:
        told = {"pooling": (getattr(model, "pooling", "first"), "first")}
        if to != "hf":
            told["multi_label"] = (getattr(model, "multi_label", False), False)
    for name, (found, expected) in told.items():
        if found != expected:
            raise PresetError(
                f"The format {to!r} cannot say `{name}={found!r}` of a {type(model).__name__}: it means {expected!r} "
                "there. Save `task.backbone`."
            )


def _config(format: Layout, config: Any) -> dict[str, Any]:
    """The file's configuration, proven to say all that ours does."""
    ours = dataclasses.asdict(config)
    stored = format.config.write(ours, format.name)
    untold = {name: ours[name] for name in format.config.untold}
    again = dataclasses.asdict(type(config)(**{**format.config.read(stored, "the file"), **untold}))
    if lost := sorted(name for name, value in ours.items() if again[name] != value):
        raise PresetError(
            f"The format {format.name!r} cannot say `{lost[0]}={ours[lost[0]]!r}`: it means {again[lost[0]]!r} there."
        )
    return stored


def _write_hugging_face(target: Path, model: Any, head: str | None, config: dict[str, Any], tensors: Any) -> None:
    family = family_of(getattr(model, "backbone", model))
    kind = next((theirs for theirs, ours in TASKS.items() if ours == head), None)
    if head == "TextRegressor":
        kind = "SequenceClassification"
        config |= {"problem_type": "regression", "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    elif getattr(model, "multi_label", False):
        config["problem_type"] = "multi_label_classification"
    if head is not None:
        tensors = ((with_base(name, family.name), array) for name, array in tensors)
    prefix = family.backbone.__name__.removesuffix("Backbone")
    config = {
        "architectures": [f"{prefix}For{kind}" if kind else f"{prefix}Model"],
        "model_type": family.name,
        **config,
    }
    if names := getattr(model, "class_names", None):
        names = list(model.labels or [f"LABEL_{i}" for i in range(len(names))])
        config["id2label"] = {str(i): name for i, name in enumerate(names)}
        config["label2id"] = {name: i for i, name in enumerate(names)}
    write_json(target, CONFIG_FILE, config)
    write_safetensors(target / "model.safetensors", tensors)


def _write_google(target: Path, model: Any, head: str | None, config: dict[str, Any], tensors: Any) -> None:
    name = family_of(getattr(model, "backbone", model)).name
    write_json(target, f"{name}_config.json", config)
    write_tensorflow_checkpoint(target / f"{name}_model.ckpt", tensors)


def _write_bilm(target: Path, model: Any, head: str | None, config: dict[str, Any], tensors: Any) -> None:
    nested: dict[str, Any] = {}
    for key, value in config.items():
        *path, last = key.split(".")
        inside = nested
        for part in path:
            inside = inside.setdefault(part, {})
        inside[last] = value
    write_json(target, "options.json", nested)
    write_hdf5(target / "weights.hdf5", tensors)


def _write_keras_hub(target: Path, model: Any, head: str | None, config: dict[str, Any], tensors: Any) -> None:
    name = family_of(model).backbone.__name__
    write_json(target, CONFIG_FILE, {"class_name": name, "config": config, "registered_name": f"keras_hub>{name}"})
    write_json(target, METADATA_FILE, {"parameter_count": model.count_params(), "keras_version": keras.__version__})
    write_hdf5(target / MODEL_WEIGHTS_FILE, with_heads(tensors, config["num_heads"]))


def _write_tokenizer(target: Path, backbone: Any, preprocessor: Any) -> None:
    write_tokenizer(preprocessor.tokenizer, target, preprocessor.sequence_length)


def _write_keras_hub_tokenizer(target: Path, backbone: Any, preprocessor: Any) -> None:
    name = family_of(backbone).backbone.__name__.replace("Backbone", "Tokenizer")
    write_keras_hub_tokenizer(preprocessor.tokenizer, target, name)


def _write_no_tokenizer(target: Path, backbone: Any, preprocessor: Any) -> None:
    pass


@dataclasses.dataclass(frozen=True)
class _Writer:
    """How a format is written.

    Attributes:
        kind: its key in `Family.checkpoints`.
        marker: the file that tells it.
        owns: the other files of a directory in the format.
        model: writes model and configuration.
        tokenizer: writes the tokenizer, if there is one.
    """

    kind: str
    marker: str
    owns: set[str]
    model: Callable[[Path, Any, str | None, dict[str, Any], Any], None]
    tokenizer: Callable[[Path, Any, Any], None]


_GOOGLE_FILES = {f"{name}_model.ckpt.{end}" for name in ("bert", "albert") for end in ("index", "data-00000-of-00001")}
_WRITERS = {
    "hf": _Writer("hf", CONFIG_FILE, {"model.safetensors", *_TOKENIZER_FILES}, _write_hugging_face, _write_tokenizer),
    "tf1": _Writer(
        "google",
        "{family}_config.json",
        {"checkpoint", *_GOOGLE_FILES, *_TOKENIZER_FILES},
        _write_google,
        _write_tokenizer,
    ),
    "keras_hub": _Writer("keras_hub", CONFIG_FILE, set(PRESET_ENTRIES), _write_keras_hub, _write_keras_hub_tokenizer),
    "bilm": _Writer("bilm", "options.json", {"weights.hdf5"}, _write_bilm, _write_no_tokenizer),
}
