"""Layouts of DistilBERT checkpoints from Hugging Face and KerasHub."""

from lmzoo.checkpoints.engine import torch_modules
from lmzoo.checkpoints.hugging_face.checkpoint import (
    EMBEDDINGS,
    WORD_TABLE,
    add_prefixes,
    config_table,
    hugging_face_layout,
)
from lmzoo.checkpoints.keras_hub.checkpoint import JOINED_EMBEDDINGS, keras_hub_layout

_KEYS = {
    "vocab_size": "vocabulary_size",
    "n_layers": "num_layers",
    "n_heads": "num_heads",
    "dim": "hidden_dim",
    "hidden_dim": "intermediate_dim",
    "dropout": "dropout",
    "max_position_embeddings": "max_sequence_length",
    "activation": "activation",
    "initializer_range": "initializer_range",
}
_BLOCK = {
    "attention/query": "attention.q_lin",
    "attention/key": "attention.k_lin",
    "attention/value": "attention.v_lin",
    "attention/output_dense": "attention.out_lin",
    "attention_layer_norm": "sa_layer_norm",
    "intermediate_dense": "ffn.lin1",
    "output_dense": "ffn.lin2",
    "output_layer_norm": "output_layer_norm",
}

HUGGING_FACE = hugging_face_layout(
    config=config_table(
        _KEYS,
        ignored=("qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds", "tie_weights_"),
        defaults={"activation": "gelu", "dropout": 0.1, "initializer_range": 0.02, "max_position_embeddings": 512},
        training={"attention_dropout": "dropout"},
    ),
    backbone=torch_modules({**EMBEDDINGS, **add_prefixes("block_{i}", "transformer.layer.{i}", _BLOCK)}),
    masked_lm=("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    classifier={"classifier/dense": "pre_classifier", "classifier/logits": "classifier"},
    copies={"vocab_projector.weight": WORD_TABLE},
)

KERAS_HUB = keras_hub_layout(JOINED_EMBEDDINGS, dense_in_head=True)
