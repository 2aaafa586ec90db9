"""Arguments of `fit`, `evaluate` and `predict` that are counts, checked before anything is built."""

from __future__ import annotations

import numbers

# The least value of each, and what to do instead of passing a smaller one.
_COUNTS = {
    "batch_size": (1, "Omit it for the default size."),
    "epochs": (0, "1 trains on every example once."),
    "initial_epoch": (0, "0 is the first epoch."),
    "steps": (1, "Omit it to use all batches."),
    "steps_per_epoch": (1, "Omit it to use all batches."),
    "validation_batch_size": (1, "Omit it for the default size."),
    "validation_steps": (1, "Omit it to use all batches."),
}
_REQUIRED = ("epochs", "initial_epoch")


def check_arguments(**arguments: object) -> None:
    """Checks those of some arguments that are counts; the others are ignored, and None stands for a default.

    Raises:
        ValueError: naming the first that is not an integer or too small.
    """
    for name, value in arguments.items():
        if name not in _COUNTS or (value is None and name not in _REQUIRED):
            continue
        least, advice = _COUNTS[name]
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
            raise ValueError(f"`{name}` must be an integer of at least {least}, got {value!r:.60}. {advice}")


def check_top_k(top_k: int) -> None:
    """Checks a number of answers to return.

    Raises:
        ValueError: if it is not a positive integer.
    """
    if not isinstance(top_k, numbers.Integral) or top_k < 1:
        raise ValueError(f"`top_k` must be a positive integer, got {top_k!r}.")
