"""ELECTRA's checkpoints: the names of its weights in the code of Hugging Face and KerasHub.

Published models are discriminators, whose head tells replaced tokens, and generators, which are masked language models.
"""

from dataclasses import replace

import numpy as np

from lmzoo.checkpoints.engine import torch_modules
from lmzoo.checkpoints.family_names import ARCHITECTURES, Names
from lmzoo.checkpoints.hugging_face.checkpoint import (
    BLOCK,
    EMBEDDINGS,
    ENCODER_DEFAULTS,
    ENCODER_KEYS,
    WORD_TABLE,
    HuggingFaceLayout,
    config_table,
    hugging_face_layout,
    under,
)
from lmzoo.checkpoints.keras_hub.checkpoint import SEPARATE_EMBEDDINGS, keras_hub_layout
from lmzoo.families.electra.backbone import ElectraConfig

HUGGING_FACE = hugging_face_layout(
    # `ElectraForPreTraining` is a discriminator.
    names=Names("Electra", "electra", "electra", {"pretraining": ARCHITECTURES["masked_lm"]}),
    config=config_table(
        {**ENCODER_KEYS, "embedding_size": "embedding_dim"},
        defaults={**ENCODER_DEFAULTS, "embedding_size": 128},
        allowed={"summary_activation": ("gelu",), "summary_type": ("first",), "summary_use_proj": (True,)},
        ignored=("generator_size", "summary_last_dropout"),
    ),
    parts=(*HuggingFaceLayout.parts, "embeddings_project"),
    backbone=torch_modules(
        {
            **EMBEDDINGS,
            "embedding_projection": "embeddings_project",
            **under("block_{i}", "encoder.layer.{i}", BLOCK),
        }
    ),
    masked_lm=("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head.bias"),
    classifier={"classifier/dense": "classifier.dense", "classifier/logits": "classifier.out_proj"},
    choice={"classifier/dense": "sequence_summary.summary", "classifier/logits": "classifier"},
    copies={"generator_lm_head.weight": WORD_TABLE},
    ignored={r"discriminator_predictions\..*": "the head that tells replaced tokens"},
)


def _with_pooler(config: ElectraConfig) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    """Add the pooler that KerasHub's model has and published ones lack: a layer of zeros."""
    width = config.hidden_dim
    place = "layers/dense/vars" if config.embedding_dim == width else "layers/dense_1/vars"
    return {}, {f"{place}/0": np.zeros((width, width), "float32"), f"{place}/1": np.zeros(width, "float32")}


_KERAS_HUB = keras_hub_layout(
    {**SEPARATE_EMBEDDINGS, "embedding_projection": "dense"},
    keys=("num_segments", "embedding_dim"),
    activation="gelu_tanh",
)
_KEYS = {{"vocabulary_size": "vocab_size"}.get(key, key): ours for key, ours in _KERAS_HUB.config.keys.items()}
KERAS_HUB = replace(
    _KERAS_HUB,
    config=replace(_KERAS_HUB.config, keys=_KEYS),
    ignored={**_KERAS_HUB.ignored, r"layers/dense(_1)?/vars/\d": "a pooler, which no published head reads"},
    complete=_with_pooler,
)
