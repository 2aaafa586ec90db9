"""TensorFlow checkpoints written by Google's code for BERT and its descendants: `*_config.json` and `*.ckpt` files."""

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
from lmzoo.registry.family import Family, find_families_by_format

_INDEX_FILES = "*.index"
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
# Kind of head -> tensors that identify it. A classifier with one class is a regressor.
_SIGNS: dict[str, set[str]] = {
    "classification": {"output_weights"},
    "question_answering": {"cls/squad/output_weights"},
    "pretraining": {"cls/predictions/output_bias", "cls/seq_relationship/output_bias"},
    "masked_lm": {"cls/predictions/output_bias"},
}
# Training state in TensorFlow checkpoints: optimizer slots of each variable, and variables of the run.
TRAINING_STATE = {
    r".*/(adam|lamb)_[mv]|.*/(Adam|AdamW|AdamWeightDecayOptimizer|LAMB|LAMBOptimizer)(_\d+)?": "the optimizer's state",
    r".*/(Adagrad|Momentum|RMSProp(_\d+)?|ExponentialMovingAverage|Adafactor/v[cr]?)": "the optimizer's state",
    r"(.*/)?(beta[12]_power(_\d+)?|(current_)?loss_scale|(num_)?good_steps|learning_rate)": "the optimizer's state",
    r"(.*/)?\.?(optimizer|OPTIMIZER_SLOT)/.*": "the optimizer's state",
    r"global_step|save_counter/.*|_CHECKPOINTABLE_OBJECT_GRAPH": "not a weight",
}


@dataclass(frozen=True)
class GoogleLayout(Layout):
    """A `Layout` for TensorFlow checkpoints written by Google's code.

    Attributes:
        signs: Dict from kind of head to the names of the tensors that identify the head.
        stacked: Names of tensors that stack the weights of all layers. In `backbone`, layer 3 of `name` is `name/3`.
        sizes: Function from the tensors to the content of a configuration file, for families without such a file. It
            returns None for tensors of another family.
    """

    signs: Mapping[str, Set[str]] = field(default_factory=dict)
    stacked: tuple[str, ...] = ()
    sizes: Callable[[TensorFile], JsonObject | None] = lambda tensors: None

    def read_head(self, tensors: TensorFile) -> StoredHead:
        """Return the stored head, identified by the names and shapes of the tensors."""
        names = canonical_names(self, tensors)
        kind = next((kind for kind, signs in self.signs.items() if names.keys() >= signs), None)
        arguments = {}
        if kind == "classification":
            arguments["num_classes"] = tensors.shape(names["output_weights"])[0]
            if arguments["num_classes"] <= 1:
                return StoredHead("regression")
        if generator_row := self.heads.get(kind or "", {}).get(_GENERATOR):
            arguments["generator_width"] = tensors.shape(names[generator_row.name])[0]
        return StoredHead(kind, lambda kind: dict(arguments))


def google_files(family: Family) -> tuple[str, str]:
    """Return the names that Google's code uses for a family: the configuration file and the checkpoint prefix."""
    return f"{family.name}_config.json", f"{family.name}_model.ckpt"


def google_config(gelu: str, keys: Mapping[str, str] | None = None, **fields: Any) -> ConfigTable:
    """Return the table of a family's `*_config.json`.

    Args:
        gelu: Activation that the family's code computes for "gelu": "gelu" or "gelu_tanh".
        keys: Keys of the family in addition to the keys of every encoder, as in `ConfigTable.keys`.
        **fields: Other fields of `ConfigTable`.
    """
    encoder_keys = {key: value for key, value in ENCODER_KEYS.items() if key != "layer_norm_eps"}
    return ConfigTable(
        keys={**encoder_keys, **(keys or {})},
        defaults={"hidden_act": "gelu", "hidden_dropout_prob": 0.1, "initializer_range": 0.02},
        values={"activation": {"gelu": gelu, "relu": "relu", "tanh": "tanh"}},
        training={"attention_probs_dropout_prob": "dropout"},
        allowed={"ln_type": ("postln",)},
        **fields,
    )


def google_layout(config: ConfigTable, modules: Mapping[str, str]) -> GoogleLayout:
    """Return the layout of a family in TensorFlow checkpoints written by Google's code.

    Args:
        config: Table of the configuration file.
        modules: Dict from the path of each backbone layer to its TensorFlow variable scope.
    """
    scope = "cls/predictions/transform"
    masked_lm: Table = {
        **tensorflow_modules(
            {"masked_lm_head/dense": f"{scope}/dense", "masked_lm_head/layer_norm": f"{scope}/LayerNorm"}
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
    """Open the TensorFlow checkpoint in a directory, or return None if it holds none of a supported family.

    The configuration file, such as `bert_config.json`, determines the family; without such a file, the tensors do. If
    the weights are missing, the checkpoint raises an error when they are opened.

    Raises:
        PresetError: If there is a configuration file but the checkpoint is damaged or not the only one, or if the model
            is not supported.
    """
    directory = files.directory
    families_by_file = {directory / google_files(family)[0]: family for family in find_families_by_format("google")}
    for file, family in families_by_file.items():
        if file.is_file():
            config = files.read(file.name)
            has_weights = any(directory.glob(_INDEX_FILES))
            return _read_checkpoint(files, family, file, config, _open_tensors(directory) if has_weights else None)
    try:
        tensors = _open_tensors(directory)
    except PresetError:  # no checkpoint, or other files with such names
        return None
    for file, family in families_by_file.items():
        if (inferred_config := family.checkpoints["google"].sizes(tensors)) is not None:
            return _read_checkpoint(files, family, file, inferred_config, tensors)
    return None


def _read_checkpoint(
    files: JsonFiles, family: Family, file: Path, config: JsonObject, tensors: TensorFile | None
) -> Checkpoint:
    """Read a checkpoint as a model of a family.

    Args:
        files: JSON files of the directory.
        family: Family of the model.
        file: Path of the configuration file, which need not exist, for messages.
        config: Content of the configuration file, or its replacement from `GoogleLayout.sizes`.
        tensors: Tensors with their names in the file, or None if there are no weights.
    """
    arguments = read_arguments(family, "google", config, file, ignore_unknown=True)
    layout: GoogleLayout = family.checkpoints["google"]
    unknown_keys = layout.config.unknown(config)
    if tensors is None:
        weights = LazyTensors(functools.partial(_open_tensors, files.directory))
        return Checkpoint(files, "google", family, arguments, weights, StoredHead, file, unknown_keys)
    if is_model_garden(tensors):
        tensors = model_garden_tensors(tensors, arguments["num_heads"])
        if arguments["activation"] == "gelu":
            arguments["activation"] = "gelu_tanh"  # the Model Garden's code computes the approximation
    unstacked_tensors = unstack(tensors, layout.stacked)
    weights = LazyTensors(lambda: unstacked_tensors)
    read_head = functools.partial(layout.read_head, unstacked_tensors)
    return Checkpoint(files, "google", family, arguments, weights, read_head, file, unknown_keys)


def _open_tensors(directory: Path) -> TensorFile:
    """Open the only checkpoint in a directory.

    Raises:
        PresetError: If there is no checkpoint, several, or a damaged one.
    """
    index_files = sorted(directory.glob(_INDEX_FILES))
    if len(index_files) != 1:
        names = ", ".join(path.name for path in index_files) or "none"
        raise PresetError(f"{directory} must hold one checkpoint (a file {_INDEX_FILES}); found {names}.")
    return TensorFlowCheckpoint(index_files[0].with_suffix(""))
