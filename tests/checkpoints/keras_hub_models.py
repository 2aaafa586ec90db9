"""KerasHub's own models with random weights, and tokenizers of KerasHub with our tiny vocabularies."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from lmzoo.registry.family import families
from lmzoo.testing import tiny_preprocessor
from lmzoo.testing.tiny import WORDS
from tests.reference.weights import randomise, to_numpy

SIZES = {"num_layers": 2, "num_heads": 5, "hidden_dim": 35, "intermediate_dim": 53, "max_sequence_length": 67}
PREFIXES = {"bert": "Bert", "roberta": "Roberta", "albert": "Albert", "distilbert": "DistilBert", "gpt2": "GPT2"}


def peer_backbone(name: str) -> keras.Model:
    """Return KerasHub's backbone of a family, with as many embeddings as our tiny vocabulary has tokens."""
    import keras_hub

    sizes = {**SIZES, "vocabulary_size": families()[name].tiny.vocabulary_size, "dropout": 0.0}
    sizes |= {"embedding_dim": 17, "num_groups": 2} if name == "albert" else {}
    backbone = getattr(keras_hub.models, f"{PREFIXES[name]}Backbone")(**sizes)
    randomise(backbone)
    if name == "gpt2":  # rarely generate tokens that are parts of characters
        table = backbone.token_embedding.embeddings
        words = {id for word in WORDS for id in map(int, peer_tokenizer(name)(f" {word}"))}
        scales = np.array([1.0 if id in words else 0.01 for id in range(table.shape[0])])
        table.assign(to_numpy(table.value) * scales[:, None])
    return backbone


def peer_tokenizer(name: str) -> Any:
    """Return KerasHub's tokenizer of a family with our tiny vocabulary."""
    import keras_hub

    tokenizer = tiny_preprocessor(families()[name]).tokenizer
    arguments: dict[str, Any] = {"vocabulary": tokenizer.vocabulary, "lowercase": True, "strip_accents": True}
    if name == "albert":
        arguments = {"proto": tokenizer.model}
    elif name in ("roberta", "gpt2"):
        ids = {token: id for id, token in enumerate(tokenizer.vocabulary)}
        arguments = {"vocabulary": ids, "merges": tokenizer.merges}
    return getattr(keras_hub.models, f"{PREFIXES[name]}Tokenizer")(**arguments)


def peer_task(name: str, kind: str, backbone: Any, tokenizer: Any, length: int, **arguments: Any) -> Any:
    """Return a task, such as "TextClassifier", with a random head and its own preprocessor."""
    import keras_hub

    prefix = PREFIXES[name] + kind
    preprocessor = getattr(keras_hub.models, f"{prefix}Preprocessor")(tokenizer, sequence_length=length)
    task = getattr(keras_hub.models, prefix)(backbone, preprocessor=preprocessor, **arguments)
    backbone_weights = {id(weight) for weight in backbone.weights}
    rng = np.random.default_rng(29)
    for weight in task.weights:
        if id(weight) not in backbone_weights:
            weight.assign(rng.normal(1.0 if weight.path.endswith("gamma") else 0.0, 0.2, weight.shape))
    task.run_eagerly = True
    return task
