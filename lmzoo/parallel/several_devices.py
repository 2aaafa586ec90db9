"""Training and prediction on several devices with JAX, with batches of any size."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from lmzoo.common.changing_ranks import ChangingRanksModel
from lmzoo.common.tensor_types import Tensor, Tensors
from lmzoo.common.weights_in_place import lock_jax, restore_weights_on_error
from lmzoo.parallel.processes import convert_lost_process_errors, has_several_processes, process_index


class SeveralDevicesModel(ChangingRanksModel):
    """Keras model that accepts batches of any size under a `keras.distribution` on JAX.

    Keras splits all batches like the first batch, and JAX rejects a batch that cannot be split evenly, such as the last
    batch of an epoch. Here, each device gets whole batches, which are small compared with the weights, and the compiled
    step takes the device's share. If a batch cannot be split evenly, every device computes the whole batch, so that the
    loss and metrics are the same as on one device. Rows of padding would change both: even with weight 0, these rows
    would count in metrics without weights, and as wrong answers in losses that compare the texts of a batch. If the
    devices belong to several processes, each process makes all batches and gets all predictions.
    """

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        with give_whole_batches(), restore_weights_on_error(self):
            return super().fit(*args, **_silence_other_processes(kwargs))

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        with lock_jax(), give_whole_batches(), restore_weights_on_error(self):
            return super().evaluate(*args, **_silence_other_processes(kwargs))

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        with lock_jax(), give_whole_batches(), restore_weights_on_error(self):
            return super().predict(*args, **_silence_other_processes(kwargs))

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        with give_whole_batches(), restore_weights_on_error(self):
            return super().train_on_batch(*args, **kwargs)

    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        with lock_jax(), give_whole_batches(), restore_weights_on_error(self):
            return super().test_on_batch(*args, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        with lock_jax(), give_whole_batches():
            return super().predict_on_batch(x)

    # The batch is the last argument: on JAX, the training state precedes it.

    def train_step(self, *args: Any) -> Any:
        """Train on a batch, which is split between the devices if possible."""
        return super().train_step(*args[:-1], split_evenly(args[-1]))

    def test_step(self, *args: Any) -> Any:
        """Evaluate a batch, which is split between the devices if possible."""
        return super().test_step(*args[:-1], split_evenly(args[-1]))

    def predict_step(self, *args: Any) -> Any:
        """Predict for a batch, split between the devices if possible, and return all outputs in every process."""
        step_result = super().predict_step(*args[:-1], split_evenly(args[-1]))
        if not has_several_processes():
            return step_result
        outputs, *state = step_result
        return keras.tree.map_structure(copy_to_every_process, outputs), *state


def _silence_other_processes(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return keyword arguments of `fit`, `evaluate` or `predict`, with `verbose=0` in all processes but process 0."""
    return {**arguments, "verbose": 0} if process_index() else arguments


class WholeBatches(keras.distribution.ModelParallel):
    """Distribution that gives every device whole batches, with the weight layouts of another distribution.

    Args:
        distribution: the distribution that defines the devices and the layouts of weights.
    """

    def __init__(self, distribution: keras.distribution.DataParallel | keras.distribution.ModelParallel) -> None:
        super().__init__(
            layout_map=keras.distribution.LayoutMap(distribution.device_mesh),
            batch_dim_name=distribution.batch_dim_name,
            auto_shard_dataset=False,  # sharding would give each process only a part of a batch
        )
        self.distribution = distribution

    def get_data_layout(self, data_shape: Sequence[int]) -> keras.distribution.TensorLayout:
        """Return the layout for an array in a batch: a whole copy on every device."""
        return _make_whole_layout(data_shape)

    def get_variable_layout(self, variable: keras.Variable) -> keras.distribution.TensorLayout:
        """Return the layout of a variable in the wrapped distribution."""
        return self.distribution.get_variable_layout(variable)

    def get_tensor_layout(self, path: str) -> keras.distribution.TensorLayout | None:
        """Return the wrapped distribution's layout of a tensor inside the model, or None if there is none."""
        return self.distribution.get_tensor_layout(path)

    def split(self, array: Tensor | None) -> Tensor | None:
        """Split an array of a batch between the devices, or return it unchanged if it is None or not divisible."""
        mesh = self.device_mesh
        if array is None or array.shape[0] % mesh.shape[mesh.axis_names.index(self.batch_dim_name)]:
            return array
        return keras.distribution.distribute_tensor(array, self.distribution.get_data_layout(array.shape))


@contextlib.contextmanager
def give_whole_batches() -> Iterator[None]:
    """Give every device whole batches in the block, for `split_evenly` to split, and convert errors of lost processes.

    Without a `keras.distribution`, the block runs unchanged.
    """
    distribution = keras.distribution.distribution()
    if distribution is None or isinstance(distribution, WholeBatches):
        yield
        return
    with WholeBatches(distribution).scope(), convert_lost_process_errors():
        yield


def split_evenly(batch: Tensors) -> Tensors:
    """Split each array in a batch between the devices if it can be split evenly.

    Outside of `give_whole_batches`, the batch is returned unchanged.
    """
    distribution = keras.distribution.distribution()
    if not isinstance(distribution, WholeBatches):
        return batch
    return keras.tree.map_structure(distribution.split, batch)


def copy_to_every_process(array: Tensor) -> Tensor:
    """Return the array in a form that every process can read: with several processes, a whole copy on every device."""
    if not has_several_processes():
        return array
    return keras.distribution.distribute_tensor(array, _make_whole_layout(array.shape))


def _make_whole_layout(shape: Sequence[int]) -> keras.distribution.TensorLayout:
    return keras.distribution.TensorLayout([None] * len(shape), keras.distribution.distribution().device_mesh)
