"""Layouts of RoBERTa checkpoints from fairseq, Hugging Face and KerasHub."""

from lmzoo.checkpoints.fairseq_encoders import FAIRSEQ, keras_hub_encoder, transformers_layout

__all__ = ["FAIRSEQ", "HUGGING_FACE", "KERAS_HUB"]

HUGGING_FACE = transformers_layout()
KERAS_HUB = keras_hub_encoder()
