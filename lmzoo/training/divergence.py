"""Callback that stops training when it diverges."""

from __future__ import annotations

import math

import keras

from lmzoo.errors import NotFiniteError


class StopOnDivergence(keras.callbacks.Callback):
    """Callback that raises an error as soon as the loss is NaN or infinite; the `fit` of every task adds one.

    The error prevents other callbacks from saving the useless weights. A `keras.callbacks.TerminateOnNaN` among the
    callbacks of `fit` replaces this callback: training then stops without an error.

    The check costs nothing, since Keras converts the loss of every step to a Python number for its callbacks.

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

    async_safe = True  # on JAX, Keras need not wait for it before the next step

    def __init__(self) -> None:
        super().__init__()
        self._epoch = 0
        self._step: int | None = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Store the epoch for the error message."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Check that the mean loss of the epoch so far is finite.

        Raises:
            NotFiniteError: If the mean loss is not finite; the message names the step.
        """
        loss = (logs or {}).get("loss", 0.0)
        if math.isfinite(loss):
            return
        self._step = batch + 1 if self._step is None else self._step  # asynchronous calls may be for a later step
        raise NotFiniteError(
            f"Training diverged: the loss is {loss} in step {self._step} of epoch {self._epoch + 1}. The weights are "
            "lost; load or build the model again, and train it with a lower learning rate, a longer warm-up or "
            "gradients clipped by `global_clipnorm=1.0`. In float16, try mixed_bfloat16 or float32."
        )
