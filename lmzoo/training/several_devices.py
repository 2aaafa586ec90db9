"""Models that train and predict on several devices with batches of any size."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import keras

from lmzoo.common.tensor_types import Tensor, Tensors
from lmzoo.parallel.processes import naming_lost_processes, process_index, several_processes
from lmzoo.training.weights_in_place import kept_weights, one_thread


class SeveralDevicesModel(keras.Model):
    """A model whose batches need not divide by the devices that train it.

    On TensorFlow these are the devices of a `tf.distribute.MirroredStrategy`: see `lmzoo.training.mirrored_devices`. On
    JAX they are those of a `keras.distribution`: Keras splits all batches as it splits the first one, and JAX refuses a
    batch that cannot be split evenly, such as the last one of an epoch. Here each device gets whole batches, which are
    small next to the weights, and the compiled step takes the device's part of them. A batch that does not divide is
    computed by every device, so that its loss and metrics are those of one device. If the devices belong to several
    processes, each of these makes all batches, and gets all predictions.
    """

    splits_batches = True  # whether several devices may compute parts of a batch, or each needs all of it

    @property
    def distribute_strategy(self) -> Any:
        """The `tf.distribute.Strategy` that the model was built in, or the current one; None on other backends."""
        strategy = getattr(super(), "distribute_strategy", None)
        if strategy is None or strategy.num_replicas_in_sync == 1:
            return strategy
        from lmzoo.training.mirrored_devices import WholeBatches

        return WholeBatches(strategy)

    def device_scope(self) -> contextlib.AbstractContextManager[Any]:
        """Return the scope of `distribute_strategy`; an empty one if there is none."""
        return contextlib.nullcontext() if self.distribute_strategy is None else self.distribute_strategy.scope()

    def check_strategy(self, training: bool = True) -> None:
        """Check that the model can be trained, or only used, on its `tf.distribute.Strategy`.

        Raises:
            ValueError: for a strategy that is not a `tf.distribute.MirroredStrategy`, weights that were not made in its
                scope, and what does not work on several devices.
        """
        if keras.backend.backend() == "tensorflow":
            from lmzoo.training.mirrored_devices import check_model

            check_model(self, training)

    def check_scope(self, variables: Iterable[keras.Variable]) -> None:
        """Check that some variables are on all devices of the model's `tf.distribute.Strategy`.

        Raises:
            ValueError: naming one that was made outside of its scope.
        """
        strategy = self.distribute_strategy
        if strategy is not None and strategy.num_replicas_in_sync > 1:
            from lmzoo.training.mirrored_devices import check_scope

            check_scope(variables)

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """See `keras.Model.fit`."""
        self.check_strategy()
        with whole_batches(), kept_weights(self):
            return super().fit(*args, **_shown_once(kwargs))

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """See `keras.Model.evaluate`."""
        self.check_strategy(training=False)
        with one_thread(), whole_batches(), kept_weights(self):
            return super().evaluate(*args, **_shown_once(kwargs))

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """See `keras.Model.predict`."""
        self.check_strategy(training=False)
        with one_thread(), whole_batches(), kept_weights(self):
            return super().predict(*args, **_shown_once(kwargs))

    # On JAX, steps also take the state of the training, before the batch.

    def train_step(self, *args: Any) -> Any:
        """See `keras.Model.train_step`."""
        if (steps := _mirrored_steps()) is not None:
            return steps.train_step(self, *args)
        return super().train_step(*args[:-1], split_evenly(args[-1]))

    def test_step(self, *args: Any) -> Any:
        """See `keras.Model.test_step`."""
        if (steps := _mirrored_steps()) is not None:
            return steps.test_step(self, *args)
        return super().test_step(*args[:-1], split_evenly(args[-1]))

    def predict_step(self, *args: Any) -> Any:
        """See `keras.Model.predict_step`."""
        if (steps := _mirrored_steps()) is not None:
            return steps.predict_step(self, *args)
        found = super().predict_step(*args[:-1], split_evenly(args[-1]))
        if not several_processes():
            return found
        outputs, *state = found
        return keras.tree.map_structure(on_every_process, outputs), *state


def _mirrored_steps() -> ModuleType | None:
    """Return the steps of one of several devices on TensorFlow; None elsewhere."""
    if keras.backend.backend() != "tensorflow":
        return None
    from lmzoo.training import mirrored_devices

    return mirrored_devices if mirrored_devices.on_several_devices() else None


def _shown_once(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of `fit` with which only one of several processes shows progress."""
    return {**arguments, "verbose": 0} if process_index() else arguments


@contextlib.contextmanager
def whole_batches() -> Iterator[None]:
    """Within it, the current distribution gives every device whole batches, which `split_evenly` splits."""
    distribution = keras.distribution.distribution()
    if distribution is None or hasattr(distribution, "split_layout"):
        yield
        return

    changed = copy.copy(distribution)
    changed.split_layout, changed.get_data_layout = distribution.get_data_layout, _whole_layout
    changed.auto_shard_dataset = False  # which would leave each process a part of a batch that it should have whole
    with changed.scope(), naming_lost_processes():
        yield


def _whole_layout(shape: tuple[int, ...]) -> keras.distribution.TensorLayout:
    return keras.distribution.TensorLayout([None] * len(shape), keras.distribution.distribution().device_mesh)


def on_every_process(array: Tensor) -> Tensor:
    """Return the array; if several processes have parts of it, the whole array on every device, which all can read."""
    if not several_processes():
        return array
    return keras.distribution.distribute_tensor(array, _whole_layout(array.shape))


def split_evenly(batch: Tensors) -> Tensors:
    """Split the arrays of a whole batch between the devices, if they can be split evenly."""
    distribution = keras.distribution.distribution()
    layout_of = getattr(distribution, "split_layout", None)
    if layout_of is None:
        return batch
    sizes = dict(zip(distribution.device_mesh.axis_names, distribution.device_mesh.shape, strict=True))

    def split(array: Any) -> Any:
        if array is None or array.shape[0] % sizes[distribution.batch_dim_name]:
            return array
        return keras.distribution.distribute_tensor(array, layout_of(array.shape))

    return keras.tree.map_structure(split, batch)
