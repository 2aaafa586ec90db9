"""Keeps the weights in a model. On JAX, Keras takes them out while it computes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import keras

_TURN = threading.RLock()


def one_thread() -> contextlib.AbstractContextManager[Any]:
    """Let other threads wait on JAX while the block runs: they might use the same weights."""
    return _TURN if keras.backend.backend() == "jax" else contextlib.nullcontext()


@contextlib.contextmanager
def kept_weights(model: keras.Model) -> Iterator[None]:
    """After an error or Ctrl-C in the body of a `with` block on JAX, model and optimizer have their variables again.

    Keras puts them back only if nothing fails. Metrics begin anew: Keras may have created them in the block.
    """
    if keras.backend.backend() != "jax":
        yield
        return
    optimizer = getattr(model, "optimizer", None)
    of_optimizer = optimizer.variables if optimizer else ()
    variables = [*model.trainable_variables, *model.non_trainable_variables, *of_optimizer]
    before = [variable.value for variable in variables]
    try:
        yield
    except BaseException:
        lost = [pair for pair in zip(variables, before, strict=True) if _is_lost(pair[0])]
        if any(value.is_deleted() for _, value in lost):  # a step has taken them over, and returned others
            model.jax_state_sync()
        for variable, value in lost:
            if _is_lost(variable) and not value.is_deleted():
                variable.assign(value)
        model.reset_metrics()
        raise


def _is_lost(variable: keras.Variable) -> bool:
    try:
        return bool(variable.value.is_deleted())
    except TypeError:  # without a value, Keras calls its initializer, which is None by then
        return True
