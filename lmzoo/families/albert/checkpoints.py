"""Layouts of ALBERT checkpoints from Google, Hugging Face and KerasHub."""

from lmzoo.checkpoints.engine import torch_modules
from lmzoo.checkpoints.google import google_config, google_layout
from lmzoo.checkpoints.hugging_face.checkpoint import (
    EMBEDDINGS,
    ENCODER_DEFAULTS,
    ENCODER_KEYS,
    add_prefixes,
    config_table,
    hugging_face_layout,
)
from lmzoo.checkpoints.keras_hub.checkpoint import SEPARATE_EMBEDDINGS, keras_hub_layout

_KEYS = {
    "embedding_size": "embedding_dim",
    "num_hidden_groups": "num_groups",
    "inner_group_num": "num_inner_repetitions",
}
_UNUSED = ("down_scale_factor", "gap_size", "layers_to_keep", "net_structure_type", "num_memory_blocks")
_BLOCK = {
    "attention/query": "attention.query",
    "attention/key": "attention.key",
    "attention/value": "attention.value",
    "attention/output_dense": "attention.dense",
    "attention_layer_norm": "attention.LayerNorm",
    "intermediate_dense": "ffn",
    "output_dense": "ffn_output",
    "output_layer_norm": "full_layer_layer_norm",
}

HUGGING_FACE = hugging_face_layout(
    config=config_table(
        {**ENCODER_KEYS, **_KEYS},
        ignored=(*_UNUSED, "classifier_dropout_prob"),
        defaults={
            **ENCODER_DEFAULTS,
            "embedding_size": 128,
            "hidden_act": "gelu_new",
            "hidden_dropout_prob": 0,
            "inner_group_num": 1,
            "num_hidden_groups": 1,
        },
        constants={"embedding_projection": True},
        omitted=("unroll",),
    ),
    backbone=torch_modules(
        {
            **EMBEDDINGS,
            "embedding_projection": "encoder.embedding_hidden_mapping_in",
            **add_prefixes("encoder/group_{i}_block_{j}", "encoder.albert_layer_groups.{i}.albert_layers.{j}", _BLOCK),
            "pooler/dense": "pooler",
        }
    ),
    masked_lm=("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
    sentence="sop_classifier.classifier",
    copies={
        "predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    ignored={
        r"sop_classifier\..*": "the head of sentence-order prediction",
        r"predictions\.unused_bias": "a bias that TensorFlow's head never adds",
    },
)

_GOOGLE_GROUP = "bert/encoder/transformer/group_{i}/inner_group_{j}"
_GOOGLE_BLOCK = {
    "attention/query": "attention_1/self/query",
    "attention/key": "attention_1/self/key",
    "attention/value": "attention_1/self/value",
    "attention/output_dense": "attention_1/output/dense",
    "attention_layer_norm": "LayerNorm",
    "intermediate_dense": "ffn_1/intermediate/dense",
    "output_dense": "ffn_1/intermediate/output/dense",
    "output_layer_norm": "LayerNorm_1",
}

# Google's code has always computed the tanh approximation for "gelu".
GOOGLE = google_layout(
    google_config("gelu_tanh", _KEYS, ignored=_UNUSED, omitted=("unroll",), constants={"embedding_projection": None}),
    {
        **{path: "bert/" + module.replace(".", "/") for path, module in EMBEDDINGS.items()},
        "embedding_projection": "bert/encoder/embedding_hidden_mapping_in",
        **{
            f"encoder/group_{{i}}_block_{{j}}/{path}": f"{_GOOGLE_GROUP}/{module}"
            for path, module in _GOOGLE_BLOCK.items()
        },
        "pooler/dense": "bert/pooler/dense",
    },
)

KERAS_HUB = keras_hub_layout(
    {**SEPARATE_EMBEDDINGS, "embedding_projection": "dense", "pooler/dense": "dense_1"},
    blocks="encoder/group_{i}_block_{j}",
    keys=("num_segments", "embedding_dim", "num_groups", "num_inner_repetitions"),
    group_size="num_inner_repetitions",
    omitted=("unroll",),
    head_activation="gelu_tanh",
    constants={"activation": "gelu_tanh", "embedding_projection": True},
)
