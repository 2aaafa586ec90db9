"""Texts of words that tiny models know, and of what else there is in text, and how signatures are asked."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from lmzoo.tasks import Task

_ODD = ["é", "e\u0301\u0323", "東京", "\u00a0", "\n", "!", "👩🏽", "\u0301", "ﬁ", "  ", "good film", "don't"]


def varied_text(texts: Sequence[str], count: int, longest: int, seed: int) -> list[str]:
    """Some texts of fewer than `longest` of the words of others."""
    rng = random.Random(seed)
    words = [*" ".join(texts).split(), *_ODD]
    return [rng.choice(["", " "]).join(rng.choices(words, k=rng.randrange(longest))) for _ in range(count)]


def ask(task: Task, *columns: Sequence[str]) -> dict[str, Any]:
    """What a task's signature answers: numpy arrays.

    It runs as Python, which takes much less time than tracing it once; the conformance suite traces and exports.
    """
    import tensorflow as tf

    serve = task.signatures()[1]["serving_default"]
    tf.config.run_functions_eagerly(True)
    try:
        return {name: value.numpy() for name, value in serve(*map(tf.constant, columns)).items()}
    finally:
        tf.config.run_functions_eagerly(False)
