"""The same BERT classifier from each library, with random weights and, by default, without a tokenizer."""

from __future__ import annotations

from typing import Any

SIZES = {  # layers, heads, hidden width, intermediate width
    "tiny": (2, 2, 32, 64),
    "nano": (4, 2, 128, 512),
    "small": (4, 4, 256, 1024),
    "base": (12, 12, 768, 3072),
    "large": (24, 16, 1024, 4096),
}


def get_shape(size: str) -> dict[str, int]:
    """Return the constructor arguments of lmzoo's and KerasHub's backbones for a size."""
    return dict(zip(("num_layers", "num_heads", "hidden_dim", "intermediate_dim"), SIZES[size], strict=True))


def transformers_config(size: str, vocabulary_size: int, num_labels: int = 2, dropout: float = 0.1) -> Any:
    """Return the `transformers.BertConfig` of a size."""
    from transformers import BertConfig

    names = ("num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size")
    shape = dict(zip(names, SIZES[size], strict=True))
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return BertConfig(vocab_size=vocabulary_size, num_labels=num_labels, **shape, **rates)


def lmzoo_classifier(
    size: str,
    vocabulary_size: int,
    dtype: str = "float32",
    vocabulary: list[str] | None = None,
    positions: int = 512,
    dropout: float = 0.1,
) -> Any:
    """Build an `lmzoo.models.TextClassifier`, compiled with its defaults."""
    import lmzoo
    from lmzoo.registry.family import families
    from lmzoo.text import Preprocessor, WordPieceTokenizer

    backbone = lmzoo.models.BertBackbone(
        vocabulary_size=vocabulary_size,
        **get_shape(size),
        max_sequence_length=positions,
        dropout=dropout,
        dtype=dtype,
    )
    preprocessor = None
    if vocabulary is not None:
        preprocessor = Preprocessor(WordPieceTokenizer(vocabulary), families()["bert"].packing, positions)
    return lmzoo.models.TextClassifier(backbone, preprocessor, num_classes=2)


def keras_hub_classifier(
    size: str,
    vocabulary_size: int,
    dtype: str = "float32",
    vocabulary: list[str] | None = None,
    sequence_length: int | None = None,
    dropout: float = 0.1,
) -> Any:
    """Build a `keras_hub.models.BertTextClassifier`, with KerasHub's default if `sequence_length` is None."""
    import keras_hub

    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=vocabulary_size,
        **get_shape(size),
        max_sequence_length=512,
        dropout=dropout,
        dtype=dtype,
    )
    preprocessor = None
    if vocabulary is not None:
        tokenizer = keras_hub.models.BertTokenizer(vocabulary=vocabulary, lowercase=True)
        length = {} if sequence_length is None else {"sequence_length": sequence_length}
        preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, **length)
    return keras_hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=preprocessor, dropout=dropout)


def transformers_classifier(size: str, vocabulary_size: int, dropout: float = 0.1) -> Any:
    """Build a `transformers.BertForSequenceClassification` in training mode."""
    from transformers import BertForSequenceClassification

    return BertForSequenceClassification(transformers_config(size, vocabulary_size, dropout=dropout)).train()
