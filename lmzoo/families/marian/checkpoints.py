"""Layout of Marian checkpoints from Hugging Face."""

from lmzoo.checkpoints.engine import ONE_AXIS_MORE, Row, torch_modules
from lmzoo.checkpoints.fairseq_encoders import FAIRSEQ_BLOCK
from lmzoo.checkpoints.family_names import Names
from lmzoo.checkpoints.hugging_face.checkpoint import ACTIVATIONS, HuggingFaceLayout, add_prefixes, own_config_table

# transformers' key -> lmzoo's key, and transformers' default
_CONFIG: dict[str, tuple[str, object]] = {
    "vocab_size": ("vocabulary_size", 58101),
    "encoder_layers": ("num_layers", 12),
    "encoder_attention_heads": ("num_heads", 16),
    "d_model": ("hidden_dim", 1024),
    "encoder_ffn_dim": ("intermediate_dim", 4096),
    "dropout": ("dropout", 0.1),
    "max_position_embeddings": ("max_sequence_length", 1024),
    "activation_function": ("activation", "gelu"),
    "init_std": ("initializer_range", 0.02),
    "decoder_layers": ("decoder_layers", 12),
    "decoder_attention_heads": ("decoder_heads", 16),
    "decoder_ffn_dim": ("decoder_intermediate_dim", 4096),
    "attention_dropout": ("attention_dropout", 0.0),
    "scale_embedding": ("scale_embeddings", False),
}
_SOURCE = {
    path.replace("attention", "source_attention").replace("attention_layer", "layer"): module.replace("self", "encoder")
    for path, module in FAIRSEQ_BLOCK.items()
    if "attention" in path
}
# Mostly keys that transformers 3 declared for BART, of which Marian was a variant.
_IGNORED = ("classif_dropout", "decoder_vocab_size", "extra_pos_embeddings", "force_bos_token_to_be_generated")
# Keys that change the network if they are true; null counts as false, as in Python.
_OTHER_NETWORKS = (
    "add_bias_logits", "add_final_layer_norm", "do_blenderbot_90_layernorm", "normalize_before", "normalize_embedding",
)  # fmt: skip
_TABLE = "shared.weight"

HUGGING_FACE = HuggingFaceLayout(
    name="Hugging Face transformers",
    config=own_config_table(
        _CONFIG,
        values={"activation": {"swish": "swish", "silu": "swish", **ACTIVATIONS}},
        ignored=_IGNORED,
        training_values=dict.fromkeys(("activation_dropout", "decoder_layerdrop", "encoder_layerdrop"), 0.0),
        allowed={
            **dict.fromkeys(_OTHER_NETWORKS, (False, None)),
            "is_encoder_decoder": (True,),
            "share_encoder_decoder_embeddings": (True,),
            "static_position_embeddings": (True,),
        },
        # Null without a tokenizer, since transformers' default, 58100, may be outside of the vocabulary.
        written={"pad_token_id": None},
    ),
    backbone={
        "embeddings/token_embedding/embeddings": Row(_TABLE),
        **torch_modules(add_prefixes("encoder_block_{i}", "encoder.layers.{i}", FAIRSEQ_BLOCK)),
        **torch_modules(add_prefixes("decoder_block_{j}", "decoder.layers.{j}", {**FAIRSEQ_BLOCK, **_SOURCE})),
    },
    heads={"seq2seq_lm": {"output_bias/bias": Row("final_logits_bias", ONE_AXIS_MORE)}},
    aliases={r"^model\.": ""},
    copies=dict.fromkeys(("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"), _TABLE),
    ignored={r"(en|de)coder\.embed_positions\.weight": "sines and cosines, which are computed"},
    parts=("shared", "encoder", "decoder"),
    names=Names("Marian", "marian", "model", {"seq2seq_lm": "MarianMTModel"}),
)
