"""TensorFlow checkpoints of Google's BERT and ALBERT code: `*_config.json` beside `*.ckpt` files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmzoo.checkpoints.config import ConfigTable
from lmzoo.checkpoints.engine import TRANSPOSED, Format, Row, Table, tensorflow_modules
from lmzoo.checkpoints.hugging_face import ENCODER_KEYS
from lmzoo.checkpoints.model_garden import ModelGardenCheckpoint
from lmzoo.checkpoints.tensorflow_checkpoint import TensorFlowCheckpoint
from lmzoo.checkpoints.tensors import TensorFile
from lmzoo.presets.store import PresetError

CLASSIFIER = {
    "classifier/logits/kernel": Row("output_weights", TRANSPOSED),
    "classifier/logits/bias": Row("output_bias"),
}
# The tensor that only a model with this head has, and our task.
_HEADS = {
    "output_weights": "TextClassifier",
    "cls/squad/output_weights": "QuestionAnswerer",
    "cls/predictions/output_bias": "MaskedLM",
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


def google_format(config: ConfigTable, modules: Mapping[str, str]) -> Format:
    """The format of a family; `modules` maps paths of the backbone's layers to scopes."""
    transform = "cls/predictions/transform"
    masked_lm: Table = {
        **tensorflow_modules(
            {"masked_lm_head/dense": f"{transform}/dense", "masked_lm_head/layer_norm": f"{transform}/LayerNorm"}
        ),
        "masked_lm_head/output_bias": Row("cls/predictions/output_bias"),
    }
    return Format(
        config=config,
        backbone=tensorflow_modules(modules),
        heads={"MaskedLM": masked_lm, "TextClassifier": CLASSIFIER},
        aliases={r"^module/": ""},
        optional=("pooler/",),
        ignored={
            r".*/(adam|lamb)_[mv]|(.*/)?\.?(optimizer|OPTIMIZER_SLOT)/.*": "the optimizer's state",
            r"global_step|save_counter/.*|_CHECKPOINTABLE_OBJECT_GRAPH": "not a weight",
            r"cls/seq_relationship/.*": "the head of next-sentence or sentence-order prediction",
            r"cls/squad/.*": "the head of a QuestionAnswerer",
        },
    )


def checkpoint_prefix(directory: Path) -> Path:
    """The checkpoint in a directory, without `.index`.

    Raises:
        PresetError: if there is none, or there are several.
    """
    found = sorted(directory.glob("*.index"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise PresetError(f"{directory} must hold one checkpoint (a file *.index); found {names}.")
    return found[0].with_suffix("")


def open_tensors(directory: Path) -> TensorFile:
    """The weights."""
    checkpoint = TensorFlowCheckpoint(checkpoint_prefix(directory))
    return ModelGardenCheckpoint(checkpoint) if ModelGardenCheckpoint.is_one(checkpoint) else checkpoint


def head_of(tensors: TensorFile) -> tuple[str | None, dict[str, Any]]:
    """Our task for the head in a checkpoint, and its constructor's arguments; (None, {}) for none."""
    names = {re.sub(r"^module/", "", name): name for name in tensors.names()}
    task = next((task for name, task in _HEADS.items() if name in names), None)
    if task == "TextClassifier":
        return task, {"num_classes": tensors.shape(names["output_weights"])[0]}
    return task, {}
