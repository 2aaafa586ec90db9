"""Arguments of `fit`, `evaluate` and `predict`, and names of constructors' arguments, checked before all else."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import keras

from lmzoo.common.arguments import is_integer, refuse_arguments, require, require_share

# The least value of each, and what to do instead of passing a smaller one.
_COUNTS = {
    "batch_size": (1, "Omit it for the default size."),
    "epochs": (0, "1 trains on every example once."),
    "initial_epoch": (0, "0 is the first epoch."),
    "seed": (0, "Any such number makes a run repeatable."),
    "steps": (1, "Omit it to use all batches."),
    "steps_per_epoch": (1, "Omit it to use all batches."),
    "validation_batch_size": (1, "Omit it for the default size."),
    "validation_freq": (1, "1 validates after every epoch."),
    "validation_steps": (1, "Omit it to use all batches."),
}
_REQUIRED = ("epochs", "initial_epoch", "seed", "validation_freq")


def check_arguments(**arguments: object) -> None:
    """Check those of some arguments that are known here; the others are ignored, and None stands for a default.

    Raises:
        TypeError: for callbacks that are not Keras callbacks.
        ValueError: naming the first count that is not an integer or too small; for a `validation_split` outside of
            [0, 1).
    """
    for name, value in arguments.items():
        epochs = name == "validation_freq" and isinstance(value, (list, tuple, set))  # after which to validate
        if name in _COUNTS and not epochs and (value is not None or name in _REQUIRED):
            least, advice = _COUNTS[name]
            require(is_integer(value, least), name, f"an integer of at least {least}", value, advice)
    if arguments.get("validation_split") is not None:
        require_share("validation_split", arguments["validation_split"])
    for callback in callback_list(arguments.get("callbacks")):
        if not isinstance(callback, keras.callbacks.Callback):
            raise TypeError(f"`callbacks` must be a list of Keras callbacks, got {callback!r:.60} in it.")


def callback_list(callbacks: object) -> list[keras.callbacks.Callback]:
    """Return the `callbacks` of `fit`, a list, one of them or Keras' container of them, as a list."""
    callbacks = getattr(callbacks, "callbacks", callbacks)
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, Sequence) and not isinstance(callbacks, str) else [callbacks]


def check_top_k(top_k: int) -> None:
    """Check a number of answers to return.

    Raises:
        ValueError: if it is not a positive integer.
    """
    require(is_integer(top_k, 1), "top_k", "a positive integer", top_k)


class KnownArguments:
    """A class whose constructor says what to do instead of passing an argument that it does not take.

    Attributes:
        instead_of: what to do, a sentence, by the names that other libraries give to arguments.
    """

    instead_of: ClassVar[Mapping[str, str]] = {}
    from_preset: ClassVar[Callable[..., Any]]  # of `Task`; its arguments may be meant as well

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Check the names of keyword arguments.

        Raises:
            TypeError: for an argument that the constructor does not take.
        """
        parameters = inspect.signature(cls).parameters
        if not any(p.kind == p.VAR_KEYWORD for p in parameters.values()):
            possible = {**parameters, **inspect.signature(cls.from_preset).parameters}
            refuse_arguments(cls.__name__, kwargs.keys() - parameters.keys(), cls.instead_of, possible)
        return super().__new__(cls, *args, **kwargs)
