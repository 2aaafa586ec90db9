"""Models that train and predict on several devices of JAX with batches of any size."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from lmzoo.common.tensor_types import Tensor, Tensors
from lmzoo.common.weights_in_place import kept_weights, one_thread
from lmzoo.parallel.processes import naming_lost_processes, process_index, several_processes


class SeveralDevicesModel(keras.Model):
    """A model whose batches need not divide by the devices of a `keras.distribution`, which JAX computes with.

    Keras splits all batches as it splits the first one, and JAX refuses a batch that cannot be split evenly, such as
    the last one of an epoch. Here each device gets whole batches, which are small next to the weights, and the compiled
    step takes the device's part of them. A batch that does not divide is computed by every device, so that its loss and
    metrics are those of one device. If the devices belong to several processes, each of these makes all batches, and
    gets all predictions.
    """

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        with whole_batches(), kept_weights(self):
            return super().fit(*args, **_shown_once(kwargs))

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        with one_thread(), whole_batches(), kept_weights(self):
            return super().evaluate(*args, **_shown_once(kwargs))

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        with one_thread(), whole_batches(), kept_weights(self):
            return super().predict(*args, **_shown_once(kwargs))

    def predict_on_batch(self, x: Any) -> Any:
        with one_thread():
            return super().predict_on_batch(x)

    # On JAX, steps also take the state of the training, before the batch.

    def train_step(self, *args: Any) -> Any:
        """Train on a batch, of which each device computes a part."""
        return super().train_step(*args[:-1], split_evenly(args[-1]))

    def test_step(self, *args: Any) -> Any:
        """Evaluate a batch, of which each device computes a part."""
        return super().test_step(*args[:-1], split_evenly(args[-1]))

    def predict_step(self, *args: Any) -> Any:
        """Predict for a batch, of which each device computes a part; every process gets the whole."""
        predicted = super().predict_step(*args[:-1], split_evenly(args[-1]))
        if not several_processes():
            return predicted
        outputs, *state = predicted
        return keras.tree.map_structure(on_every_process, outputs), *state


def _shown_once(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of `fit` with which only one of several processes shows progress."""
    return {**arguments, "verbose": 0} if process_index() else arguments


class WholeBatches(keras.distribution.ModelParallel):
    """A distribution that gives every device whole batches, and splits weights as another one does.

    Args:
        distribution: the other one.
    """

    def __init__(self, distribution: keras.distribution.DataParallel | keras.distribution.ModelParallel) -> None:
        super().__init__(
            layout_map=keras.distribution.LayoutMap(distribution.device_mesh),
            batch_dim_name=distribution.batch_dim_name,
            auto_shard_dataset=False,  # which would leave each process a part of a batch that it should have whole
        )
        self.distribution = distribution

    def get_data_layout(self, data_shape: Sequence[int]) -> keras.distribution.TensorLayout:
        """Return the layout of an array of a batch: the whole of it on every device."""
        return _whole_layout(data_shape)

    def get_variable_layout(self, variable: keras.Variable) -> keras.distribution.TensorLayout:
        """Return the other distribution's layout of a variable."""
        return self.distribution.get_variable_layout(variable)

    def get_tensor_layout(self, path: str) -> keras.distribution.TensorLayout | None:
        """Return the other distribution's layout of a tensor inside the model."""
        return self.distribution.get_tensor_layout(path)

    def split(self, array: Tensor | None) -> Tensor | None:
        """Split an array of a whole batch between the devices, if it can be split evenly."""
        mesh = self.device_mesh
        if array is None or array.shape[0] % mesh.shape[mesh.axis_names.index(self.batch_dim_name)]:
            return array
        return keras.distribution.distribute_tensor(array, self.distribution.get_data_layout(array.shape))


@contextlib.contextmanager
def whole_batches() -> Iterator[None]:
    """Within it, the current distribution gives every device whole batches, which `split_evenly` splits."""
    distribution = keras.distribution.distribution()
    if distribution is None or isinstance(distribution, WholeBatches):
        yield
        return
    with WholeBatches(distribution).scope(), naming_lost_processes():
        yield


def split_evenly(batch: Tensors) -> Tensors:
    """Split the arrays of a whole batch between the devices, if they can be split evenly."""
    distribution = keras.distribution.distribution()
    if not isinstance(distribution, WholeBatches):
        return batch
    return keras.tree.map_structure(distribution.split, batch)


def on_every_process(array: Tensor) -> Tensor:
    """Return the array; if several processes have parts of it, the whole array on every device, which all can read."""
    if not several_processes():
        return array
    return keras.distribution.distribute_tensor(array, _whole_layout(array.shape))


def _whole_layout(shape: Sequence[int]) -> keras.distribution.TensorLayout:
    return keras.distribution.TensorLayout([None] * len(shape), keras.distribution.distribution().device_mesh)
