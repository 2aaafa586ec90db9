"""Layouts of T5 checkpoints from Hugging Face and KerasHub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lmzoo.checkpoints.config_table import ConfigTable, JsonObject, require_value
from lmzoo.checkpoints.engine import TRANSPOSED, Row, Table, keras_layers, torch_modules
from lmzoo.checkpoints.family_names import Names
from lmzoo.checkpoints.hugging_face.checkpoint import ACTIVATIONS, HuggingFaceLayout, add_prefixes, own_config_table
from lmzoo.checkpoints.keras_hub.checkpoint import IGNORED_KEYS, SHARED_KEYS, KerasHubLayout

# transformers' key -> lmzoo's key, and transformers' default
_CONFIG: dict[str, tuple[str, object]] = {
    "vocab_size": ("vocabulary_size", 32128),
    "num_layers": ("num_layers", 6),
    "num_heads": ("num_heads", 8),
    "d_model": ("hidden_dim", 512),
    "d_ff": ("intermediate_dim", 2048),
    "d_kv": ("head_dim", 64),
    "dropout_rate": ("dropout", 0.1),
    "n_positions": ("max_sequence_length", 512),
    "layer_norm_epsilon": ("layer_norm_epsilon", 1e-6),
    "relative_attention_num_buckets": ("num_buckets", 32),
    "relative_attention_max_distance": ("max_distance", 128),
}
_DECODER = ("num_decoder_layers", "scale_decoder_outputs", "tie_word_embeddings")
# "silu" and "gelu_new" come before their synonyms, since the first spelling is written.
_ACTIVATIONS = {"silu": "swish", "swish": "swish", "gelu_new": "gelu_tanh", **ACTIVATIONS}
_ATTENTION = {"query": "q", "key": "k", "value": "v", "output_dense": "o"}
_TABLE = "shared.weight"
_ENCODER_CLASSES = {"": "T5EncoderModel", "token_classification": "T5ForTokenClassification"}
_UNUSED = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
_ALIASES = {r"^transformer\.(?=(shared|encoder|decoder)\.)": ""}


def _add_derived_keys(config: JsonObject, file: Path | str) -> JsonObject:
    """Add the keys that transformers derives from `feed_forward_proj`, and keys whose defaults depend on other keys."""
    kind = config.get("feed_forward_proj", "relu")
    require_value(isinstance(kind, str), file, "feed_forward_proj", "a name, such as 'relu' or 'gated-gelu'", kind)
    is_gated = kind.startswith("gated-")
    activation = "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")
    is_tied = config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True))  # 4 lacks the former
    return {
        "dense_act_fn": activation,
        "is_gated_act": is_gated,
        "num_decoder_layers": None,  # as many as in the encoder
        **config,
        "tie_word_embeddings": is_tied,
    }


def _get_tied_weights(config: JsonObject) -> dict[str, str]:
    """Map the name of the logits' kernel to the name of the token embeddings for T5 1.1 models of transformers 5.

    Since version 5, transformers ties the two weights even in T5 1.1 models, and omits the kernel from files. For other
    models, the dict is empty.
    """
    return {"lm_head.weight": _TABLE} if config.get("scale_decoder_outputs") is False else {}


def _write_feed_forward(config: dict[str, object]) -> dict[str, object]:
    """Return `config` with `feed_forward_proj`, in which "gated-gelu" means the tanh approximation of GELU."""
    kind = str(config["dense_act_fn"])
    spellings = {"gelu_new": "gelu", "gelu": "gelu_python"}
    if config["is_gated_act"]:
        kind = f"gated-{spellings.get(kind, kind)}"
    return {**config, "feed_forward_proj": kind}


def _make_config_table(rewritten_keys: dict[str, str], **table: Any) -> ConfigTable:
    """Return the table of `config.json`; `rewritten_keys` extend its `rewritten`, and `table` sets other fields."""
    return own_config_table(
        _CONFIG,
        aliases={"head_dim": "d_kv"},
        rewrite=_add_derived_keys,
        rewritten={"dense_act_fn": "activation", "is_gated_act": "gated", **rewritten_keys},
        derive=_write_feed_forward,
        values={"activation": _ACTIVATIONS},
        allowed={"is_encoder_decoder": (True, False, None)},
        **table,
    )


def _make_stack(module: str, block: str, bias: str, norm: str, reads_source: bool = False) -> Table:
    """Return table rows for an encoder or decoder.

    Args:
        module: name of the encoder or decoder in PyTorch.
        block: template of the blocks' paths, such as "block_{i}".
        bias: path of the position bias.
        norm: path of the final norm.
        reads_source: whether blocks attend to a source.
    """
    stored_block = f"{module}.block.{block[-3:]}"
    feed_forward = f"layer.{2 if reads_source else 1}"
    layers = {f"attention/{layer}": f"layer.0.SelfAttention.{name}" for layer, name in _ATTENTION.items()}
    layers |= {
        "attention_layer_norm": "layer.0.layer_norm",
        "gate_dense": f"{feed_forward}.DenseReluDense.wi_1",
        "output_dense": f"{feed_forward}.DenseReluDense.wo",
        "output_layer_norm": f"{feed_forward}.layer_norm",
    }
    if reads_source:
        layers |= {f"source_attention/{layer}": f"layer.1.EncDecAttention.{name}" for layer, name in _ATTENTION.items()}
        layers["source_layer_norm"] = "layer.1.layer_norm"
    prefix = f"{stored_block}.{feed_forward}.DenseReluDense.wi"
    return {
        **torch_modules(add_prefixes(block, stored_block, layers)),
        **torch_modules({norm: f"{module}.final_layer_norm"}),
        f"{block}/intermediate_dense/kernel": Row(
            f"{prefix}_0.weight", TRANSPOSED, alternative=(f"{block}/gate_dense/kernel", f"{prefix}.weight")
        ),
        f"{bias}/embeddings": Row(f"{module}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
    }


_KERAS_BLOCK = "t5_transformer_layer"  # blocks of the encoder are group 0, blocks of the decoder group 1
_KERAS_ATTENTION = {"query": "query", "key": "key", "value": "value", "output_dense": "output"}


def _make_keras_stack(group: int, block: str, bias: str) -> Table:
    """Return table rows for KerasHub's encoder or decoder.

    Args:
        group: 0 for the encoder, 1 for the decoder.
        block: template of the blocks' paths, such as "encoder_block_{i}".
        bias: path of the position bias.
    """
    layers = {
        "attention_layer_norm": "self_attention_layer_norm",
        "source_layer_norm": "cross_attention_layer_norm",
        "intermediate_dense": "input_projector",
        "gate_dense": "gate_projector",
        "output_dense": "output_projector",
        "output_layer_norm": "layer_norm",
    }
    for layer, name in _KERAS_ATTENTION.items():
        layers[f"attention/{layer}"] = f"self_attention/{name}_projector"
        layers[f"source_attention/{layer}"] = f"cross_attention/{name}_projector"
    paths = {f"{block}/{layer}": f"{_KERAS_BLOCK}_{group}_{block[-3:]}/{name}" for layer, name in layers.items()}
    return keras_layers({**paths, bias: f"{_KERAS_BLOCK}_{group}_0/self_attention"})


HUGGING_FACE = HuggingFaceLayout(
    name="Hugging Face transformers",
    config=_make_config_table(
        {"num_decoder_layers": "decoder_layers", "tie_word_embeddings": "tie_embeddings"},
        ignored=("initializer_factor", "feed_forward_proj", "scale_decoder_outputs"),
    ),
    backbone={
        "embeddings/token_embedding/embeddings": Row(_TABLE),
        **_make_stack("encoder", "encoder_block_{i}", "encoder_bias", "encoder_norm"),
        **_make_stack("decoder", "decoder_block_{j}", "decoder_bias", "decoder_norm", reads_source=True),
        "output_projection/kernel": Row("lm_head.weight", TRANSPOSED),
    },
    heads={"seq2seq_lm": {}},
    aliases=_ALIASES,
    copies=dict.fromkeys(("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"), _TABLE),
    ignored={_UNUSED: "a table that attention to the source does not use"},
    tied=_get_tied_weights,
    parts=(),
    names=Names("T5", "t5", "transformer", {"seq2seq_lm": "T5ForConditionalGeneration"}),
)
ENCODER_HUGGING_FACE = HuggingFaceLayout(
    name="Hugging Face transformers",
    config=_make_config_table({}, ignored=("initializer_factor", "feed_forward_proj", *_DECODER)),
    backbone={
        "embeddings/token_embedding/embeddings": Row(_TABLE),
        **_make_stack("encoder", "block_{i}", "position_bias", "final_norm"),
    },
    heads={"token_classification": torch_modules({"classifier/logits": "classifier"})},
    aliases=_ALIASES,
    copies={"encoder.embed_tokens.weight": _TABLE},
    ignored={r"decoder\..*|lm_head\.weight": "the decoder"},
    parts=("shared", "encoder"),
    names=Names("T5Encoder", "t5", "transformer", _ENCODER_CLASSES, tokenizer="T5Tokenizer"),
)
KERAS_HUB = KerasHubLayout(
    name="KerasHub",
    config=ConfigTable(
        keys={
            **SHARED_KEYS,
            "key_value_dim": "head_dim",
            "activation": "activation",
            "use_gated_activation": "gated",
            "layer_norm_epsilon": "layer_norm_epsilon",
            "tie_embedding_weights": "tie_embeddings",
        },
        values={"activation": {"relu": "relu", "gelu": "gelu", "silu": "swish", "tanh": "tanh"}},
        constants={"num_buckets": 32, "max_distance": 128},
        omitted=("max_sequence_length",),
        ignored=IGNORED_KEYS,
    ),
    backbone={
        **keras_layers({"embeddings/token_embedding": "reversible_embedding"}),
        **keras_layers({"encoder_norm": "t5_layer_norm", "decoder_norm": "t5_layer_norm_1"}),
        "output_projection/kernel": Row("layers/reversible_embedding/vars/1"),
        **_make_keras_stack(0, "encoder_block_{i}", "encoder_bias"),
        **_make_keras_stack(1, "decoder_block_{j}", "decoder_bias"),
    },
    block=_KERAS_BLOCK,
    group_size="num_layers",
)
