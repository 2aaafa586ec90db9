"""A classifier with varied predictions, varied texts for tiny models, and calls of signatures."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import pytest

from lmzoo.models import BertBackbone, TextClassifier
from lmzoo.registry.family import Family, families
from lmzoo.tasks import Task
from lmzoo.testing import tiny_task
from lmzoo.text import Packing, Preprocessor, WordPieceTokenizer

_ODD = ["é", "e\u0301\u0323", "東京", "\u00a0", "\n", "!", "👩🏽", "\u0301", "ﬁ", "  ", "good film", "don't"]


def varied_text(texts: Sequence[str], count: int, longest: int, seed: int) -> list[str]:
    """Return `count` texts of fewer than `longest` words that occur in `texts`."""
    rng = random.Random(seed)
    words = [*" ".join(texts).split(), *_ODD]
    return [rng.choice(["", " "]).join(rng.choices(words, k=rng.randrange(longest))) for _ in range(count)]


def on_families(settings: Sequence[Any]) -> Iterator[Any]:
    """Yield every family that has tasks for questions and tags, with every setting."""
    for name, family in families().items():
        if not family.backbone.reads_source:
            for number, setting in enumerate(settings):
                yield pytest.param(family, setting, id=f"{name}-{number}")


def classifier(**kwargs: Any) -> TextClassifier:
    """Return a small BERT on words and letters, the same at each call."""
    keras.utils.set_random_seed(3)
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = [*letters, *(f"##{c}" for c in letters), "good", "bad", "film", "!"]
    vocabulary = [*WordPieceTokenizer.special_tokens, *pieces]
    packing = Packing(start="[CLS]", end="[SEP]", between=("[SEP]",), segments=True)
    preprocessor = Preprocessor(WordPieceTokenizer(vocabulary), packing, sequence_length=23)
    # A wide initializer, so that different texts get visibly different scores.
    backbone = BertBackbone(
        vocabulary_size=len(vocabulary), num_layers=2, num_heads=3, hidden_dim=15, intermediate_dim=31,
        max_sequence_length=29, initializer_range=0.7,
    )  # fmt: skip
    return TextClassifier(backbone, preprocessor, **kwargs)


def varied_task(task_class: type[Task], family: Family, **arguments: Any) -> Task:
    """Return a tiny task whose predictions differ between texts."""
    task = tiny_task(task_class, family, **arguments)
    if family.name in ("gpt2", "lstm_lm"):  # with small random weights, their vectors hardly differ
        for variable in task.trainable_variables:
            variable.assign(4 * variable)
    return task


def ask(task: Task, *columns: Sequence[str]) -> dict[str, Any]:
    """Return the outputs of a task's signature as arrays.

    The signature runs eagerly, much faster than tracing it once; the conformance suite traces and exports.
    """
    import tensorflow as tf

    serve = task.signatures()[1]["serving_default"]
    tf.config.run_functions_eagerly(True)
    try:
        return {name: value.numpy() for name, value in serve(*map(tf.constant, columns)).items()}
    finally:
        tf.config.run_functions_eagerly(False)
