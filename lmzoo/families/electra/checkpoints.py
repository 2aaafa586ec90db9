"""Layouts of ELECTRA checkpoints from Google, Hugging Face and KerasHub.

Published models are discriminators, whose head detects replaced tokens, and generators, which are masked language
models.
"""

import re
from dataclasses import replace

import numpy as np

from lmzoo.checkpoints.config_table import JsonObject
from lmzoo.checkpoints.engine import Row, tensorflow_modules, torch_modules
from lmzoo.checkpoints.family_names import Names
from lmzoo.checkpoints.formats.tensor_file import TensorFile
from lmzoo.checkpoints.google import TRAINING_STATE, GoogleLayout, google_config
from lmzoo.checkpoints.hugging_face.checkpoint import (
    BLOCK,
    EMBEDDINGS,
    ENCODER_DEFAULTS,
    ENCODER_KEYS,
    WORD_TABLE,
    HuggingFaceLayout,
    add_prefixes,
    config_table,
    hugging_face_layout,
)
from lmzoo.checkpoints.keras_hub.checkpoint import SEPARATE_EMBEDDINGS, keras_hub_layout
from lmzoo.families.electra.backbone import ElectraConfig

_GENERATOR = "replaced_tokens/generator"
# These keys matter only for the multiple-choice head, which computes a summary vector.
_SUMMARY = {"summary_activation": ("gelu",), "summary_type": ("first",), "summary_use_proj": (True,)}

HUGGING_FACE = hugging_face_layout(
    names=Names("Electra", "electra", "electra", {"replaced_tokens": "ElectraForPreTraining"}),
    head_activation="gelu",
    config=config_table(
        {**ENCODER_KEYS, "embedding_size": "embedding_dim"},
        defaults={**ENCODER_DEFAULTS, "embedding_size": 128},
        ignored=("generator_size", "summary_last_dropout", *_SUMMARY),
    ),
    head_values={"multiple_choice": _SUMMARY},
    parts=(*HuggingFaceLayout.parts, "embeddings_project"),
    backbone=torch_modules(
        {
            **EMBEDDINGS,
            "embedding_projection": "embeddings_project",
            **add_prefixes("block_{i}", "encoder.layer.{i}", BLOCK),
        }
    ),
    masked_lm=("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head.bias"),
    classifier={"classifier/dense": "classifier.dense", "classifier/logits": "classifier.out_proj"},
    choice={"classifier/dense": "sequence_summary.summary", "classifier/logits": "classifier"},
    copies={"generator_lm_head.weight": WORD_TABLE},
    detector=("discriminator_predictions.dense", "discriminator_predictions.dense_prediction"),
)

_GOOGLE_MODULES = {
    "embedding_projection": "embeddings_project",
    **{f"block_{{i}}/{path}": f"encoder/layer_{{i}}/{module.replace('.', '/')}" for path, module in BLOCK.items()},
}


def _infer_config(tensors: TensorFile) -> JsonObject | None:
    """Infer the configuration from the shapes of tensors, or return None if they are not ELECTRA's.

    ELECTRA's code does not save the configuration. The number of heads is the width divided by 64, since ELECTRA's
    attention heads always have 64 dimensions.
    """
    shapes = {name: tensors.shape(name) for name in tensors.names() if name.startswith("electra/")}
    if "electra/embeddings/word_embeddings" not in shapes:
        return None
    token_table, position_table, segment_table = (
        shapes[f"electra/embeddings/{name}_embeddings"] for name in ("word", "position", "token_type")
    )
    width, intermediate_width = shapes["electra/encoder/layer_0/intermediate/dense/kernel"]
    return {
        "vocab_size": token_table[0],
        "embedding_size": token_table[1],
        "max_position_embeddings": position_table[0],
        "type_vocab_size": segment_table[0],
        "hidden_size": width,
        "num_attention_heads": max(1, width // 64),
        "num_hidden_layers": sum(bool(re.fullmatch(r".*/layer_\d+/intermediate/dense/bias", name)) for name in shapes),
        "intermediate_size": intermediate_width,
    }


GOOGLE = GoogleLayout(
    name="TensorFlow checkpoint of ELECTRA's code",
    config=google_config("gelu", {"embedding_size": "embedding_dim"}),
    backbone=tensorflow_modules(
        {
            **{path: f"electra/{module.replace('.', '/')}" for path, module in EMBEDDINGS.items()},
            **{path: f"electra/{module}" for path, module in _GOOGLE_MODULES.items()},
        }
    ),
    heads={
        "replaced_tokens": {
            **tensorflow_modules(
                {
                    "replaced_tokens/head/dense": "discriminator_predictions/dense",
                    "replaced_tokens/head/logits": "discriminator_predictions/dense_1",
                    **{f"{_GENERATOR}/{path}": f"generator/{module}" for path, module in _GOOGLE_MODULES.items()},
                    f"{_GENERATOR}/head/dense": "generator_predictions/dense",
                    f"{_GENERATOR}/head/layer_norm": "generator_predictions/LayerNorm",
                }
            ),
            f"{_GENERATOR}/head/output_bias": Row("generator_predictions/output_bias"),
        }
    },
    signs={"replaced_tokens": {"discriminator_predictions/dense_1/bias"}},
    ignored={**TRAINING_STATE, "temperature": "not a weight"},
    sizes=_infer_config,
)


def _make_zero_pooler(config: ElectraConfig) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    """Return an empty dict of settings, and zeros as the weights of KerasHub's pooler, which lmzoo's model lacks."""
    width = config.hidden_dim
    prefix = "layers/dense/vars" if config.embedding_dim == width else "layers/dense_1/vars"
    return {}, {f"{prefix}/0": np.zeros((width, width), "float32"), f"{prefix}/1": np.zeros(width, "float32")}


_KERAS_HUB = keras_hub_layout(
    {**SEPARATE_EMBEDDINGS, "embedding_projection": "dense"},
    keys=("num_segments", "embedding_dim"),
    constants={"activation": "gelu_tanh"},
)
_KEYS = {{"vocabulary_size": "vocab_size"}.get(key, key): name for key, name in _KERAS_HUB.config.keys.items()}
KERAS_HUB = replace(
    _KERAS_HUB,
    config=replace(_KERAS_HUB.config, keys=_KEYS),
    ignored={**_KERAS_HUB.ignored, r"layers/dense(_1)?/vars/\d": "a pooler, which no published head reads"},
    complete=_make_zero_pooler,
)
