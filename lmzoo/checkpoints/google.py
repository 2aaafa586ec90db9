"""TensorFlow checkpoints of Google's code for BERT and its descendants: `*_config.json` and `*.ckpt` files."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmzoo.checkpoints.checkpoint import Checkpoint, StoredHead, read_arguments
from lmzoo.checkpoints.config_table import ConfigTable, JsonObject
from lmzoo.checkpoints.engine import TRANSPOSED, Layout, Row, Table, canonical_names, tensorflow_modules
from lmzoo.checkpoints.formats.reshaped import unstack
from lmzoo.checkpoints.formats.tensor_file import LazyTensors, TensorFile
from lmzoo.checkpoints.formats.tensorflow import TensorFlowCheckpoint
from lmzoo.checkpoints.hugging_face.checkpoint import ENCODER_KEYS
from lmzoo.checkpoints.model_garden import is_model_garden, model_garden_tensors
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import JsonFiles
from lmzoo.registry.family import Family, families_with

_GENERATOR = "replaced_tokens/generator/head/dense/kernel"
_CLASSIFIER = {
    "classifier/logits/kernel": Row("output_weights", TRANSPOSED),
    "classifier/logits/bias": Row("output_bias"),
}
_QUESTION_ANSWERER = {
    "span_head/logits/kernel": Row("cls/squad/output_weights", TRANSPOSED),
    "span_head/logits/bias": Row("cls/squad/output_bias"),
}
_SENTENCE = {
    "sentence_head/kernel": Row("cls/seq_relationship/output_weights", TRANSPOSED),
    "sentence_head/bias": Row("cls/seq_relationship/output_bias"),
}
# A classifier of one class is a regressor.
_SIGNS: dict[str, set[str]] = {
    "classification": {"output_weights"},
    "question_answering": {"cls/squad/output_weights"},
    "pretraining": {"cls/predictions/output_bias", "cls/seq_relationship/output_bias"},
    "masked_lm": {"cls/predictions/output_bias"},
}
# What training leaves in a checkpoint of TensorFlow 1: slots of each variable, and variables of the run itself.
TRAINING_STATE = {
    r".*/(adam|lamb)_[mv]|.*/(Adam|AdamW|AdamWeightDecayOptimizer|LAMB|LAMBOptimizer)(_\d+)?": "the optimizer's state",
    r"(.*/)?(beta[12]_power(_\d+)?|(current_)?loss_scale|good_steps)": "the optimizer's state",
    r"(.*/)?\.?(optimizer|OPTIMIZER_SLOT)/.*": "the optimizer's state",
    r"global_step|save_counter/.*|_CHECKPOINTABLE_OBJECT_GRAPH": "not a weight",
}


@dataclass(frozen=True)
class GoogleLayout(Layout):
    """A `Layout`, and what files of Google's code show about a model.

    Attributes:
        signs: Kind of head -> tensors that only a model with such a head has.
        stacked: Names of tensors that hold the weights of all layers; in `backbone` they are followed by the number of
            the layer, as in `name/3`.
        sizes: From tensors to the content of a configuration file, for code that writes none; None for tensors of
            another family.
    """

    signs: Mapping[str, Set[str]] = field(default_factory=dict)
    stacked: tuple[str, ...] = ()
    sizes: Callable[[TensorFile], JsonObject | None] = lambda tensors: None

    def head_of(self, tensors: TensorFile) -> StoredHead:
        """Return the head whose tensors a file holds, if any."""
        names = canonical_names(self, tensors)
        kind = next((kind for kind, signs in self.signs.items() if names.keys() >= signs), None)
        sizes = {}
        if kind == "classification":
            sizes["num_classes"] = tensors.shape(names["output_weights"])[0]
            if sizes["num_classes"] <= 1:
                return StoredHead("regression")
        if generator := self.heads.get(kind or "", {}).get(_GENERATOR):
            sizes["generator_width"] = tensors.shape(generator.name)[0]
        return StoredHead(kind, lambda kind: dict(sizes))


def google_files(family: Family) -> tuple[str, str]:
    """Return the name of the configuration file, and the prefix of the checkpoint's files, as they are written."""
    return f"{family.name}_config.json", f"{family.name}_model.ckpt"


def google_config(gelu: str, keys: Mapping[str, str] | None = None, **fields: Any) -> ConfigTable:
    """Return the table of a family's `*_config.json`.

    `gelu` is our name of the function that the family's code computes for "gelu", and `keys` are the family's own, in
    addition to those of every encoder. `fields` are other fields of `ConfigTable`.
    """
    encoder = {key: value for key, value in ENCODER_KEYS.items() if key != "layer_norm_eps"}
    return ConfigTable(
        keys={**encoder, **(keys or {})},
        defaults={"hidden_act": "gelu", "hidden_dropout_prob": 0.1, "initializer_range": 0.02},
        values={"activation": {"gelu": gelu, "relu": "relu", "tanh": "tanh"}},
        training={"attention_probs_dropout_prob": "dropout"},
        allowed={"ln_type": ("postln",)},
        **fields,
    )


def google_layout(config: ConfigTable, modules: Mapping[str, str]) -> GoogleLayout:
    """Return the layout of a family; `modules` maps paths of the backbone's layers to scopes."""
    transform = "cls/predictions/transform"
    masked_lm: Table = {
        **tensorflow_modules(
            {"masked_lm_head/dense": f"{transform}/dense", "masked_lm_head/layer_norm": f"{transform}/LayerNorm"}
        ),
        "masked_lm_head/output_bias": Row("cls/predictions/output_bias"),
    }
    return GoogleLayout(
        name="TensorFlow checkpoint of Google's code",
        config=config,
        backbone=tensorflow_modules(modules),
        heads={
            "masked_lm": masked_lm,
            "pretraining": {**masked_lm, **_SENTENCE},
            "classification": _CLASSIFIER,
            "regression": _CLASSIFIER,
            "question_answering": _QUESTION_ANSWERER,
        },
        signs=_SIGNS,
        aliases={r"^module/": ""},
        optional=("pooler/",),
        ignored={
            **TRAINING_STATE,
            r"cls/seq_relationship/.*": "the head of next-sentence or sentence-order prediction",
        },
    )


def find_google(files: JsonFiles) -> Checkpoint | None:
    """Return the checkpoint in a directory with a configuration such as `bert_config.json`, or None without one.

    Raises:
        PresetError: If there are several checkpoints, or it is of a variant that our models do not support.
    """
    directory = files.directory
    families = {directory / google_files(family)[0]: family for family in families_with("google")}
    for file, family in families.items():
        if file.is_file():
            stored = files.read(file.name)
            return _read_as(files, family, file, stored, TensorFlowCheckpoint(_prefix(directory)))
    try:
        tensors = TensorFlowCheckpoint(_prefix(directory))
    except PresetError:  # there is none, or something else has such a name
        return None
    for file, family in families.items():
        if (sizes := family.checkpoints["google"].sizes(tensors)) is not None:
            return _read_as(files, family, file, sizes, tensors)
    return None


def _read_as(files: JsonFiles, family: Family, file: Path, stored: JsonObject, tensors: TensorFile) -> Checkpoint:
    """Return the checkpoint as one of a family.

    Args:
        files: The JSON files of its directory.
        family: The family.
        file: The configuration file, which may be missing, for messages.
        stored: Its content, or what stands for it.
        tensors: The tensors, as the file names them.
    """
    arguments = read_arguments(family, "google", stored, file, ignore_unknown=True)
    if is_model_garden(tensors):
        tensors = model_garden_tensors(tensors, arguments["num_heads"])
        if arguments["activation"] == "gelu":
            arguments["activation"] = "gelu_tanh"  # its code computes the approximation
    layout: GoogleLayout = family.checkpoints["google"]
    tensors = unstack(tensors, layout.stacked)
    read_head = functools.partial(layout.head_of, tensors)
    unknown = layout.config.unknown(stored)
    return Checkpoint(files, "google", family, arguments, LazyTensors(lambda: tensors), read_head, file, unknown)


def _prefix(directory: Path) -> Path:
    """Return the prefix of the files of the checkpoint in a directory."""
    found = sorted(directory.glob("*.index"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise PresetError(f"{directory} must hold one checkpoint (a file *.index); found {names}.")
    return found[0].with_suffix("")
