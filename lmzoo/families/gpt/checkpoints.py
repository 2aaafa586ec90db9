"""GPT's checkpoints: the names of its weights in the code of Hugging Face."""

from lmzoo.checkpoints.engine import Row
from lmzoo.checkpoints.family_names import Names
from lmzoo.checkpoints.hugging_face import HuggingFaceLayout, config_table, under

# Their key -> ours, and what they assume for a missing one.
_CONFIG: dict[str, tuple[str, object]] = {
    "vocab_size": ("vocabulary_size", 40478),
    "n_layer": ("num_layers", 12),
    "n_head": ("num_heads", 12),
    "n_embd": ("hidden_dim", 768),
    "resid_pdrop": ("dropout", 0.1),
    "n_positions": ("max_sequence_length", 512),
    "afn": ("activation", "gelu"),
    "layer_norm_epsilon": ("layer_norm_epsilon", 1e-5),
    "initializer_range": ("initializer_range", 0.02),
}
_IGNORED = (
    "n_ctx", "n_special", "predict_special_tokens", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels", "summary_type", "summary_use_proj", "task_specific_params",
)  # fmt: skip
_MODULES = {
    "attention/output_dense": "attn.c_proj",
    "attention_layer_norm": "ln_1",
    "intermediate_dense": "mlp.c_fc",
    "output_dense": "mlp.c_proj",
    "output_layer_norm": "ln_2",
}
# Their dense layers are `Conv1D`, whose kernels have our axes.
_KINDS = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}

HUGGING_FACE = HuggingFaceLayout(
    name="Hugging Face transformers",
    config=config_table(
        {theirs: ours for theirs, (ours, _) in _CONFIG.items()},
        ignored=_IGNORED,
        defaults={theirs: default for theirs, (_, default) in _CONFIG.items()},
        training={"attn_pdrop": "dropout", "embd_pdrop": "dropout"},
        values={"activation": {"gelu": "gelu_tanh", "relu": "relu"}},  # its code has always computed the approximation
    ),
    backbone={
        "embeddings/token_embedding/embeddings": Row("tokens_embed.weight"),
        "embeddings/position_embedding/embeddings": Row("positions_embed.weight"),
        **{
            f"{ours}/{kind}": Row(f"{theirs}.{name}")
            for ours, theirs in under("block_{i}", "h.{i}", _MODULES).items()
            for kind, name in _KINDS.items()
        },
        **{
            f"block_{{i}}/attention/{ours}/{kind}": Row(f"h.{{i}}.attn.c_attn.{_KINDS[kind]}", part=part)
            for part, ours in enumerate(("query", "key", "value"))
            for kind in ("kernel", "bias")
        },
    },
    heads={"causal_lm": {}},
    aliases={r"^transformer\.": ""},
    copies={"lm_head.weight": "tokens_embed.weight"},
    ignored={
        r"h\.\d+\.attn\.bias": "a buffer",
        r"position_ids": "a buffer",
        r"score\..*": "the head of a classifier, which has no bias",
        r"multiple_choice_head\..*": "the head of a double-head model",
    },
    names=Names("OpenAIGPT", "openai-gpt", "transformer", {"causal_lm": "OpenAIGPTLMHeadModel"}),
    parts=("tokens_embed", "positions_embed", "h"),
)
