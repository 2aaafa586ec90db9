"""Stops a training whose loss is no longer a number."""

from __future__ import annotations

import math

import keras

from lmzoo.errors import NotFiniteError


class StopOnDivergence(keras.callbacks.Callback):
    """A callback that raises an error in the first step whose loss is NaN or infinite; the `fit` of every task has one.

    Its weights are lost then, and what other callbacks would save of them is worthless: so none of them is called.
    A `keras.callbacks.TerminateOnNaN` among the callbacks of `fit` replaces it: training stops without an error.

    It costs nothing, since Keras turns the loss of every step into a Python number for its callbacks.

    Example:

    ```python
    import keras
    import numpy as np
    import lmzoo

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    try:
        stop = lmzoo.training.divergence.StopOnDivergence()
        model.fit(np.array([[np.nan]]), np.array([[1.0]]), callbacks=[stop], verbose=0)
    except lmzoo.errors.NotFiniteError as error:
        print(error)
    ```
    """

    async_safe = True  # Keras on JAX need not wait for it

    def __init__(self) -> None:
        super().__init__()
        self._epoch = 0
        self._step: int | None = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Remember the epoch."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Check the loss, Keras' mean over the steps of the epoch, which is not finite from the first such step on.

        Raises:
            NotFiniteError: naming the step.
        """
        loss = (logs or {}).get("loss", 0.0)
        if math.isfinite(loss):
            return
        self._step = batch + 1 if self._step is None else self._step  # where Keras calls late, it may be a later one
        raise NotFiniteError(
            f"Training diverged: the loss is {loss} in step {self._step} of epoch {self._epoch + 1}. The weights are "
            "lost; load or build the model again, and train it with a lower learning rate, a longer warm-up or "
            "gradients clipped by `global_clipnorm=1.0`. In float16, try bfloat16 or float32."
        )
