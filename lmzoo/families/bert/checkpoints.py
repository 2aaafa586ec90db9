"""Layouts of BERT checkpoints from Google, Hugging Face and KerasHub."""

from lmzoo.checkpoints.engine import torch_modules
from lmzoo.checkpoints.google import google_config, google_layout
from lmzoo.checkpoints.hugging_face.checkpoint import (
    BLOCK,
    EMBEDDINGS,
    ENCODER_DEFAULTS,
    WORD_TABLE,
    add_prefixes,
    config_table,
    hugging_face_layout,
)
from lmzoo.checkpoints.keras_hub.checkpoint import SEPARATE_EMBEDDINGS, keras_hub_layout

_UNUSED = (
    "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head",
    "pooler_type",
)  # fmt: skip
# The sizes of BERT-base, which transformers assumes if a file omits them.
_DEFAULT_SIZES = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "vocab_size": 30522,
}
_MODULES = {**EMBEDDINGS, **add_prefixes("block_{i}", "encoder.layer.{i}", BLOCK), "pooler/dense": "pooler.dense"}
_TRANSFORM = "cls.predictions.transform"

HUGGING_FACE = hugging_face_layout(
    config=config_table(defaults={**ENCODER_DEFAULTS, **_DEFAULT_SIZES}, ignored=_UNUSED),
    backbone=torch_modules(_MODULES),
    masked_lm=(f"{_TRANSFORM}.dense", f"{_TRANSFORM}.LayerNorm", "cls.predictions.bias"),
    sentence="cls.seq_relationship",
    copies={"cls.predictions.decoder.weight": WORD_TABLE, "cls.predictions.decoder.bias": "cls.predictions.bias"},
    ignored={r"cls\.seq_relationship\..*": "the head of next-sentence prediction"},
)

# Google's names are Hugging Face's with other separators. "gelu" was the exact form when the models were released.
GOOGLE = google_layout(
    google_config(gelu="gelu", ignored=_UNUSED),
    {
        path: "bert/" + module.replace("encoder.layer.", "encoder/layer_").replace(".", "/")
        for path, module in _MODULES.items()
    },
)

# KerasHub always computes the tanh approximation, even if a model was trained with the exact form.
KERAS_HUB = keras_hub_layout(
    {**SEPARATE_EMBEDDINGS, "pooler/dense": "dense"},
    keys=("num_segments",),
    embedder=True,
    constants={"activation": "gelu_tanh"},
)
