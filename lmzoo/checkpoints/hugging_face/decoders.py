"""The common layout of OpenAI's decoders, GPT and GPT-2, in transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmzoo.checkpoints.engine import SAME, Row, torch_modules
from lmzoo.checkpoints.hugging_face.checkpoint import HuggingFaceLayout, add_prefixes, output_kernel, own_config_table

# Key of `config.json` -> the argument and the default value in transformers.
_CONFIG: dict[str, tuple[str, object]] = {
    "n_layer": ("num_layers", 12),
    "n_head": ("num_heads", 12),
    "n_embd": ("hidden_dim", 768),
    "resid_pdrop": ("dropout", 0.1),
    "layer_norm_epsilon": ("layer_norm_epsilon", 1e-5),
    "initializer_range": ("initializer_range", 0.02),
}
# Keys that are always written, since transformers' default ids may not fit the model's vocabulary.
_TOKEN_IDS = ("bos_token_id", "eos_token_id")
_IGNORED = (
    "n_ctx", "n_special", "predict_special_tokens", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels", "summary_type", "summary_use_proj",
)  # fmt: skip
_MODULES = {
    "attention/output_dense": "attn.c_proj",
    "attention_layer_norm": "ln_1",
    "intermediate_dense": "mlp.c_fc",
    "output_dense": "mlp.c_proj",
    "output_layer_norm": "ln_2",
}


def decoder_layout(
    tokens: str,
    positions: str,
    keys: Mapping[str, tuple[str, object]],
    final_norm: str | None = None,
    values: Mapping[str, Mapping[str, str]] | None = None,
    allowed: Mapping[str, tuple[object, ...]] | None = None,
    **fields: Any,
) -> HuggingFaceLayout:
    """Return the layout of a decoder family, GPT or GPT-2, in transformers.

    Args:
        tokens: Name of the token embedding module.
        positions: Name of the position embedding module.
        keys: Dict from a key of the family in `config.json` to the argument and the default value in transformers.
        final_norm: Name of the LayerNorm module after the last block, or None if there is no such module.
        values: Spellings of values in place of the common spellings, as in `ConfigTable.values`.
        allowed: Supported values of keys, as in `ConfigTable.allowed`.
        **fields: Other fields of `HuggingFaceLayout`.
    """
    modules = {"embeddings/token_embedding": tokens, "embeddings/position_embedding": positions}
    modules |= add_prefixes("block_{i}", "h.{i}", _MODULES) | ({"final_norm": final_norm} if final_norm else {})
    return HuggingFaceLayout(
        name="Hugging Face transformers",
        config=own_config_table(
            {**_CONFIG, **keys},
            ignored=_IGNORED,
            training={"attn_pdrop": "dropout", "embd_pdrop": "dropout"},
            # These models are causal whatever `is_decoder` says.
            allowed={"is_decoder": (False, True, None), **(allowed or {})},
            written=dict.fromkeys(_TOKEN_IDS),
            **({"values": values} if values else {}),
        ),
        backbone={
            **torch_modules(modules, kernel=SAME),  # dense layers are `Conv1D`, with kernels as in Keras
            **{
                f"block_{{i}}/attention/{layer}/{weight}": Row(f"h.{{i}}.attn.c_attn.{torch_name}", part=part)
                for part, layer in enumerate(("query", "key", "value"))
                for weight, torch_name in {"kernel": "weight", "bias": "bias"}.items()
            },
        },
        heads={"causal_lm": output_kernel("lm_head.weight")},
        unread_heads={"classification": "score.weight"},
        aliases={r"^transformer\.": ""},
        copies={"lm_head.weight": f"{tokens}.weight"},
        ignored={
            r"h\.\d+\.attn\.(masked_)?bias": "a buffer",
            "position_ids": "a buffer",
            r"score\..*": "the head of a classifier, which has no bias",
            r"(summary|multiple_choice_head)\..*": "the head of a double-head model",
        },
        parts=tuple(filter(None, (tokens, positions, "h", final_norm))),
        **fields,
    )
