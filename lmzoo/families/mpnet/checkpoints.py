"""Layout of MPNet checkpoints from Hugging Face."""

from lmzoo.checkpoints.engine import torch_modules
from lmzoo.checkpoints.family_names import Names
from lmzoo.checkpoints.hugging_face.checkpoint import (
    EMBEDDINGS,
    ENCODER_DEFAULTS,
    ENCODER_KEYS,
    WORD_TABLE,
    add_prefixes,
    config_table,
    hugging_face_layout,
)

_BUCKETS = "relative_attention_num_buckets"
_KEYS = {key: name for key, name in ENCODER_KEYS.items() if name != "num_segments"}
_DEFAULTS = {key: value for key, value in ENCODER_DEFAULTS.items() if key in _KEYS}
_BLOCK = {
    "attention/query": "attention.attn.q",
    "attention/key": "attention.attn.k",
    "attention/value": "attention.attn.v",
    "attention/output_dense": "attention.attn.o",
    "attention_layer_norm": "attention.LayerNorm",
    "intermediate_dense": "intermediate.dense",
    "output_dense": "output.dense",
    "output_layer_norm": "output.LayerNorm",
}

HUGGING_FACE = hugging_face_layout(
    names=Names("MPNet", "mpnet", "mpnet"),
    head_activation="gelu",
    config=config_table(
        {**_KEYS, _BUCKETS: "num_buckets"},
        defaults={**_DEFAULTS, _BUCKETS: 32},
        # transformers also counts the two unused rows of the table, since positions start after the padding id.
        shifts={"max_sequence_length": 2},
        # transformers always computes 32 buckets, whatever the size of the table.
        allowed={"pad_token_id": (1,), _BUCKETS: (32,)},
    ),
    backbone=torch_modules(
        {
            **EMBEDDINGS,
            "position_bias": "encoder.relative_attention_bias",
            **add_prefixes("block_{i}", "encoder.layer.{i}", _BLOCK),
        }
    ),
    masked_lm=("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    classifier={"classifier/dense": "classifier.dense", "classifier/logits": "classifier.out_proj"},
    choice={"classifier/dense": "pooler.dense", "classifier/logits": "classifier"},
    copies={"lm_head.decoder.weight": WORD_TABLE, "lm_head.decoder.bias": "lm_head.bias"},
    ignored={r"pooler\..*": "a pooler, which multiple choice alone uses"},
)
