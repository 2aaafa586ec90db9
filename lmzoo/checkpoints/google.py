"""TensorFlow checkpoints of Google's BERT and ALBERT code: `*_config.json` beside `*.ckpt` files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmzoo.checkpoints.checkpoint import Checkpoint, read_arguments
from lmzoo.checkpoints.config_table import ConfigTable
from lmzoo.checkpoints.engine import TRANSPOSED, Layout, Row, Table, tensorflow_modules
from lmzoo.checkpoints.formats.tensor_file import TensorFile
from lmzoo.checkpoints.formats.tensorflow import TensorFlowCheckpoint
from lmzoo.checkpoints.hugging_face import ENCODER_KEYS
from lmzoo.checkpoints.model_garden import is_model_garden, model_garden_tensors
from lmzoo.errors import PresetError
from lmzoo.family import families
from lmzoo.files.preset_files import read_json

CLASSIFIER = {
    "classifier/logits/kernel": Row("output_weights", TRANSPOSED),
    "classifier/logits/bias": Row("output_bias"),
}
QUESTION_ANSWERER = {
    "span_head/logits/kernel": Row("cls/squad/output_weights", TRANSPOSED),
    "span_head/logits/bias": Row("cls/squad/output_bias"),
}
_FAMILIES = {"bert_config.json": "bert", "albert_config.json": "albert"}
_SENTENCE = {
    "sentence_head/kernel": Row("cls/seq_relationship/output_weights", TRANSPOSED),
    "sentence_head/bias": Row("cls/seq_relationship/output_bias"),
}
# The tensors that only a model with this head has, and our task.
_HEADS = {
    ("output_weights",): "TextClassifier",
    ("cls/squad/output_weights",): "QuestionAnswerer",
    ("cls/predictions/output_bias", "cls/seq_relationship/output_bias"): "Pretrainer",
    ("cls/predictions/output_bias",): "MaskedLM",
}


def google_config(
    gelu: str,
    keys: Mapping[str, str] | None = None,
    ignored: tuple[str, ...] = (),
    untold: tuple[str, ...] = (),
    **constants: Any,
) -> ConfigTable:
    """The table of a `*_config.json`.

    Args:
        gelu: our name of the function that the family's code computes for "gelu".
        keys: keys beside those of every encoder.
        ignored: keys that change nothing that the model computes.
        untold: see `ConfigTable`.
        **constants: our arguments that the file does not name.
    """
    encoder = {key: value for key, value in ENCODER_KEYS.items() if key != "layer_norm_eps"}
    return ConfigTable(
        keys={**encoder, **(keys or {})},
        defaults={"hidden_act": "gelu", "hidden_dropout_prob": 0.1, "initializer_range": 0.02},
        values={"activation": {"gelu": gelu, "relu": "relu", "tanh": "tanh"}},
        training={"attention_probs_dropout_prob": "dropout"},
        constants=constants,
        ignored=ignored,
        untold=untold,
    )


def google_format(config: ConfigTable, modules: Mapping[str, str]) -> Layout:
    """The format of a family; `modules` maps paths of the backbone's layers to scopes."""
    transform = "cls/predictions/transform"
    masked_lm: Table = {
        **tensorflow_modules(
            {"masked_lm_head/dense": f"{transform}/dense", "masked_lm_head/layer_norm": f"{transform}/LayerNorm"}
        ),
        "masked_lm_head/output_bias": Row("cls/predictions/output_bias"),
    }
    return Layout(
        name="TensorFlow checkpoint of Google's code",
        config=config,
        backbone=tensorflow_modules(modules),
        heads={
            "MaskedLM": masked_lm,
            "Pretrainer": {**masked_lm, **_SENTENCE},
            "TextClassifier": CLASSIFIER,
            "TextRegressor": CLASSIFIER,
            "QuestionAnswerer": QUESTION_ANSWERER,
        },
        aliases={r"^module/": ""},
        optional=("pooler/",),
        ignored={
            r".*/(adam|lamb)_[mv]|(.*/)?\.?(optimizer|OPTIMIZER_SLOT)/.*": "the optimizer's state",
            r"global_step|save_counter/.*|_CHECKPOINTABLE_OBJECT_GRAPH": "not a weight",
            r"cls/seq_relationship/.*": "the head of next-sentence or sentence-order prediction",
        },
    )


def find_google(directory: Path) -> Checkpoint | None:
    """The checkpoint in a directory with `bert_config.json` or `albert_config.json`; None if there is none.

    Raises:
        PresetError: if there are several checkpoints, or it is of a variant that our models cannot follow.
    """
    file = next((directory / name for name in _FAMILIES if (directory / name).is_file()), None)
    if file is None:
        return None
    family = families()[_FAMILIES[file.name]]
    arguments = read_arguments(family, "google", read_json(directory, file.name), file)
    tensors: TensorFile = TensorFlowCheckpoint(_prefix(directory))
    if is_model_garden(tensors):
        tensors = model_garden_tensors(tensors, arguments["num_heads"])
        if arguments["activation"] == "gelu":
            arguments["activation"] = "gelu_tanh"  # its code computes the approximation
    return Checkpoint(directory, "google", family, arguments, lambda: tensors, *_head(tensors))


def _prefix(directory: Path) -> Path:
    """The checkpoint in a directory, without `.index`."""
    found = sorted(directory.glob("*.index"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise PresetError(f"{directory} must hold one checkpoint (a file *.index); found {names}.")
    return found[0].with_suffix("")


def _head(tensors: TensorFile) -> tuple[str | None, dict[str, Any]]:
    """Our task for the head in a checkpoint, and its constructor's arguments; (None, {}) for none."""
    names = {re.sub(r"^module/", "", name): name for name in tensors.names()}
    task = next((task for own, task in _HEADS.items() if names.keys() >= {*own}), None)
    if task == "TextClassifier":
        outputs = tensors.shape(names["output_weights"])[0]
        return (task, {"num_classes": outputs}) if outputs > 1 else ("TextRegressor", {})
    return task, {}
