"""Every shipped preset: exported, it gives the predictions of Python for odd texts in a process without lmzoo."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmzoo
from lmzoo import tasks
from lmzoo.registry.family import families
from lmzoo.testing.exported_answers import assert_answers_agree
from lmzoo.testing.tiny import public_tasks
from tests.serving.bare import BareProcess
from tests.text.varied import varied_texts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::lmzoo.text.TextWarning"),
    # A head with random weights also predicts.
    pytest.mark.filterwarnings("ignore:.* holds no head of a .*, so it starts from scratch:UserWarning"),
]

PRESETS = [(name, info.family) for name, info in lmzoo.list_presets().items() if info.shipped]
TASKS = [task for task in public_tasks() if task.served_outputs]
BATCHES = (1, 7, 64)


def examples(task: tasks.Task, texts: list[Any]) -> tuple[list[Any], dict[str, list[Any]]]:
    """Return inputs of the task's method and of its signature."""
    name = type(task).__name__
    if name == "QuestionAnswerer":
        inputs = list(zip(["Who was it?", *texts[:-1]], texts, strict=True))
        return inputs, {"question": [q for q, _ in inputs], "context": [c for _, c in inputs]}
    if name == "MultipleChoice":
        inputs = [(text, ["It was so.", "She never knew.", "He did."][: 2 + i % 2]) for i, text in enumerate(texts)]
        return inputs, {"prompt": texts, "choices": [[*c, ""][:3] for _, c in inputs]}
    if name == "MaskedLM":
        mask = task.preprocessor.tokenizer.mask_token.encode()
        texts = [mask + b" " + (text.encode() if isinstance(text, str) else text) for text in texts]
    return texts, {"text": texts}


def odd_texts() -> list[Any]:
    """Return texts of 0 to 10,000 characters in all scripts, some of them invalid UTF-8."""
    long = ["The film was never dull. " * 400, "naïve\u0301 世界 👩🏽 " * 700, "x" * 10_000]
    return [*varied_texts(sum(BATCHES) - len(long) - 1, 43, ["[MASK", "<mask", "</s", "\x00"]), *long, ""]


def pairs() -> Iterator[Any]:
    """Yield each task with a preset, and each preset with a task; LMZOO_EVERY_PRESET yields all pairs."""
    for i, task in enumerate(TASKS):
        supported = [name for name, family in PRESETS if task.supports(families()[family])]
        chosen = supported if "LMZOO_EVERY_PRESET" in os.environ else supported[i % max(1, len(supported)) :][:1]
        for name in chosen:
            yield pytest.param(task, name, id=f"{task.__name__}-{name}")


@pytest.mark.parametrize(("task_class", "preset"), list(pairs()))
def test_exports_give_the_predictions_of_python(
    task_class: type[tasks.Task], preset: str, tmp_path: Path, bare: BareProcess
) -> None:
    labels = {"TextClassifier": ["bad", "good"], "TokenClassifier": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]}
    arguments = {"labels": labels[task_class.__name__]} if task_class.__name__ in labels else {}
    task = task_class.from_preset(preset, sequence_length=128, **arguments)
    task.export(tmp_path / "1", verbose=False)
    inputs, columns = examples(task, odd_texts())
    ends = np.cumsum(BATCHES).tolist()
    for part in (slice(end - size, end) for size, end in zip(BATCHES, ends, strict=True)):
        batch = {name: column[part] for name, column in columns.items()}
        served = bare.ask(tmp_path / "1", "serving_default", **batch)
        outputs = {name: np.array(rows) for name, rows in served.items()}
        strings = {name: rows.astype(object) for name, rows in outputs.items() if rows.dtype.kind == "U"}
        assert_answers_agree(task, inputs[part], outputs | strings)
