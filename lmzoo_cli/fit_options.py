"""What the options of `lmzoo fit` mean for training: weights of classes, schedules, callbacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from lmzoo.data.readers.text_files import near_names

if TYPE_CHECKING:
    import keras

_BALANCED = "balanced"
_MINUTES = 5.0  # between two states of a run that can be resumed


class Schedule(StrEnum):
    """How the learning rate falls after the warm-up, which takes a tenth of the steps."""

    linear = "linear"
    cosine = "cosine"
    constant = "constant"
    inverse_square_root = "inverse_square_root"


ClassWeight = Annotated[
    list[str] | None,
    typer.Option(
        "--class-weight",
        metavar="CLASS=WEIGHT",
        help="Weight of the examples of a class in the loss, such as spam=5; may be given several times. Or balanced: "
        "all classes have the same total weight.",
    ),
]
Patience = Annotated[
    int | None,
    typer.Option(
        "--patience",
        min=1,
        help="Stop after this many epochs without a lower validation loss; keep the best weights.",
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        help="Folder, or URL such as s3://bucket/run, for the state of the run: the same command continues a stopped "
        "run.",
    ),
]
ScheduleOption = Annotated[
    Schedule,
    typer.Option("--schedule", help="How the learning rate falls after the warm-up over a tenth of the steps."),
]


def class_weights(given: Sequence[str], counts: Mapping[str, int]) -> dict[str, float]:
    """The weights of all classes, 1 for those that are not given.

    Args:
        given: the values of `--class-weight`.
        counts: number of training examples of each class.

    Raises:
        ValueError: for an unknown class, or a weight that is not a number of at least 0.
    """
    if given == [_BALANCED]:
        total = sum(counts.values())
        return {name: total / (len(counts) * count) for name, count in counts.items() if count}
    weights = dict.fromkeys(counts, 1.0)
    for entry in given:
        name, _, number = entry.rpartition("=")
        if name not in counts:
            raise ValueError(
                f"--class-weight takes {_BALANCED}, or a class and its weight such as {next(iter(counts))}=2, got "
                f"{entry!r}.{near_names(name or entry, list(counts))}"
            )
        try:
            weights[name] = float(number)
        except ValueError:
            weights[name] = math.nan
        if not 0 <= weights[name] < math.inf:
            raise ValueError(f"--class-weight: the weight of {name} must be a number of at least 0, got {number!r}.")
    return weights


def callbacks(patience: int | None, checkpoint: str | None, seen: Callable[[], None]) -> list[keras.callbacks.Callback]:
    """The callbacks of `fit`; `seen` is called after each step."""
    import keras

    from lmzoo.training import ResumableCheckpoint

    found: list[keras.callbacks.Callback] = [
        keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen())
    ]
    if patience is not None:
        found.append(keras.callbacks.EarlyStopping("val_loss", patience=patience, restore_best_weights=True))
    if checkpoint is not None:
        found.append(ResumableCheckpoint(checkpoint, minutes=_MINUTES))
    return found
