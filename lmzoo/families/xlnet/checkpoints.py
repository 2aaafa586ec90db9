"""Layouts of XLNet checkpoints from its authors, Hugging Face and KerasHub."""

import numpy as np

from lmzoo.checkpoints.config_table import ConfigTable
from lmzoo.checkpoints.engine import TRANSPOSED, Row, keras_layers, tensorflow_modules, torch_modules
from lmzoo.checkpoints.family_names import Names
from lmzoo.checkpoints.google import TRAINING_STATE, GoogleLayout
from lmzoo.checkpoints.hugging_face.checkpoint import OWN_KERNEL, HuggingFaceLayout, add_prefixes, own_config_table
from lmzoo.checkpoints.keras_hub.checkpoint import IGNORED_KEYS, SHARED_KEYS, KerasHubLayout, number_first
from lmzoo.families.encoder_config import EncoderConfig

# transformers' key -> lmzoo's key, and transformers' default
_CONFIG: dict[str, tuple[str, object]] = {
    "vocab_size": ("vocabulary_size", 32000),
    "n_layer": ("num_layers", 24),
    "n_head": ("num_heads", 16),
    "d_model": ("hidden_dim", 1024),
    "d_inner": ("intermediate_dim", 4096),
    "dropout": ("dropout", 0.1),
    "ff_activation": ("activation", "gelu"),
    "layer_norm_eps": ("layer_norm_epsilon", 1e-12),
    "initializer_range": ("initializer_range", 0.02),
}
# As in transformers, heads are a separate axis of lmzoo's kernels.
_ATTENTION = {
    "attention/query/kernel": "q",
    "attention/key/kernel": "k",
    "attention/value/kernel": "v",
    "attention/output_dense/kernel": "o",
    "attention/distance/kernel": "r",
    "attention/content_bias": "r_w_bias",
    "attention/distance_bias": "r_r_bias",
    "attention/segment_bias": "r_s_bias",
    "attention/segments": "seg_embed",
}
_BLOCK = {
    "attention_layer_norm": "rel_attn.layer_norm",
    "intermediate_dense": "ff.layer_1",
    "output_dense": "ff.layer_2",
    "output_layer_norm": "ff.layer_norm",
}
_QUERY_VECTOR = "mask_emb"
_PREDICTION = {"masked_lm_head/output_bias": Row("lm_loss.bias"), "query_stream/vector": Row(_QUERY_VECTOR)}
_IGNORED = (
    "d_head", "end_n_top", "mem_len", "reuse_len", "start_n_top", "summary_last_dropout", "use_mems_eval",
    "use_mems_train",
)  # fmt: skip
_SUMMARY_VALUES = {"summary_activation": ("tanh",), "summary_type": ("last",), "summary_use_proj": (True,)}
_SUMMARY = torch_modules({"classifier/dense": "sequence_summary.summary", "classifier/logits": "logits_proj"})


def _make_zero_query_vector(config: EncoderConfig) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    """Return an empty dict of settings, and zeros for the query stream's initial vector.

    In transformers, models without the pre-training head also have this vector.
    """
    return {}, {_QUERY_VECTOR: np.zeros((1, 1, config.hidden_dim), "float32")}


HUGGING_FACE = HuggingFaceLayout(
    name="Hugging Face transformers",
    config=own_config_table(
        _CONFIG,
        aliases={"n_token": "vocab_size"},
        ignored=(*_IGNORED, *_SUMMARY_VALUES),
        allowed={
            "attn_type": ("bi",),
            "bi_data": (False,),
            "clamp_len": (-1,),
            "same_length": (False,),
            "untie_r": (True,),
        },
        omitted=("max_sequence_length", "num_segments"),
    ),
    backbone={
        "embeddings/token_embedding/embeddings": Row("word_embedding.weight"),
        **torch_modules(add_prefixes("block_{i}", "layer.{i}", _BLOCK)),
        **{f"block_{{i}}/{path}": Row(f"layer.{{i}}.rel_attn.{module}") for path, module in _ATTENTION.items()},
    },
    heads={
        "pretraining": {**_PREDICTION, OWN_KERNEL: Row("lm_loss.weight", TRANSPOSED)},
        "classification": _SUMMARY,
        "regression": _SUMMARY,
        "multiple_choice": _SUMMARY,
        "token_classification": torch_modules({"classifier/logits": "classifier"}),
        "question_answering": torch_modules({"span_head/logits": "qa_outputs"}),
    },
    aliases={r"^transformer\.": ""},
    copies={"lm_loss.weight": "word_embedding.weight"},
    ignored={r"(start_logits|end_logits|answer_class)\..*": "the head of a question answerer that searches by beam"},
    complete=_make_zero_query_vector,
    names=Names(
        "XLNet",
        "xlnet",
        "transformer",
        {"pretraining": "XLNetLMHeadModel", "question_answering": "XLNetForQuestionAnsweringSimple"},
    ),
    parts=("word_embedding", "layer", _QUERY_VECTOR),
    head_values=dict.fromkeys(("classification", "regression", "multiple_choice"), _SUMMARY_VALUES),
)

_MODEL = "model/transformer"
_LAYER = "model/transformer/layer_{i}"
_STACKED = ("r_w_bias", "r_r_bias", "r_s_bias", "seg_embed")

GOOGLE = GoogleLayout(
    name="TensorFlow checkpoint of XLNet's code",
    config=ConfigTable(
        keys={
            "n_token": "vocabulary_size",
            "n_layer": "num_layers",
            "n_head": "num_heads",
            "d_model": "hidden_dim",
            "d_inner": "intermediate_dim",
            "ff_activation": "activation",
        },
        # The authors' code has always computed the tanh approximation for "gelu".
        values={"activation": {"gelu": "gelu_tanh", "relu": "relu"}},
        allowed={"untie_r": (True,)},
        ignored=("d_head",),
        omitted=("dropout", "initializer_range", "max_sequence_length", "num_segments"),
        written={"untie_r": True},
    ),
    backbone={
        "embeddings/token_embedding/embeddings": Row(f"{_MODEL}/word_embedding/lookup_table"),
        **tensorflow_modules(
            {
                f"block_{{i}}/{path}": f"{_LAYER}/{module.replace('.', '/').replace('layer_norm', 'LayerNorm')}"
                for path, module in _BLOCK.items()
            }
        ),
        **{
            f"block_{{i}}/{path}": Row(
                f"{_MODEL}/{module}/{{i}}" if module in _STACKED else f"{_LAYER}/rel_attn/{module}/kernel"
            )
            for path, module in _ATTENTION.items()
        },
    },
    heads={
        "pretraining": {
            "masked_lm_head/output_bias": Row("model/lm_loss/bias"),
            "query_stream/vector": Row(f"{_MODEL}/mask_emb/mask_emb"),
        }
    },
    ignored={
        **TRAINING_STATE,
        r"model/(sequnece_summary|regression|classification|answer_class|start_logits|end_logits|cls).*": "a head",
    },
    signs={"pretraining": {"model/lm_loss/bias"}},
    stacked=tuple(f"{_MODEL}/{name}" for name in _STACKED),
    complete=lambda config: ({}, {f"{_MODEL}/mask_emb/mask_emb": np.zeros((1, 1, config.hidden_dim), "float32")}),
)

_MASK_EMBEDDING = "layers/xl_net_attention_mask_layer/vars/0"  # the query stream's initial vector
_KERAS_HUB_BLOCK = {
    **{f"attention/{name}": f"relative_attention/{name}_dense" for name in ("query", "key", "value")},
    "attention/output_dense": "relative_attention/output_dense",
    "attention/distance": "relative_attention/_encoding_dense",
    "attention_layer_norm": "layer_norm",
    **{name: f"feedforward_{name}" for name in ("intermediate_dense", "output_dense")},
    "output_layer_norm": "layer_norm_ff",
}

# KerasHub's network mixes up the texts of a batch, since it reshapes masks and encodings of distances instead of
# transposing them. On batches of one text, it agrees with lmzoo.
KERAS_HUB = KerasHubLayout(
    name="KerasHub",
    prefix="XLNet",
    block="xl_net_encoder",
    has_tokenizer=False,
    config=ConfigTable(
        keys={**SHARED_KEYS, "activation": "activation", "kernel_initializer_range": "initializer_range"},
        values={"activation": {"gelu": "gelu", "relu": "relu", "silu": "swish", "swish": "swish", "tanh": "tanh"}},
        ignored=("bias_initializer", *IGNORED_KEYS),
        omitted=("max_sequence_length", "num_segments"),
    ),
    backbone=keras_layers(
        {"embeddings/token_embedding": "content_and_query_embedding/word_embed"}
        | {f"block_{{i}}/{path}": f"xl_net_encoder_{{i}}/{module}" for path, module in _KERAS_HUB_BLOCK.items()}
    )
    | {
        f"block_{{i}}/attention/{name}": Row(f"layers/xl_net_encoder_{{i}}/vars/{number}")
        for number, name in enumerate(("content_bias", "distance_bias", "segment_bias", "segments"))
    },
    aliases=number_first("xl_net_encoder"),
    ignored={_MASK_EMBEDDING: "the vector that the query stream begins with, used only in pre-training"},
    complete=lambda config: ({}, {_MASK_EMBEDDING: np.zeros((1, 1, config.hidden_dim), "float32")}),
)
