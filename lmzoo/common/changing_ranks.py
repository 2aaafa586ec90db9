"""Training, evaluation and prediction on batches whose arrays have other numbers of axes than before."""

from __future__ import annotations

from typing import Any

import keras


class ChangingRanksModel(keras.Model):
    """Keras model whose batches may change their numbers of axes from one call to the next.

    On TensorFlow, Keras compiles each step once for all shapes: after batches of two ranks, TensorFlow traces the step
    for tensors of unknown rank, which layers and losses reject. Here a compiled function is dropped when the ranks of
    its features or targets change. Other backends compile each shape separately.
    """

    _train_ranks: tuple[int, ...] | None = None  # of the last batches of `train_function`
    _test_ranks: tuple[int, ...] | None = None
    _predict_ranks: tuple[int, ...] | None = None

    def fit(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        self._prepare_to_train(x, y)
        return super().fit(x, y, *args, **kwargs)

    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        self._prepare_to_test(x, y)
        return super().evaluate(x, y, *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        self._prepare_to_predict(x)
        return super().predict(x, *args, **kwargs)

    def train_on_batch(self, x: Any, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        self._prepare_to_train(x, y)
        return super().train_on_batch(x, y, *args, **kwargs)

    def test_on_batch(self, x: Any, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        self._prepare_to_test(x, y)
        return super().test_on_batch(x, y, *args, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        self._prepare_to_predict(x)
        return super().predict_on_batch(x)

    def _prepare_to_train(self, x: Any, y: Any) -> None:
        """Drop the compiled training step if the ranks of the batches have changed."""
        ranks = _find_ranks(x, y)
        if ranks is None:
            return
        if self._train_ranks not in (None, ranks):
            self.train_function = None
        self._train_ranks = ranks

    def _prepare_to_test(self, x: Any, y: Any) -> None:
        """Drop the compiled evaluation step if the ranks of the batches have changed."""
        ranks = _find_ranks(x, y)
        if ranks is None:
            return
        if self._test_ranks not in (None, ranks):
            self.test_function = None
        self._test_ranks = ranks

    def _prepare_to_predict(self, x: Any) -> None:
        """Drop the compiled prediction step if the ranks of the batches have changed."""
        ranks = _find_ranks(x)
        if ranks is None:
            return
        if self._predict_ranks not in (None, ranks):
            self.predict_function = None
        self._predict_ranks = ranks


def _find_ranks(*data: Any) -> tuple[int, ...] | None:
    """Return the number of axes of each array in the batches of `data`; None if it is unknown or does not matter.

    Args:
        *data: features and targets, arrays or a `tf.data.Dataset`; None is skipped.
    """
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    specs = [getattr(part, "element_spec", part) for part in data if part is not None]
    ranks = [tf.TensorShape(getattr(spec, "shape", None)).rank for spec in keras.tree.flatten(specs)]
    return None if None in ranks else tuple(ranks)
