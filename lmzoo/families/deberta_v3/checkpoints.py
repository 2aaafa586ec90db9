"""Layouts of DeBERTa-v3 checkpoints from Hugging Face and KerasHub.

In transformers, DeBERTa-v2 has the same classes. DeBERTa-v2 models can be loaded if they have the architecture of
version 3. A model with a convolution, or with separate projections for distances, is refused.
"""

from lmzoo.checkpoints.engine import Row, torch_modules
from lmzoo.checkpoints.family_names import Names
from lmzoo.checkpoints.hugging_face.checkpoint import (
    BLOCK,
    EMBEDDINGS,
    ENCODER_DEFAULTS,
    ENCODER_KEYS,
    WORD_TABLE,
    add_prefixes,
    config_table,
    hugging_face_layout,
)
from lmzoo.checkpoints.keras_hub.checkpoint import keras_hub_layout

_BLOCK = {**BLOCK, **{f"attention/{name}": f"attention.self.{name}_proj" for name in ("query", "key", "value")}}
_TRANSFORM = "cls.predictions.transform"
_ATTENTION_TERMS = (["p2c", "c2p"], ["c2p", "p2c"], "p2c|c2p", "c2p|p2c")
_FIXED_SETTINGS = {
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "relative_attention": True,
    "share_att_key": True,
}

HUGGING_FACE = hugging_face_layout(
    names=Names("DebertaV2", "deberta-v2", "deberta", tokenizer_segments=True),
    config=config_table(
        {
            **ENCODER_KEYS,
            "position_buckets": "bucket_size",
            "max_relative_positions": "max_relative_positions",
            # A key that only lmzoo writes, since no class of transformers has this decoder.
            "enhanced_mask_decoder": "enhanced_mask_decoder",
        },
        defaults={
            **ENCODER_DEFAULTS,
            "layer_norm_eps": 1e-7,
            "max_relative_positions": -1,
            "enhanced_mask_decoder": False,
            "pos_att_type": None,
            "position_biased_input": True,
            "relative_attention": False,
            "type_vocab_size": 0,
        },
        # Keys without a default are not checked in files that lack them. The tensors in such files show the difference:
        # they lack the normalization, or have separate projections for distances.
        allowed={
            **{key: (value,) for key, value in _FIXED_SETTINGS.items()},
            "conv_kernel_size": (0,),
            "pooler_hidden_act": ("gelu",),
            "pos_att_type": _ATTENTION_TERMS,
        },
        # The first two keys are sizes, which also follow from the shapes of the tensors.
        ignored=(
            "attention_head_size",
            "pooler_hidden_size",
            "conv_act",
            "conv_groups",
            "cls_dropout",
            "legacy",
            "pooler_dropout",
        ),
        written={**_FIXED_SETTINGS, "pos_att_type": _ATTENTION_TERMS[0]},
    ),
    parts=("embeddings", "encoder"),
    backbone={
        **torch_modules({**EMBEDDINGS, **add_prefixes("block_{i}", "encoder.layer.{i}", _BLOCK)}),
        **torch_modules({"distances/layer_norm": "encoder.LayerNorm"}),
        "distances/embeddings": Row("encoder.rel_embeddings.weight"),
        "absolute_positions/embeddings": Row("embeddings.position_embeddings.weight"),
    },
    masked_lm=(f"{_TRANSFORM}.dense", f"{_TRANSFORM}.LayerNorm", "cls.predictions.bias"),
    classifier={"classifier/dense": "pooler.dense", "classifier/logits": "classifier"},
    # The published models, and models with `legacy` set to False, have other names for the masked-LM head's weights.
    aliases={
        r"^lm_predictions\.lm_head\.(?=dense|LayerNorm)": f"{_TRANSFORM}.",
        r"^lm_predictions\.lm_head\.bias$": "cls.predictions.bias",
    },
    copies={"cls.predictions.decoder.weight": WORD_TABLE, "cls.predictions.decoder.bias": "cls.predictions.bias"},
    ignored={
        r"mask_predictions\..*": "the head of replaced tokens, which uses another network than ELECTRA's",
        r"embeddings\.position_embeddings\.weight": "absolute positions, which only the enhanced mask decoder uses",
    },
)

KERAS_HUB = keras_hub_layout(
    {
        "embeddings/token_embedding": "reversible_embedding",
        "embeddings/layer_norm": "layer_normalization",
        "distances": "relative_embedding",
        "distances/layer_norm": "relative_embedding/layer_norm",
    },
    prefix="DebertaV3",
    block="disentangled_attention_encoder",
    private_attention=True,
    keys=("bucket_size",),
    constants={
        "activation": "gelu",
        "layer_norm_epsilon": 1e-7,
        "num_segments": 0,
        "max_relative_positions": -1,
        "enhanced_mask_decoder": False,
    },
    dense_in_head=True,
)
