"""Trains in one of several processes: `python -m` this module, with a JSON file for the results and a function.

The functions can also be called in a single process.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from lmzoo import models
from lmzoo.errors import ProcessesError
from lmzoo.parallel import initialize, layout_map
from lmzoo.parallel.processes import check_same, main_process_first, process_index
from lmzoo.pretraining import Recipe, language_model, pretrain, recipe, run
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_examples, tiny_preprocessor, tiny_task, tiny_texts
from lmzoo.testing.tiny import public_tasks
from lmzoo.training import ResumableCheckpoint
from lmzoo.training.run_state import RunStates

LINES = ["The ship left the harbour at dawn.", "Nobody had seen the island.", "The sea grew rough.", "It was calm."]
SEED = 5


class Losses(keras.callbacks.Callback):
    """Records the loss of each step, and calls a function after one of them."""

    def __init__(self, at: int | None = None, act: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.losses: dict[str, float] = {}
        self.at, self.act = at, act

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self.model.reset_metrics()  # a mean over the epoch would depend on the step at which training began

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        step = int(self.model.optimizer.iterations)
        self.losses[str(step)] = float(logs["loss"])
        if step == self.at and self.act is not None:
            self.act()


def fit() -> dict[str, Any]:
    family = families()["bert"]
    return fit_task(
        models.TextClassifier(tiny_backbone(family, num_layers=1, dropout=0.2), tiny_preprocessor(family), 3)
    )


def fit_task(task: models.Task) -> dict[str, Any]:
    """Return the results of training on 7 examples in batches of 4: processes cannot split the last batch."""
    keras.utils.set_random_seed(SEED)
    # Some gradients are rounding errors, such as those of key biases, which change no probability. With the epsilon of
    # the recipes (1e-9 in `Seq2SeqLM`), Adam would move such a weight by up to the learning rate.
    task.optimizer.epsilon = 1e-5
    x, y = tiny_examples(task, 7)
    losses = Losses()
    history = task.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[losses], validation_data=(x, y)).history
    evaluation = task.evaluate(x, y, batch_size=3, verbose=0, return_dict=True)
    for scores in (history, evaluation):  # correlations of nearly equal predictions amplify rounding errors
        for name in ("pearson", "val_pearson"):
            scores.pop(name, None)
    return {
        "losses": losses.losses,
        "history": history,
        "evaluation": evaluation,
        "predictions": [np.asarray(a).tolist() for a in keras.tree.flatten(task.predict(x, batch_size=4, verbose=0))],
        "weights": [np.asarray(weight, "float64").tolist() for weight in task.weights],
    }


def leave(when: str) -> None:
    """Train, while process 1 leaves "before" or "during" the training."""
    task = tiny_task(models.TextClassifier, families()["bert"])
    if when == "before" and process_index() == 1:
        sys.exit("There is no data.")
    x, y = tiny_examples(task, 8)
    task.fit(x, y, batch_size=4, verbose=0, callbacks=[Losses(1, sys.exit if process_index() == 1 else None)])


def some_tasks(part: int) -> dict[str, Any]:
    """Train some tasks, each on the first family that it supports; test_meshes.py covers all of them."""
    chosen = {task.__name__: next(filter(task.supports, families().values())) for task in public_tasks()[::2]}
    return {
        name: fit_task(tiny_task(getattr(models, name), family).copy_with(dropout=0.2))
        for name, family in [*chosen.items()][int(part) :: 2]
    }


def masked_lm(folder: str | Path, epochs: int = 3, at: int = 0, act: str = "", devices: str = "") -> dict[str, Any]:
    """Train on 10 texts with dropout and saved states; `act` is what a process does, such as "kill 1"."""
    family = families()["bert"]
    sizes = {"num_layers": 1, "num_heads": 5, "hidden_dim": 40, "intermediate_dim": 56, "dropout": 0.2}

    def build() -> models.Backbone:
        keras.utils.set_random_seed(SEED)
        return family.backbone(**{**dataclasses.asdict(family.tiny), **sizes})

    backbone = build()
    if devices:  # weights are also split
        shape = [int(size) for size in devices.split("x")]
        mesh = keras.distribution.DeviceMesh(shape, ("batch", "model"), keras.distribution.list_devices())
        layouts = layout_map(backbone, mesh)
        parallel = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
        keras.distribution.set_distribution(parallel)
        backbone = build()
        assert any(not weight.value.sharding.is_fully_replicated for weight in backbone.weights)
    task = models.MaskedLM(backbone, tiny_preprocessor(family))
    checkpoint = ResumableCheckpoint(folder, every=2)
    written: list[int] = []
    write = RunStates.write

    def record_write(states: RunStates, step: int, *arguments: Any) -> None:
        written.append(step)
        write(states, step, *arguments)

    RunStates.write = record_write  # type: ignore[method-assign]

    def end() -> None:
        signal_name, number = act.split()
        if process_index() == int(number):
            os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGTERM}[signal_name])

    losses = Losses(int(at), end)
    task.fit(tiny_texts(10), batch_size=4, epochs=int(epochs), verbose=0, callbacks=[losses, checkpoint])
    RunStates.write = write  # type: ignore[method-assign]
    return {"losses": losses.losses, "written": written}


def pretraining(family: str, folder: str | Path) -> dict[str, Any]:
    """Pre-train a tiny model, from text to a preset."""
    recipe.SIZES["nano"] = (1, 64)
    language_model.WORD_SIZES["nano"] = (7, 5, ((1, 3), (2, 5)))
    run.ROUND = 3
    text = [LINES[i % 4 :] + LINES[: i % 4] for i in range(103)]
    positions = {"positions": 23} if families()[family].pretrained_head == "pretraining" else {}
    settings = Recipe(family, tokens=600, vocabulary_size=61, sequence_length=17, batch_size=6, **positions)
    losses = Losses()
    scores = pretrain(text, folder, settings, callbacks=[losses])
    return {"losses": losses.losses, "scores": scores, "preset": sorted(path.name for path in Path(folder).iterdir())}


def refusals(presets: str) -> dict[str, str]:
    """Return the errors if something differs between processes; no process ends."""

    def other_data() -> None:
        task = tiny_task(models.TextClassifier, families()["bert"])
        x, y = tiny_examples(task, 7)
        x[3] += "!" * process_index()
        task.fit(x, y, verbose=0)

    def other_features() -> None:
        task = tiny_task(models.TextClassifier, families()["bert"])
        features = task.preprocessor(tiny_texts(3))
        features["token_ids"] = np.array(features["token_ids"])
        features["token_ids"][0, 1] += process_index()
        task.fit(features, np.zeros(3, "int32"), verbose=0)

    def other_preset() -> None:
        models.Backbone.from_preset(Path(presets) / str(process_index()))

    def first_fails() -> None:
        with main_process_first():
            if process_index() == 0:
                raise ValueError("no text")

    messages = {}
    for check in (other_data, other_features, other_preset, first_fails):
        try:
            check()
        except (ProcessesError, ValueError) as error:
            messages[check.__name__] = str(error)
    check_same(number=7)
    return messages


def start(function: str) -> None:
    if function == "other_version" and os.environ["KERAS_DISTRIBUTION_PROCESS_ID"] == "1":
        keras.__version__ = "3.0.0"
    initialize(timeout=float(os.environ.get("LMZOO_TEST_TIMEOUT", "600")))
    keras.distribution.set_distribution(keras.distribution.DataParallel())


if __name__ == "__main__":
    target, function, *arguments = sys.argv[1:]
    start(function)
    Path(target).write_text(json.dumps(globals()[function](*arguments)))
