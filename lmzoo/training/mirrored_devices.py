"""Steps of a model on the devices of a `tf.distribute.MirroredStrategy`, which compute what one device computes.

Keras 3 alone computes something else: it averages the losses of unequal parts of a batch as if they were equal, clips
the gradients of each part instead of their sum, cannot accumulate them, and fails if the first batch does not divide.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from lmzoo.common.tensor_types import Tensor, Tensors


class WholeBatches:
    """A strategy for Keras' trainer that gives whole batches to every device, and takes what the first one returns.

    Batches are small next to the weights, and the steps below take the device's part of them. Other attributes are
    those of `strategy`.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy

    def __getattr__(self, name: str) -> Any:
        return getattr(self.strategy, name)

    def experimental_distribute_dataset(self, dataset: tf.data.Dataset) -> Any:
        """Return the batches, each of them once for every device."""
        grouped = isinstance(dataset.element_spec, tuple)

        def copies(*batch: Tensors) -> tf.data.Dataset:
            one = tf.data.Dataset.from_tensors(batch if grouped else batch[0])
            return one.repeat(self.strategy.num_replicas_in_sync)

        return self.strategy.distribute_datasets_from_function(lambda context: dataset.flat_map(copies))

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """Return the result of the first device, which is that of all."""
        return self.strategy.experimental_local_results(value)[:1]

    def reduce(self, reduce_op: Any, value: Any, axis: int | None) -> Any:
        """Return the batch of the first device, which is that of all."""
        return keras.tree.map_structure(lambda part: self.experimental_local_results(part)[0], value)


def check_model(model: keras.Model, training: bool) -> None:
    """See `SeveralDevicesModel.check_strategy`."""
    strategy = model.distribute_strategy
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        raise ValueError(
            "Keras 3 cannot train on a MultiWorkerMirroredStrategy: it fails to make tensors of its PerReplica "
            "values. Use the JAX backend and `lmzoo.distribution.initialize` for several processes, or a "
            "`tf.distribute.MirroredStrategy` for the devices of one."
        )
    if not isinstance(strategy, WholeBatches):
        return
    if not isinstance(strategy.strategy, tf.distribute.MirroredStrategy):
        refused = f"a {type(strategy.strategy).__name__} is not a MirroredStrategy"
    elif model.jit_compile:
        refused = "XLA cannot compile it: leave out `jit_compile=True`"
    elif model.steps_per_execution != 1:
        refused = "it needs `steps_per_execution=1`"
    elif training and not model.splits_batches:
        refused = f"a {type(model).__name__} carries states from batch to batch, which these cannot share"
    elif training and _unscaled(model.optimizer).gradient_accumulation_steps:
        refused = "Keras cannot accumulate gradients there: TensorFlow takes no `merge_call` in its condition"
    else:
        check_scope(model.variables)
        return
    raise ValueError(
        f"This model cannot be {'trained' if training else 'used'} on the {strategy.num_replicas_in_sync} devices of a "
        f"tf.distribute.Strategy: {refused}. Or use the JAX backend, with `keras.distribution.DataParallel`."
    )


def _unscaled(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return the optimizer inside of the one that scales the loss in float16."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def check_scope(variables: Iterable[keras.Variable]) -> None:
    """See `SeveralDevicesModel.check_scope`."""
    for variable in variables:
        if not isinstance(variable.value, tf.distribute.DistributedValues):
            raise ValueError(
                f"{variable.path!r} was made outside of the scope of the tf.distribute.Strategy: make the model, its "
                "optimizer and its metrics in `with strategy.scope():`."
            )


def on_several_devices() -> bool:
    """Return whether this is one of several devices in a step."""
    context = tf.distribute.get_replica_context()
    return context is not None and context.num_replicas_in_sync > 1


def train_step(model: keras.Model, data: Any) -> dict[str, Tensor]:
    """See `keras.Model.train_step`."""
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        loss, metrics = _forward(model, data, training=True)
        loss = model.optimizer.scale_loss(loss)
    pairs = [(g, v) for g, v in zip(tape.gradient(loss, variables), variables, strict=True) if g is not None]
    gradients, used = [g for g, _ in pairs], [v for _, v in pairs]
    if any(getattr(_unscaled(model.optimizer), limit) for limit in ("clipnorm", "clipvalue", "global_clipnorm")):
        # Keras clips before it sums: the first device has the sum, the others have nothing to add.
        context = tf.distribute.get_replica_context()
        whole = context.all_reduce(tf.distribute.ReduceOp.SUM, [tf.convert_to_tensor(g) for g in gradients])
        first = context.replica_id_in_sync_group == 0
        gradients = [tf.where(first, gradient, tf.zeros_like(gradient)) for gradient in whole]
    model.optimizer.apply(gradients, used)
    return metrics()


def test_step(model: keras.Model, data: Any) -> dict[str, Tensor]:
    """See `keras.Model.test_step`."""
    return _forward(model, data, training=False)[1]()


def predict_step(model: keras.Model, data: Any) -> Tensors:
    """See `keras.Model.predict_step`."""
    return _outputs(model, keras.utils.unpack_x_y_sample_weight(data)[0], training=False)


def _forward(model: keras.Model, data: Any, training: bool) -> tuple[Tensor, Any]:
    """Return the device's share of the loss of a batch, and a function that updates the metrics and returns them."""
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    outputs = _outputs(model, x, training)
    loss = model.compute_loss(x, y, outputs, weights, training)  # divided by the number of devices
    tracker = next(metric for metric in model.metrics if metric.name == "loss")
    count = tf.shape(keras.tree.flatten(outputs)[0])[0]
    tracker.update_state(loss * tf.distribute.get_strategy().num_replicas_in_sync, sample_weight=count)
    return loss, lambda: model.compute_metrics(x, y, outputs, weights)


def _outputs(model: keras.Model, x: Tensors, training: bool) -> Tensors:
    """Return the outputs for a batch, whole on every device, each of which computes a part.

    A batch that does not divide is computed by every device.
    """
    context = tf.distribute.get_replica_context()
    devices = context.num_replicas_in_sync
    rows = tf.shape(next(leaf for leaf in keras.tree.flatten(x) if leaf is not None))[0]
    even = model.splits_batches and rows % devices == 0
    count = tf.where(even, rows // devices, rows)
    start = tf.where(even, context.replica_id_in_sync_group * count, 0)
    part = keras.tree.map_structure(lambda leaf: None if leaf is None else leaf[start : start + count], x)
    outputs = model(part, training=training)

    def whole(output: Tensor) -> Tensor:
        return tf.ensure_shape(context.all_gather(output, axis=0)[:rows], [None, *output.shape[1:]])

    return keras.tree.map_structure(whole, outputs)
