"""Layouts of encoders trained with fairseq, such as RoBERTa, in fairseq, transformers and KerasHub."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from lmzoo.checkpoints.config_table import ConfigTable
from lmzoo.checkpoints.engine import Layout, skip_rows, torch_modules
from lmzoo.checkpoints.family_names import Names
from lmzoo.checkpoints.hugging_face.checkpoint import (
    BLOCK,
    EMBEDDINGS,
    WORD_TABLE,
    HuggingFaceLayout,
    add_prefixes,
    config_table,
    hugging_face_layout,
)
from lmzoo.checkpoints.keras_hub.checkpoint import JOINED_EMBEDDINGS, KerasHubLayout, keras_hub_layout
from lmzoo.common.tensor_types import Tensor

_SEGMENTS = "embeddings.token_type_embeddings.weight"
_POSITION_TABLE = "embeddings/position_embedding/embeddings"
_SEGMENT_TABLE = "embeddings/segment_embedding/embeddings"
FAIRSEQ_BLOCK = {
    "attention/query": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj",
    "attention/output_dense": "self_attn.out_proj",
    "attention_layer_norm": "self_attn_layer_norm",
    "intermediate_dense": "fc1",
    "output_dense": "fc2",
    "output_layer_norm": "final_layer_norm",
}


def _add_segments(config: Any) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    """Return the argument `num_segments` and the segment embedding to add when a model without segments is written.

    In transformers, the model always has segments, so it gets one segment with an embedding of zeros. For a model with
    segments, return two empty dicts.
    """
    if config.num_segments:
        return {}, {}
    return {"num_segments": 1}, {_SEGMENTS: np.zeros((1, config.hidden_dim), "float32")}


def _merge_segment(config: Any, weights: dict[str, Tensor]) -> tuple[dict[str, object], dict[str, Tensor]]:
    """Return the argument `num_segments` and the weights of a model without segments that is equal to a given model.

    A model's only segment is that of every position, so its embedding is added to the position embeddings. For a model
    with no or several segments, return an empty dict and all weights.
    """
    if config.num_segments != 1:
        return {}, weights
    position_table = keras.ops.add(weights[_POSITION_TABLE], weights[_SEGMENT_TABLE])
    other_weights = {path: weight for path, weight in weights.items() if path != _SEGMENT_TABLE}
    return {"num_segments": 0}, {**other_weights, _POSITION_TABLE: position_table}


def transformers_layout(names: Names | None = None) -> HuggingFaceLayout:
    """Return the layout of a fairseq encoder family in transformers.

    Args:
        names: Names of the family in transformers, or None to derive them from lmzoo's names.
    """
    return hugging_face_layout(
        # transformers counts two unused rows of the position table: positions start after the padding id, 1.
        config=config_table(shifts={"max_sequence_length": 2}, allowed={"pad_token_id": (1,)}),
        backbone=torch_modules({**EMBEDDINGS, **add_prefixes("block_{i}", "encoder.layer.{i}", BLOCK)}),
        masked_lm=("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
        classifier={"classifier/dense": "classifier.dense", "classifier/logits": "classifier.out_proj"},
        choice={"classifier/dense": "pooler.dense", "classifier/logits": "classifier"},
        copies={"lm_head.decoder.weight": WORD_TABLE, "lm_head.decoder.bias": "lm_head.bias"},
        ignored={r"pooler\..*": "a pooler, which multiple choice alone uses"},
        complete=_add_segments,
        names=names,
        head_activation="gelu",
    )


_CLASSIFIER = torch_modules(
    {"classifier/dense": "classification_heads.dense", "classifier/logits": "classification_heads.out_proj"}
)
FAIRSEQ = Layout(
    name="fairseq",
    config=ConfigTable(
        keys={
            "encoder_layers": "num_layers",
            "encoder_attention_heads": "num_heads",
            "encoder_embed_dim": "hidden_dim",
            "encoder_ffn_embed_dim": "intermediate_dim",
            "max_positions": "max_sequence_length",
            "dropout": "dropout",
            "activation_fn": "activation",
        },
        defaults={"activation_fn": "gelu", "dropout": 0.1, "max_positions": 512},
        values={"activation": {"gelu": "gelu", "relu": "relu", "tanh": "tanh"}},
        training={"attention_dropout": "dropout"},
        allowed={
            "encoder_normalize_before": (False,),
            "pooler_activation_fn": ("tanh",),
            "spectral_norm_classification_head": (False,),
            "untie_weights_roberta": (False,),
        },
    ),
    backbone=torch_modules(
        {
            "embeddings/token_embedding": "embed_tokens",
            "embeddings/position_embedding": "embed_positions",
            "embeddings/layer_norm": "layernorm_embedding",
            **add_prefixes("block_{i}", "layers.{i}", FAIRSEQ_BLOCK),
        }
    ),
    heads={
        **{kind: transformers_layout().heads[kind] for kind in ("masked_lm", "pretraining")},
        "classification": _CLASSIFIER,
        "regression": _CLASSIFIER,
    },
    aliases={
        r"^(decoder|encoder)\.(sentence_encoder\.)?": "",
        r"^emb_layer_norm\.": "layernorm_embedding.",
        r"^classification_heads\.\w+\.": "classification_heads.",
    },
    copies={"lm_head.weight": "embed_tokens.weight"},
    ignored={"version": "the code's version"},
)


def keras_hub_encoder(prefix: str = "", embedder: bool = False) -> KerasHubLayout:
    """Return the layout of a fairseq encoder family in KerasHub, which counts positions from 0.

    Args:
        prefix: Prefix of the family's class names in KerasHub, or "" to derive it from lmzoo's class names.
        embedder: Whether KerasHub has an embedder for the family.
    """
    return keras_hub_layout(
        JOINED_EMBEDDINGS,
        transforms={_POSITION_TABLE: skip_rows(2)},
        dense_in_head=True,
        embedder=embedder,
        prefix=prefix,
        merge=_merge_segment,
    )
