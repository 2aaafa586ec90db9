"""Compares the answers of an exported model with those of its task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from lmzoo.common.tensor_types import Tensors

if TYPE_CHECKING:
    from lmzoo.tasks.base.task import Task

TOLERANCE = 1e-5  # between results in float32 that must be equal


def assert_answers_agree(task: Task, x: Sequence[Any], found: dict[str, np.ndarray]) -> None:
    """Check that a signature of strings answered for the examples `x` as the task does in Python.

    Raises:
        AssertionError: if a string differs, a number differs by more than 1e-5, or a row is not padded with "", 0 or
            -1.
    """
    answers = task.answers(x)
    for name in task.served_outputs:
        assert len(found[name]) == len(answers), f"{len(found[name])} of {len(answers)} rows of {name}"
        if name == "probabilities":  # which answers in Python do not have
            continue
        for row, answer in zip(found[name], answers, strict=True):
            dicts = [a["text" if name == "answer" else name] for a in _dicts(answer)]
            expected = np.array(dicts if isinstance(answer, (dict, list)) else answer).ravel()
            values = np.array(row, found[name].dtype).ravel()
            assert_same(values[: len(expected)], expected, f"served {name}")
            assert all(value in (b"", "", 0, -1) for value in values[len(expected) :]), f"padding of {name}"


def assert_same(actual: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Check that strings are equal and numbers close."""
    if actual.dtype == object:
        texts = [[t.decode() if isinstance(t, bytes) else t for t in array.ravel()] for array in (actual, expected)]
        assert texts[0] == texts[1], what
    else:
        assert_close(actual, expected, what)


def assert_close(actual: Tensors, expected: Tensors, what: str, tolerance: float = TOLERANCE) -> None:
    """Check that the numbers in trees of arrays are close; the message names the path of the first that is not."""
    for (path, a), b in zip(keras.tree.flatten_with_path(actual), keras.tree.flatten(expected), strict=True):
        named = ", ".join([what, *map(str, path)])
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=named)


def _dicts(answer: object) -> list[dict[str, Any]]:
    """Return the dicts in a task's answer to one example, out of any lists around them."""
    if isinstance(answer, dict):
        return [answer]
    return [found for part in answer for found in _dicts(part)] if isinstance(answer, list) else []
