"""What the decoders of OpenAI, GPT and GPT-2, have in common in transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmzoo.checkpoints.engine import SAME, Row, torch_modules
from lmzoo.checkpoints.hugging_face.checkpoint import HuggingFaceLayout, own_config_table, under

# Their key -> ours, and what they assume for a missing one.
_CONFIG: dict[str, tuple[str, object]] = {
    "n_layer": ("num_layers", 12),
    "n_head": ("num_heads", 12),
    "n_embd": ("hidden_dim", 768),
    "resid_pdrop": ("dropout", 0.1),
    "layer_norm_epsilon": ("layer_norm_epsilon", 1e-5),
    "initializer_range": ("initializer_range", 0.02),
}
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
    """Return the layout of a family.

    Args:
        tokens: module of the token embeddings.
        positions: module of the position embeddings.
        keys: the family's own keys in `config.json` -> our argument, and what transformers assumes for a missing key.
        final_norm: module of the LayerNorm after the last block, if there is one.
        values: see `ConfigTable`, where the spelling is not the usual one.
        allowed: see `ConfigTable`.
        **fields: other fields of `HuggingFaceLayout`.
    """
    modules = {"embeddings/token_embedding": tokens, "embeddings/position_embedding": positions}
    modules |= under("block_{i}", "h.{i}", _MODULES) | ({"final_norm": final_norm} if final_norm else {})
    return HuggingFaceLayout(
        name="Hugging Face transformers",
        config=own_config_table(
            {**_CONFIG, **keys},
            ignored=_IGNORED,
            training={"attn_pdrop": "dropout", "embd_pdrop": "dropout"},
            allowed={"is_decoder": (False, True, None), **(allowed or {})},  # they are causal in any case
            **({"values": values} if values else {}),
        ),
        backbone={
            **torch_modules(modules, kernel=SAME),  # their dense layers are `Conv1D`, whose kernels have our axes
            **{
                f"block_{{i}}/attention/{ours}/{kind}": Row(f"h.{{i}}.attn.c_attn.{theirs}", part=part)
                for part, ours in enumerate(("query", "key", "value"))
                for kind, theirs in {"kernel": "weight", "bias": "bias"}.items()
            },
        },
        heads={"causal_lm": {}},
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
