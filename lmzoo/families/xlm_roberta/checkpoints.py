"""Layouts of XLM-RoBERTa checkpoints from fairseq, Hugging Face and KerasHub."""

from lmzoo.checkpoints.fairseq_encoders import FAIRSEQ, keras_hub_encoder, transformers_layout
from lmzoo.checkpoints.family_names import Names

__all__ = ["FAIRSEQ", "HUGGING_FACE", "KERAS_HUB"]

HUGGING_FACE = transformers_layout(Names("XLMRoberta", "xlm-roberta", "roberta"))
KERAS_HUB = keras_hub_encoder("XLMRoberta", embedder=True)
