"""What the decoders of OpenAI, GPT and GPT-2, have in common in transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmzoo.checkpoints.engine import Row
from lmzoo.checkpoints.hugging_face.checkpoint import HuggingFaceLayout, config_table, under

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
# Their dense layers are `Conv1D`, whose kernels have our axes.
_KINDS = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


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
    config = {**_CONFIG, **keys}
    modules = under("block_{i}", "h.{i}", _MODULES) | ({"final_norm": final_norm} if final_norm else {})
    return HuggingFaceLayout(
        name="Hugging Face transformers",
        config=config_table(
            {theirs: ours for theirs, (ours, _) in config.items()},
            ignored=_IGNORED,
            defaults={theirs: default for theirs, (_, default) in config.items()},
            training={"attn_pdrop": "dropout", "embd_pdrop": "dropout"},
            allowed={"is_decoder": (False, True, None), **(allowed or {})},  # they are causal in any case
            **({"values": values} if values else {}),
        ),
        backbone={
            "embeddings/token_embedding/embeddings": Row(f"{tokens}.weight"),
            "embeddings/position_embedding/embeddings": Row(f"{positions}.weight"),
            **{
                f"{ours}/{kind}": Row(f"{theirs}.{name}")
                for ours, theirs in modules.items()
                for kind, name in _KINDS.items()
            },
            **{
                f"block_{{i}}/attention/{ours}/{kind}": Row(f"h.{{i}}.attn.c_attn.{_KINDS[kind]}", part=part)
                for part, ours in enumerate(("query", "key", "value"))
                for kind in ("kernel", "bias")
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
