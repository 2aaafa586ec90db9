"""Layouts of GPT-2 checkpoints from Hugging Face and KerasHub."""

from lmzoo.checkpoints.family_names import Names
from lmzoo.checkpoints.hugging_face.decoders import decoder_layout
from lmzoo.checkpoints.keras_hub.checkpoint import SEPARATE_EMBEDDINGS, keras_hub_layout

HUGGING_FACE = decoder_layout(
    "wte",
    "wpe",
    {
        "vocab_size": ("vocabulary_size", 50257),
        "n_inner": ("intermediate_dim", None),
        "n_positions": ("max_sequence_length", 1024),
        "activation_function": ("activation", "gelu_new"),
    },
    final_norm="ln_f",
    allowed={
        "reorder_and_upcast_attn": (False, True),  # the order of two products, in float16
        "scale_attn_by_inverse_layer_idx": (False,),
        "scale_attn_weights": (True,),
    },
    names=Names("GPT2", "gpt2", "transformer", {"causal_lm": "GPT2LMHeadModel"}),
)

KERAS_HUB = keras_hub_layout(
    {**SEPARATE_EMBEDDINGS, "final_norm": "layer_normalization"},
    block="transformer_decoder",
    prefix="GPT2",
    constants={"activation": "gelu_tanh", "layer_norm_epsilon": 1e-5, "num_segments": 0},
)
