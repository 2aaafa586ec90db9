"""GPT-2's checkpoints: the names of its weights in the code of Hugging Face and KerasHub."""

from lmzoo.checkpoints.engine import Row
from lmzoo.checkpoints.family_names import Names
from lmzoo.checkpoints.hugging_face import HuggingFaceLayout, config_table, under
from lmzoo.checkpoints.keras_hub import SEPARATE_EMBEDDINGS, keras_hub_layout

# Their key -> ours, and what they assume for a missing one.
_CONFIG: dict[str, tuple[str, object]] = {
    "vocab_size": ("vocabulary_size", 50257),
    "n_layer": ("num_layers", 12),
    "n_head": ("num_heads", 12),
    "n_embd": ("hidden_dim", 768),
    "n_inner": ("intermediate_dim", None),
    "resid_pdrop": ("dropout", 0.1),
    "n_positions": ("max_sequence_length", 1024),
    "activation_function": ("activation", "gelu_new"),
    "layer_norm_epsilon": ("layer_norm_epsilon", 1e-5),
    "initializer_range": ("initializer_range", 0.02),
}
_IGNORED = (
    "n_ctx", "predict_special_tokens", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
    "summary_type", "summary_use_proj", "task_specific_params",
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

_ALLOWED: dict[str, tuple[object, ...]] = {
    "reorder_and_upcast_attn": (False, True),  # the order of two products, in float16
    "scale_attn_by_inverse_layer_idx": (False,),
    "scale_attn_weights": (True,),
}
_TABLE = config_table(
    {theirs: ours for theirs, (ours, _) in _CONFIG.items()},
    ignored=_IGNORED,
    defaults={theirs: default for theirs, (_, default) in _CONFIG.items()},
    training={"attn_pdrop": "dropout", "embd_pdrop": "dropout"},
    allowed=_ALLOWED,
)

HUGGING_FACE = HuggingFaceLayout(
    name="Hugging Face transformers",
    config=_TABLE,
    backbone={
        "embeddings/token_embedding/embeddings": Row("wte.weight"),
        "embeddings/position_embedding/embeddings": Row("wpe.weight"),
        **{
            f"{ours}/{kind}": Row(f"{theirs}.{name}")
            for ours, theirs in {"final_norm": "ln_f", **under("block_{i}", "h.{i}", _MODULES)}.items()
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
    copies={"lm_head.weight": "wte.weight"},
    ignored={
        r"h\.\d+\.attn\.(masked_)?bias": "a buffer",
        r"score\..*": "the head of a classifier, which has no bias",
        r"(summary|multiple_choice_head)\..*": "the head of a double-head model",
    },
    names=Names("GPT2", "gpt2", "transformer", {"causal_lm": "GPT2LMHeadModel"}),
    parts=("wte", "wpe", "h", "ln_f"),
)

KERAS_HUB = keras_hub_layout(
    {**SEPARATE_EMBEDDINGS, "final_norm": "layer_normalization"},
    stored_block="transformer_decoder",
    prefix="GPT2",
    activation="gelu_tanh",
    layer_norm_epsilon=1e-5,
    num_segments=0,
)
