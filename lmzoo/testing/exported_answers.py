"""Comparison of an exported model's predictions with its task's predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from lmzoo.common.tensor_types import Tensors

if TYPE_CHECKING:
    from lmzoo.tasks.base.task import Task

TOLERANCE = 1e-5  # absolute and relative, for float32 results that must agree


def assert_answers_agree(task: Task, x: Sequence[Any], outputs: dict[str, np.ndarray]) -> None:
    """Check that an exported signature and the task in Python return the same answers, except for `probabilities`.

    Args:
        task: the exported task.
        x: inputs of the task.
        outputs: outputs of the signature for the same inputs, by name.

    Raises:
        AssertionError: If the number of answers or a string differs, if a number differs by more than `TOLERANCE`, or
            if a row is padded with anything but "", 0 or -1.
    """
    answers = task.answers(x)
    for name in task.served_outputs:
        assert len(outputs[name]) == len(answers), f"{len(outputs[name])} of {len(answers)} rows of {name}"
        if name == "probabilities":  # not part of the answers in Python
            continue
        for row, answer in zip(outputs[name], answers, strict=True):
            entries = [answer_dict["text" if name == "answer" else name] for answer_dict in _list_dicts(answer)]
            expected = np.array(entries if isinstance(answer, (dict, list)) else answer).ravel()
            values = np.array(row, outputs[name].dtype).ravel()
            assert_same(values[: len(expected)], expected, f"served {name}")
            assert all(value in (b"", "", 0, -1) for value in values[len(expected) :]), f"padding of {name}"


def assert_same(actual: np.ndarray, expected: np.ndarray, description: str) -> None:
    """Check that two arrays of strings are equal, or that two of numbers are close; `description` is for messages."""
    if actual.dtype == object:
        texts = [[t.decode() if isinstance(t, bytes) else t for t in array.ravel()] for array in (actual, expected)]
        assert texts[0] == texts[1], description
    else:
        assert_close(actual, expected, description)


def assert_close(actual: Tensors, expected: Tensors, description: str, tolerance: float = TOLERANCE) -> None:
    """Check that nested arrays are close; the message contains `description` and the path of the first difference."""
    for (path, a), b in zip(keras.tree.flatten_with_path(actual), keras.tree.flatten(expected), strict=True):
        message = ", ".join([description, *map(str, path)])
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=message)


def _list_dicts(answer: object) -> list[dict[str, Any]]:
    """Return the dicts in the answer to one example: the answer itself, the dicts in its nested lists, or none."""
    if isinstance(answer, dict):
        return [answer]
    return [entry for inner_answer in answer for entry in _list_dicts(inner_answer)] if isinstance(answer, list) else []
