"""Prediction in batches of sequences of similar length, with outputs in the order of the examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import keras
import numpy as np

from lmzoo.common.log_filters import suppress_log_lines
from lmzoo.common.progress import progress_bar
from lmzoo.common.tensor_types import Tensors
from lmzoo.parallel.several_devices import SeveralDevicesModel
from lmzoo.tasks.base.examples import BATCH_SIZE, Batch, FeatureArrays
from lmzoo.tasks.inputs import Encoder, StreamedExamples, TaskInputs, TextDataset, TokenFeatures
from lmzoo.text import Encoded, LengthBatches
from lmzoo.text.batching import ArrayBatches, fit_buckets, ladder_buckets, smallest_bucket
from lmzoo.text.keras_input import batch_signature, in_memory, keras_input

_MAX_IN_MEMORY = 1024  # up to this many sequences, all features are made before prediction starts
# Up to this many batches are predicted one by one, which takes less time than starting the loop of Keras.
_MAX_BATCHES_WITHOUT_LOOP = 4


class Predictor(Encoder, Protocol):
    """Protocol of a task, with the attributes that prediction needs; see `lmzoo.models.Task`."""

    output: Any
    per_token: bool
    encode_inputs: Callable[[Any], Any]
    features: Callable[[Any, np.ndarray, int], FeatureArrays]
    extra_features: Callable[[Any], FeatureArrays]
    predict_batches: Callable[..., Tensors]
    predict_encoded: Callable[..., Tensors]


def predict(task: Predictor, inputs: TaskInputs, batch_size: int | None, **kwargs: Any) -> Tensors:
    """Return the model's outputs for a task's inputs, in the order of the examples.

    Args:
        task: the task, a Keras model.
        inputs: texts in memory, a dataset of texts, or token features.
        batch_size: int, examples per batch; 32 if None.
        **kwargs: further arguments of `keras.Model.predict`.

    Raises:
        TypeError: If `inputs` is a stream of examples.
    """
    actual_batch_size = batch_size or BATCH_SIZE
    if isinstance(inputs, StreamedExamples):
        raise TypeError("A stream is for `fit` and `evaluate`: predict parts of its texts, such as lists of 1,000.")
    if isinstance(inputs, TokenFeatures):
        return _predict_features(task, inputs.check(task), actual_batch_size, **kwargs)
    if isinstance(inputs, TextDataset):
        # Outputs with dimensions of unknown size are padded to the longest example, which needs all examples in memory.
        if all(None not in output.shape[1:] for output in keras.tree.flatten(task.output)):
            batches = inputs.encoded_batches(
                task, actual_batch_size, lambda x, *_: _make_batch_source(task, task.encode_inputs(x))
            )
            with suppress_retracing_warnings():
                return task.predict_batches(batches, **kwargs)
        inputs = inputs.in_memory(task, actual_batch_size, kwargs.pop("steps", None))
    encoded = task.encode_inputs(inputs.x)
    if (steps := kwargs.pop("steps", None)) is not None:
        encoded = encoded[: steps * actual_batch_size]
    if not len(encoded):
        return _make_empty_outputs(task)
    return task.predict_encoded(encoded, actual_batch_size, **kwargs)


def _predict_features(task: Predictor, inputs: TokenFeatures, batch_size: int, **kwargs: Any) -> Tensors:
    if inputs.is_empty:
        return _make_empty_outputs(task)
    source = inputs.x
    if isinstance(source, Mapping):
        source = _make_prediction_input(ArrayBatches((source, None, None), batch_size))
    with suppress_retracing_warnings():
        return task.predict_batches(source, **kwargs)


def _make_empty_outputs(task: Predictor) -> Tensors:
    """Return the outputs for an empty input: arrays without rows."""
    return keras.tree.map_structure(
        lambda output: np.zeros((0, *(size or 0 for size in output.shape[1:])), "float32"), task.output
    )


def predict_encoded(
    task: Predictor,
    model: SeveralDevicesModel,
    encoded: Encoded,
    batch_size: int,
    per_token: bool | None = None,
    extra: FeatureArrays | None = None,
    **kwargs: Any,
) -> Tensors:
    """Return the model's outputs for one or more encoded examples, in their order.

    Repeated calls use the same batch shapes, and therefore reuse compiled code.

    Args:
        task: task whose `features` the model takes.
        model: the task, or another model with the same inputs.
        encoded: encoded examples.
        batch_size: int, examples per batch.
        per_token: whether the second axis of the outputs is the token axis; None for the task's own setting. Outputs
            per token are zero beyond the padded length of their batch.
        extra: further inputs of the model, a dict of arrays with a row for each example; None for the task's
            `extra_features`. Not used for outputs per token.
        **kwargs: further arguments of `keras.Model.predict`.

    Returns:
        An array with a row for each example, or a structure of such arrays.
    """
    # Repeated calls use the same padded lengths.
    buckets = ladder_buckets(max(task.text_preprocessor.sequence_length, int(encoded.lengths.max())))
    with suppress_retracing_warnings():
        if task.per_token if per_token is None else per_token:
            return _predict_tokens(task, model, encoded, batch_size, buckets, **kwargs)
        if task.jit_compile:
            buckets = _choose_buckets(encoded.lengths, buckets, batch_size)
        batches = _make_prediction_batches(task, encoded, batch_size, buckets, extra)
        outputs = _predict_batches(model, batches, **kwargs)
    example_order = batches.example_order

    def restore_order(output: np.ndarray) -> np.ndarray:  # undoes the sorting by length
        reordered_output = np.empty((len(encoded), *output.shape[1:]), output.dtype)
        reordered_output[example_order] = output
        return reordered_output

    return keras.tree.map_structure(restore_order, outputs)


def _choose_buckets(lengths: np.ndarray, ladder: list[int], batch_size: int) -> list[int]:
    """Return the padded lengths in `ladder` for which to compile the model, given the lengths of the sequences."""
    widths = fit_buckets(lengths, ladder[-1], batch_size=batch_size)
    return sorted({smallest_bucket(ladder, width) for width in widths})


def _predict_batches(
    model: SeveralDevicesModel,
    batches: LengthBatches,
    verbose: bool | int | str = "auto",
    callbacks: list[keras.callbacks.Callback] | None = None,
    **kwargs: Any,
) -> Tensors:
    """Predict all batches and concatenate the outputs, bypassing `keras.Model.predict` where that is faster."""
    uses_several_devices = _uses_several_devices(model)
    if keras.backend.backend() == "tensorflow" and not uses_several_devices:
        _trace_for_all_shapes(model, batches)
    needs_loop = verbose or callbacks or kwargs or uses_several_devices
    # A task overrides these methods to take texts, so call the base class.
    if needs_loop or len(batches) > _MAX_BATCHES_WITHOUT_LOOP:
        dataset = _make_prediction_input(batches)
        return SeveralDevicesModel.predict(model, dataset, verbose=verbose, callbacks=callbacks, **kwargs)
    outputs = [SeveralDevicesModel.predict_on_batch(model, features) for (features,) in batches.batches()]
    return keras.tree.map_structure(lambda *parts: np.concatenate(parts), *outputs)


def _trace_for_all_shapes(model: SeveralDevicesModel, batches: LengthBatches) -> None:
    """Trace TensorFlow's prediction function once for batches of any size and width, unless it exists and is current.

    TensorFlow would otherwise trace it for the shape of the first batch, and again for each axis that changes in size.
    A model that runs eagerly, or runs several steps per execution, is left unchanged.
    """
    previous_function = model.predict_function
    model.make_predict_function()  # drops a function for other weights
    predict_function: Any = model.predict_function
    if predict_function is previous_function or model.run_eagerly or model.steps_per_execution != 1:
        return
    predict_function.get_concrete_function([batch_signature(next(batches.batches()), batches.fixed_shapes)])


def _uses_several_devices(model: SeveralDevicesModel) -> bool:
    """Return whether a model's batches are split over devices, so that `predict_on_batch` must not be used.

    On TensorFlow, `predict_on_batch` would return the outputs once for each device.
    """
    if keras.backend.backend() == "tensorflow":
        return bool(model.distribute_strategy.num_replicas_in_sync > 1)
    return keras.distribution.distribution() is not None


def _predict_tokens(
    task: Predictor,
    model: SeveralDevicesModel,
    encoded: Encoded,
    batch_size: int,
    buckets: list[int],
    verbose: bool | int | str = "auto",
    callbacks: list[keras.callbacks.Callback] | None = None,
    **kwargs: Any,
) -> Tensors:
    """Return the outputs per token of n examples, (n, t, ...), where t is the largest padded length.

    `_predict_batches` is called once for each padded length, since Keras can only concatenate outputs of equal length.
    """
    widths = np.asarray(buckets)[np.searchsorted(buckets, encoded.lengths)]  # (n,)
    indices_by_width = {int(width): np.flatnonzero(widths == width) for width in np.unique(widths)}
    outputs_by_width = []
    batch_count = sum(-(-len(indices) // batch_size) for indices in indices_by_width.values())
    with progress_bar("Predicting", batch_count, "batches", show=bool(verbose)) as advance:
        progress_callback = keras.callbacks.LambdaCallback(on_predict_batch_end=lambda batch, logs=None: advance(1))
        all_callbacks = [*(callbacks or []), *([progress_callback] if verbose else [])]
        for width, indices in indices_by_width.items():
            batches = _make_prediction_batches(task, encoded.select(indices), batch_size, [width])
            outputs = _predict_batches(model, batches, verbose=0, callbacks=all_callbacks, **kwargs)
            outputs_by_width.append((indices[batches.example_order], outputs))
    return keras.tree.map_structure(
        lambda *parts: _merge_padded(len(encoded), [indices for indices, _ in outputs_by_width], parts),
        *[outputs for _, outputs in outputs_by_width],
    )


def _merge_padded(count: int, indices: list[np.ndarray], parts: Sequence[np.ndarray]) -> np.ndarray:
    """Merge outputs of different padded lengths into one array (count, t, ...), padded with zeros.

    Row i of `parts[k]` becomes row `indices[k][i]`.
    """
    merged_outputs = np.zeros((count, max(part.shape[1] for part in parts), *parts[0].shape[2:]), parts[0].dtype)
    for row_indices, part in zip(indices, parts, strict=True):
        merged_outputs[row_indices, : part.shape[1]] = part
    return merged_outputs


def _make_prediction_batches(
    task: Predictor, encoded: Encoded, batch_size: int, buckets: list[int], extra_inputs: FeatureArrays | None = None
) -> LengthBatches:
    is_compiled = bool(task.jit_compile)  # if True, each new shape takes long to compile
    return LengthBatches(
        *_make_batch_source(task, encoded, extra_inputs), batch_size, buckets, "sorted", round_up=is_compiled
    )


def _make_prediction_input(batches: LengthBatches) -> Any:
    """Return the batches in the form that Keras reads fastest: in memory for few sequences on TensorFlow."""
    if keras.backend.backend() == "tensorflow" and len(batches.lengths) <= _MAX_IN_MEMORY:
        return in_memory(batches)
    return keras_input(batches)


def _make_batch_source(
    task: Predictor, encoded: Encoded, extra_inputs: FeatureArrays | None = None
) -> tuple[np.ndarray, Callable[..., Batch]]:
    """Return `(lengths, make_batch)`, the arguments of `LengthBatches` for encoded sequences."""
    extra_features = task.extra_features(encoded) if extra_inputs is None else extra_inputs

    def make_batch(indices: np.ndarray, width: int, rng: np.random.Generator) -> Batch:
        features = task.features(encoded, indices, width)
        return ({**features, **{name: values[indices] for name, values in extra_features.items()}},)

    return encoded.lengths, make_batch


def suppress_retracing_warnings() -> AbstractContextManager[None]:
    """Suppress TensorFlow's warnings about retracing, which is expected once for each padded length."""
    return suppress_log_lines("triggered tf.function retracing")
