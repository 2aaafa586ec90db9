"""Protection of a model's weights on JAX, where Keras removes them from the model during training."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import keras

_JAX_LOCK = threading.RLock()


def lock_jax() -> contextlib.AbstractContextManager[Any]:
    """Return a lock that lets one thread at a time use weights on JAX, or a null context on other backends."""
    return _JAX_LOCK if keras.backend.backend() == "jax" else contextlib.nullcontext()


@contextlib.contextmanager
def restore_weights_on_error(model: keras.Model) -> Iterator[None]:
    """Restore the variables of a model and its optimizer if the block fails (JAX only).

    Keras itself restores variables only if training succeeds. After an error, metrics are reset, since Keras may have
    created them in the block.
    """
    if keras.backend.backend() != "jax":
        yield
        return
    optimizer = getattr(model, "optimizer", None)
    optimizer_variables = optimizer.variables if optimizer else ()
    variables = [*model.trainable_variables, *model.non_trainable_variables, *optimizer_variables]
    values = [variable.value for variable in variables]
    try:
        yield
    except BaseException:
        lost_pairs = [pair for pair in zip(variables, values, strict=True) if _is_lost(pair[0])]
        if any(value.is_deleted() for _, value in lost_pairs):  # a step has consumed the values and returned new ones
            model.jax_state_sync()
        for variable, value in lost_pairs:
            if _is_lost(variable) and not value.is_deleted():
                variable.assign(value)
        model.reset_metrics()
        raise


def _is_lost(variable: keras.Variable) -> bool:
    """Return whether a variable has no value, or a value whose buffer JAX has deleted."""
    try:
        return bool(variable.value.is_deleted())
    except TypeError:  # for a variable without a value, Keras calls the initializer, which is None
        return True
