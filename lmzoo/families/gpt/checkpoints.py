"""Layout of GPT checkpoints from Hugging Face."""

from lmzoo.checkpoints.family_names import Names
from lmzoo.checkpoints.hugging_face.decoders import decoder_layout

HUGGING_FACE = decoder_layout(
    "tokens_embed",
    "positions_embed",
    {
        "vocab_size": ("vocabulary_size", 40478),
        "n_positions": ("max_sequence_length", 512),
        "afn": ("activation", "gelu"),
    },
    values={"activation": {"gelu": "gelu_tanh", "relu": "relu"}},  # its code has always computed the tanh approximation
    names=Names("OpenAIGPT", "openai-gpt", "transformer", {"causal_lm": "OpenAIGPTLMHeadModel"}),
)
