"""Heads in KerasHub's presets: `task.json` beside `task.weights.h5`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lmzoo.checkpoints.config_table import ConfigTable
from lmzoo.checkpoints.engine import Row, Table
from lmzoo.checkpoints.formats.tensor_file import RenamedTensors, TensorFile
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import TASK_FILE, read_json

_HEAD = "head/"  # before the names of the head's tensors; both files number their layers alike
# By the kind of a head, what follows the family in the name of its class.
_CLASSES = {"classification": "TextClassifier", "masked_lm": "MaskedLM"}
_IGNORED = ("backbone", "dtype", "name", "preprocessor", "trainable")
# Softmax is what `classify` takes of the logits.
_CLASSIFIER = ConfigTable(
    keys={"num_classes": "num_classes", "dropout": "dropout", "hidden_dim": "hidden_dim"},
    defaults={"hidden_dim": None},
    only={"activation": (None, "linear", "softmax")},
    ignored=_IGNORED,
)
_MASKED_LM = ConfigTable(keys={}, ignored=_IGNORED)
_EPSILON = 1e-5  # of the layer in the head of masked tokens, whatever the backbone's is

HEAD_IGNORED = {rf"{_HEAD}optimizer/.*": "the optimizer's state"}


def head_tables(dense: bool) -> dict[str, Table]:
    """The tables of a family's heads.

    Args:
        dense: whether the classification head has a layer before its last.
    """
    classifier = {"dense": "dense", "logits": "dense_1"} if dense else {"logits": "dense"}
    inside = "masked_lm_head/_intermediate"
    return {
        "classification": {
            f"classifier/{ours}/{kind}": Row(f"{_HEAD}layers/{theirs}/vars/{number}")
            for ours, theirs in classifier.items()
            for number, kind in enumerate(("kernel", "bias"))
        },
        "masked_lm": {
            **{
                f"masked_lm_head/{layer}/{kind}": Row(f"{_HEAD}layers/{inside}_{layer}/vars/{number}")
                for layer, kinds in {"dense": ("kernel", "bias"), "layer_norm": ("gamma", "beta")}.items()
                for number, kind in enumerate(kinds)
            },
            "masked_lm_head/output_bias": Row(f"{_HEAD}layers/masked_lm_head/vars/0"),
        },
    }


def head_in(directory: Path, prefix: str, activation: str, hidden_dim: int) -> tuple[str | None, dict[str, Any]]:
    """The kind of head in a preset, and its task's constructor's arguments; (None, {}) for none that we know.

    Args:
        directory: the preset's.
        prefix: what the names of its backbone's family's classes begin with.
        activation: what the family's head of masked tokens computes.
        hidden_dim: the backbone's width.

    Raises:
        PresetError: for a head that computes what ours do not.
    """
    file = directory / TASK_FILE
    stored = read_json(directory, TASK_FILE) if file.is_file() else {}
    name = stored.get("registered_name")
    kind = next((kind for kind, known in _CLASSES.items() if name == f"keras_hub>{prefix}{known}"), None)
    if kind is None:
        return None, {}
    if not isinstance(config := stored.get("config"), dict):
        raise PresetError(f"{file} lacks the `config` of {name}.")
    if kind == "masked_lm":
        _MASKED_LM.read(config, file)
        return kind, {"activation": activation, "layer_norm_epsilon": _EPSILON}
    arguments = _CLASSIFIER.read(config, file)
    width = arguments.pop("hidden_dim")
    if width not in (None, hidden_dim):
        raise PresetError(f"{file}: `hidden_dim` must be the backbone's, {hidden_dim}, got {width!r:.60}.")
    return kind, arguments


def with_head(backbone: TensorFile, head: TensorFile) -> TensorFile:
    """The tensors of a backbone's file, and those of its head's."""
    places = {name: (backbone, name) for name in backbone.names()}
    places |= {_HEAD + name: (head, name) for name in head.names()}
    return RenamedTensors(backbone.path.parent, places)
