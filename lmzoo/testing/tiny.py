"""Tiny models, texts and examples for tests."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from lmzoo import models
from lmzoo.common.arguments import require
from lmzoo.families.backbone import Backbone
from lmzoo.registry.family import Family
from lmzoo.tasks import (
    BidirectionalLM,
    MaskedLM,
    MultipleChoice,
    Pretrainer,
    QuestionAnswerer,
    Seq2SeqLM,
    Task,
    TextEmbedder,
    TextRegressor,
    TokenClassifier,
)
from lmzoo.text import Preprocessor, WordTokenizer

WORDS = ("good", "bad", "film", "plot", "the", "a", "was", "is", "very", "never", "dull", "fine", ".", "!")
LABELS = ("O", "B-PER", "I-PER")
SEED = 1709


def public_tasks() -> list[type[Task]]:
    """Return the task classes in `lmzoo.models`, except the base class `Task`."""
    classes = (getattr(models, name) for name in models.__all__)
    return [cls for cls in classes if issubclass(cls, Task) and cls is not Task]


def tiny_preprocessor(family: Family) -> Preprocessor:
    """Return a preprocessor for `family.tiny`; its vocabulary consists of special tokens, `WORDS` and fillers."""
    tokenizer = family.tokenizer.of_words(WORDS, family.tiny.vocabulary_size, **family.special_tokens)
    return Preprocessor(tokenizer, family.packing, getattr(family.tiny, "max_sequence_length", 67))


def tiny_backbone(family: Family, **overrides: Any) -> Backbone:
    """Return a backbone with the configuration `family.tiny`, random weights and no dropout.

    The random seed is set, so that all calls return the same weights.

    Args:
        family: the family of the backbone.
        **overrides: constructor arguments that take precedence over `family.tiny`.

    Raises:
        ValueError: If `family` is not a `Family`.
    """
    require(isinstance(family, Family), "family", "a record of a family, such as `families()['bert']`", family)
    keras.utils.set_random_seed(SEED)
    backbone = family.backbone(**{**dataclasses.asdict(family.tiny), "dropout": 0.0, **overrides})
    randomize(backbone)
    return backbone


def tiny_task(task_class: type[Task], family: Family, **arguments: Any) -> Task:
    """Return a task on a tiny backbone, with the classes `LABELS` if the task has classes.

    Args:
        task_class: class of the task.
        family: the family of the backbone.
        **arguments: further constructor arguments of the task.
    """
    parameters = inspect.signature(task_class).parameters
    defaults: dict[str, Any] = {
        "vocabulary": [*WordTokenizer.special_tokens, *WORDS[:-3]],
        "max_question_length": 31,  # sequences are short, and contexts need room
        "max_new_tokens": 7,  # sequences are short, and prompts need room
    }
    arguments = {**{name: value for name, value in defaults.items() if name in parameters}, **arguments}
    if "num_classes" in parameters and not {"num_classes", "labels"} & arguments.keys():
        arguments["labels"] = LABELS
    return task_class(tiny_backbone(family), tiny_preprocessor(family), **arguments)


def tiny_texts(count: int = 7) -> list[str]:
    """Return `count` texts, each of two to nine random `WORDS`."""
    rng = np.random.default_rng(SEED)
    return [" ".join(rng.choice(WORDS, rng.integers(2, 10))) for _ in range(count)]


def randomize(model: keras.Model) -> None:
    """Add random numbers to all trainable weights, since some are initialized with 0 or 1."""
    rng = np.random.default_rng(SEED)
    for variable in model.trainable_variables:
        variable.assign(ops.convert_to_numpy(variable) + rng.normal(scale=0.1, size=variable.shape))


def _take_second_word(text: str) -> dict[str, Any]:
    """Return the second word of a text as an answer in the format of SQuAD."""
    words = text.split()
    return {"text": words[1], "answer_start": len(words[0]) + 1}


def _make_choices(i: int) -> list[str]:
    """Return the choices of example `i`: two to four texts, with "good" at index i mod 2."""
    wrong_choices = ["dull", "a plot", "bad ."][: 1 + i % 3]
    return [*wrong_choices[: i % 2], "good", *wrong_choices[i % 2 :]]


def _split_in_halves(words: list[str]) -> tuple[str, str]:
    """Return two texts: the words at even indices, and the words at odd indices."""
    return " ".join(words[::2]), " ".join(words[1::2])


# Functions from texts to `x` and `y` of `fit`, by task class.
_EXAMPLES: dict[type[Task], Callable[[list[str]], tuple[Any, Any]]] = {
    # Each document has enough words for a batch.
    BidirectionalLM: lambda texts: ([[*texts[i:], *texts[:i]][:5] for i in range(len(texts))], None),
    MultipleChoice: lambda texts: (
        [(t, _make_choices(i)) for i, t in enumerate(texts)],
        [i % 2 for i in range(len(texts))],
    ),
    # `fit` takes these as documents of two sentences, `predict` as pairs.
    Pretrainer: lambda texts: ([_split_in_halves(text.split()) for text in texts], None),
    QuestionAnswerer: lambda texts: (
        [("the film", text) for text in texts],
        [_take_second_word(text) for text in texts],
    ),
    Seq2SeqLM: lambda texts: ([(text, " ".join(reversed(text.split()))) for text in texts], None),
    TextEmbedder: lambda texts: ([_split_in_halves(text.split()) for text in texts], None),
    TextRegressor: lambda texts: (texts, [len(text) / 10 for text in texts]),
    TokenClassifier: lambda texts: (texts, [[len(word) % 3 for word in text.split()] for text in texts]),
}


def tiny_examples(task: Task, count: int = 7) -> tuple[list[Any], Any]:
    """Return `count` inputs, and their labels or None, for the `fit` method of a task.

    For a task from another package, the inputs are texts, and the labels, if needed, are class indices below 3.
    """
    texts = tiny_texts(count)
    if isinstance(task, MaskedLM):  # predicts at mask tokens
        texts = [f"{text} {task.text_preprocessor.tokenizer.mask_token}" for text in texts]
    for cls, make_examples in _EXAMPLES.items():
        if isinstance(task, cls):
            return make_examples(texts)
    return texts, np.arange(count) % 3 if task.needs_labels else None
