"""Training, evaluation and prediction with batches of changing rank."""

from __future__ import annotations

from typing import Any

import keras


class ChangingRanksModel(keras.Model):
    """Keras model that accepts batches of a different rank (number of axes) in each call.

    On TensorFlow, Keras compiles the steps of training, evaluation and prediction once for all shapes. After batches of
    two ranks, TensorFlow traces a step for tensors of unknown rank, which layers and losses reject. This class
    therefore drops a compiled step when the ranks of its features or targets change. Other backends compile each shape
    separately.
    """

    _train_ranks: tuple[int, ...] | None = None  # of the batches in the last call of `train_function`
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
    """Return the rank of each array in a batch of `data`, or None if a rank is unknown.

    Also return None on backends other than TensorFlow, where ranks do not matter.

    Args:
        *data: features and targets, arrays or a `tf.data.Dataset`; None is skipped.
    """
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    specs = [getattr(source, "element_spec", source) for source in data if source is not None]
    ranks = [tf.TensorShape(getattr(spec, "shape", None)).rank for spec in keras.tree.flatten(specs)]
    return None if None in ranks else tuple(ranks)
