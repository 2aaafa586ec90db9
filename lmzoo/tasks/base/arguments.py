"""Checks of the arguments of `fit`, `evaluate` and `predict`, and of argument names in constructors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import keras

from lmzoo.common.arguments import is_integer, refuse_arguments, require, require_share

# Argument -> its smallest valid value, and advice on smaller values.
_COUNT_LIMITS = {
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
_REJECT_NONE = ("epochs", "initial_epoch", "seed", "validation_freq")


def check_arguments(**arguments: object) -> None:
    """Check counts, callbacks and the validation split among a method's arguments.

    Other arguments are ignored. None is accepted, except for `epochs`, `initial_epoch`, `seed` and `validation_freq`.

    Raises:
        TypeError: If `callbacks` are not Keras callbacks.
        ValueError: If a count is too small or not an integer (the message names the argument), or `validation_split` is
            not in [0, 1).
    """
    for name, value in arguments.items():
        # `validation_freq` may also be a list of the epochs after which to validate.
        lists_epochs = name == "validation_freq" and isinstance(value, (list, tuple, set))
        if name in _COUNT_LIMITS and not lists_epochs and (value is not None or name in _REJECT_NONE):
            minimum, advice = _COUNT_LIMITS[name]
            require(is_integer(value, minimum), name, f"an integer of at least {minimum}", value, advice)
    if arguments.get("validation_split") is not None:
        require_share("validation_split", arguments["validation_split"])
    for callback in list_callbacks(arguments.get("callbacks")):
        if not isinstance(callback, keras.callbacks.Callback):
            raise TypeError(f"`callbacks` must be a list of Keras callbacks, got {callback!r:.60} in it.")


def list_callbacks(callbacks: object) -> list[keras.callbacks.Callback]:
    """Return the argument `callbacks` of `fit` (a list, one callback, Keras' `CallbackList` or None) as a list."""
    callbacks = getattr(callbacks, "callbacks", callbacks)
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, Sequence) and not isinstance(callbacks, str) else [callbacks]


def check_top_k(top_k: int) -> None:
    """Check that `top_k`, the number of answers to return, is a positive integer.

    Raises:
        ValueError: If `top_k` is not a positive integer.
    """
    require(is_integer(top_k, 1), "top_k", "a positive integer", top_k)


class KnownArguments:
    """Mixin whose constructor rejects unknown arguments with advice.

    Attributes:
        instead_of: dict from argument names of other libraries to a sentence of advice.
    """

    instead_of: ClassVar[Mapping[str, str]] = {"compile": "A task is compiled with its defaults: call `compile` later."}
    from_preset: ClassVar[Callable[..., Any]]  # defined by `Task`; its arguments are among the suggestions

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Check the names of keyword arguments before construction.

        Raises:
            TypeError: If an argument is not a parameter of the constructor.
        """
        parameters = inspect.signature(cls).parameters
        if not any(p.kind == p.VAR_KEYWORD for p in parameters.values()):
            valid_parameters = {**parameters, **inspect.signature(cls.from_preset).parameters}
            refuse_arguments(cls.__name__, kwargs.keys() - parameters.keys(), cls.instead_of, valid_parameters)
        return super().__new__(cls, *args, **kwargs)
