"""Trains in one of several processes, or alone: `python -m` this module, with what to run and a JSON file for results."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

from lmzoo import models, version
from lmzoo.distribution import initialize
from lmzoo.family import families
from lmzoo.pretraining import Recipe, encoders, language_model, pretrain, run
from lmzoo.processes import process_index
from lmzoo.testing import tiny_backbone, tiny_examples, tiny_preprocessor, tiny_task, tiny_texts
from lmzoo.training import ResumableCheckpoint

LINES = ["The ship left the harbour at dawn.", "Nobody had seen the island.", "The sea grew rough.", "It was calm."]


class Losses(keras.callbacks.Callback):
    """Notes the loss after each step, by the optimizer's count, and does something after one of them."""

    def __init__(self, at: int | None = None, act: Any = None) -> None:
        super().__init__()
        self.found: dict[int, float] = {}
        self.at, self.act = at, act

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self.model.reset_metrics()  # the loss of each step alone, not their mean over the epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        step = int(self.model.optimizer.iterations)
        self.found[step] = float(logs["loss"])
        if step == self.at:
            self.act()


def fit(name: str = "bert", kind: str = "TextClassifier") -> dict[str, Any]:
    """Of 7 examples in batches of 4, with dropout: the last batch cannot be split between the processes."""
    task = tiny_task(getattr(models, kind), families()[name])
    x, y = tiny_examples(task, 7)
    losses = Losses()
    history = task.fit(x, y, batch_size=4, epochs=3, verbose=0, callbacks=[losses], validation_data=(x, y)).history
    return {
        "losses": losses.found,
        "history": history,
        "evaluation": task.evaluate(x, y, batch_size=3, verbose=0),
        "predictions": [np.asarray(a).tolist() for a in keras.tree.flatten(task.predict(x, batch_size=3, verbose=0))],
        "weights": [float(np.abs(w).sum()) for w in task.get_weights()],
    }


def masked_lm(folder: str, epochs: str = "3", at: str = "0", act: str = "") -> dict[str, Any]:
    """Masked tokens of 10 texts, with dropout, in steps that can be resumed."""
    family = families()["bert"]
    task = models.MaskedLM(tiny_backbone(family, dropout=0.2, num_layers=1), tiny_preprocessor(family))
    checkpoint = ResumableCheckpoint(folder, every=2)

    def end() -> None:
        if act and process_index() == int(act[-1]):
            os.kill(os.getpid(), signal.SIGKILL if act.startswith("kill") else signal.SIGTERM)

    losses = Losses(int(at), end)
    task.fit(tiny_texts(10), batch_size=4, epochs=int(epochs), verbose=0, callbacks=[losses, checkpoint])
    return {"losses": losses.found, "stopped": checkpoint.stopped}


def pretraining(folder: str, family: str = "bert") -> dict[str, Any]:
    encoders.SIZES["nano"] = (1, 64)
    language_model.WORD_SIZES["nano"] = (7, 5, ((1, 3), (2, 5)))
    run.ROUND = 3
    text = [LINES[i % 4 :] + LINES[: i % 4] for i in range(103)]
    losses = Losses()
    settings = {"positions": 23} if family != "elmo" else {}
    recipe = Recipe(family, tokens=600, vocabulary_size=61, sequence_length=17, batch_size=6, **settings)
    scores = pretrain(text, folder, recipe, callbacks=[losses], overwrite=True)
    return {"losses": losses.found, "scores": scores}


def other_data() -> dict[str, Any]:
    task = tiny_task(models.TextClassifier, families()["bert"])
    x, y = tiny_examples(task, 7 + process_index())
    task.fit(x, y, verbose=0)
    return {}


def other_preset(folder: str) -> dict[str, Any]:
    models.Backbone.from_preset(Path(folder) / str(process_index()))
    return {}


if __name__ == "__main__":
    target, what, *arguments = sys.argv[1:]
    if "KERAS_DISTRIBUTION_NUM_PROCESSES" in os.environ:
        if what == "other_version" and os.environ["KERAS_DISTRIBUTION_PROCESS_ID"] == "1":
            import lmzoo.distribution.starting as starting

            starting.__version__ = "0.0.1"
        initialize(timeout=float(os.environ.get("TIMEOUT", 300)))
        keras.distribution.set_distribution(keras.distribution.DataParallel())
    keras.utils.set_random_seed(5)
    if what != "other_version":
        Path(target).write_text(json.dumps(globals()[what](*arguments)))
