"""Training of several tasks on one backbone (Liu et al., 2019, https://arxiv.org/abs/1901.11504).

Every step trains one task on a batch of its examples, with its head and its loss.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from lmzoo.common.arguments import is_integer, is_number, require
from lmzoo.common.log_filters import suppress_log_lines
from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.common.weights_in_place import restore_weights_on_error
from lmzoo.parallel.processes import has_several_processes
from lmzoo.parallel.several_devices import give_whole_batches, split_evenly
from lmzoo.text.batching import LengthBatches
from lmzoo.text.interleaved import Interleaved
from lmzoo.training.compiled_functions import prepare_optimizer
from lmzoo.training.optimizers import AdamW
from lmzoo.training.training_run import TrainingRun

MakeBatch: TypeAlias = Callable[[np.ndarray, int, np.random.Generator], tuple[Any, ...]]


def fit_together(
    tasks: Mapping[str, tuple[Any, ...]],
    epochs: int = 1,
    batch_size: int = 32,
    temperature: float = 1.0,
    steps_per_epoch: int | None = None,
    validation_data: Mapping[str, tuple[Any, ...]] | None = None,
    optimizer: Any = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    seed: int = 0,
    verbose: int | str = "auto",
) -> keras.callbacks.History:
    """Train several tasks that share a backbone (MT-DNN; Liu et al., 2019).

    Each step trains one task on a batch of its own examples, with its own loss; the steps of each task are evenly
    spaced. All tasks share the optimizer: in the steps of other tasks, the gradient of a head is 0, which still enters
    the optimizer's moments. Afterwards, each task can predict, and can be saved and exported, independently of the
    other tasks. `backbone.save_to_preset(folder, tasks={...})` writes all tasks into one preset.

    Args:
        tasks: dict from names to `(task, x, y)`, or `(task, x)` for a task without labels. All tasks must be built on
            the same backbone; all except `BidirectionalLM` can be mixed. `x` and `y` are texts in memory and their
            labels, as for the task's `fit`.
        epochs: int, number of epochs.
        batch_size: int, number of examples in a batch.
        temperature: float of at least 1, temperature T of the mixture. A task of n batches gets steps in proportion to
            n^(1/T): 1 mixes by size, higher temperatures favor small tasks, and `math.inf` gives all tasks equally many
            steps (Raffel et al., 2020, section 3.5.2). Each task goes through its examples as often as its steps allow,
            in a new order each time.
        steps_per_epoch: int, number of steps in an epoch; by default the number of batches of all tasks together.
        validation_data: dict from names of tasks to `(x, y)`, or `(x,)` without labels. After each epoch, the results
            of the task's `evaluate` are logged, such as `val_trec_accuracy` for a task "trec".
        optimizer: a Keras optimizer for all weights, with `use_ema` as in `fit`. By default `AdamW` as in `fit`, with
            the lowest learning rate that the tasks recommend.
        callbacks: Keras callbacks. `ResumableCheckpoint` makes the run resumable: call `fit_together` again with the
            same tasks and data. The `model` of a callback is a model of all tasks; only its weights can be saved.
        seed: int, seed for shuffling and masking.
        verbose: verbosity, as in `keras.Model.fit`.

    Returns:
        The history: in each epoch the mean loss, the mean loss of each task that had steps, such as `trec_loss`, and
        the results on `validation_data`.

    Raises:
        TypeError: If `tasks` is empty, an entry is not a task with its examples, or the examples are not texts in
            memory.
        ValueError: Before the first step, if the tasks have different backbones, if one is a `BidirectionalLM`, if a
            task has several names, if a task's `fit` refuses its examples or its validation data (the message names the
            task), if `validation_data` has an unknown task, if a number is out of range, or if there are several
            processes.
        NotFiniteError: If training diverges.

    Example:

    ```python
    import lmzoo
    from lmzoo.training import fit_together

    topics = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", labels=["sea", "film"])
    moods = lmzoo.models.TextClassifier(topics.backbone, topics.preprocessor, labels=["bad", "good"])
    fit_together(
        {
            "topics": (topics, ["The tide turned.", "The plot is thin."], ["sea", "film"]),
            "moods": (moods, ["A fine film.", "Dull and slow."], ["good", "bad"]),
        },
        verbose=0,
    )
    moods.classify(["Lovely."])  # [{"label": ..., "score": ...}]
    ```
    """
    require(is_integer(epochs, 1), "epochs", "an integer of at least 1", epochs)
    require(is_integer(batch_size, 1), "batch_size", "an integer of at least 1", batch_size)
    require(is_number(temperature, 1), "temperature", "a number of at least 1", temperature)
    is_valid = steps_per_epoch is None or is_integer(steps_per_epoch, 1)
    require(is_valid, "steps_per_epoch", "an integer of at least 1, or None", steps_per_epoch)
    tasks_by_name = _check_tasks(tasks)
    validation = _check_validation(validation_data, tasks_by_name)
    task_batches = [_make_task_batches(name, entry, batch_size, seed) for name, entry in tasks.items()]
    batch_counts = np.array([batches_of_task.num_batches for batches_of_task in task_batches], "float64")
    batches = Interleaved(task_batches, (batch_counts ** (1 / temperature)).tolist())
    model = _JointModel(tasks_by_name)
    model.compile_together(optimizer)
    model.build_losses(task_batches)
    history = keras.callbacks.History()
    epoch_steps = steps_per_epoch or int(batch_counts.sum())
    run = TrainingRun.begin(model, batches, epochs, epoch_steps, 0, [*callbacks, history])
    # TensorFlow's warnings are suppressed, since tracing is expected for each task and padded length.
    no_retracing_warnings = suppress_log_lines("triggered tf.function retracing")
    with run.in_progress(), give_whole_batches(), restore_weights_on_error(model), no_retracing_warnings:
        _run_epochs(
            model, batches, run, epochs, epoch_steps, verbose, lambda: _evaluate(tasks_by_name, validation, batch_size)
        )
    return history


def _check_tasks(tasks: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Check the entries of `tasks`, and return the tasks by name.

    Raises:
        TypeError: If `tasks` is not a dict or is empty, or if an entry is not a task with its examples.
        ValueError: If there are several processes, the tasks do not share a backbone, a task is a `BidirectionalLM`,
            or a task has several names.
    """
    if not isinstance(tasks, Mapping) or not tasks:
        raise TypeError(f"`tasks` must be a dict from names to (task, x, y), got {tasks!r:.60}.")
    for name, entry in tasks.items():
        is_entry = isinstance(entry, tuple) and len(entry) in (2, 3) and hasattr(entry[0], "training_batches")
        if not isinstance(name, str) or not is_entry:
            raise TypeError(f"`tasks[{name!r}]` must be a tuple (task, x, y) under a string, got {entry!r:.60}.")
    if has_several_processes():
        raise ValueError("`fit_together` trains in one process. Start it without other processes.")
    tasks_by_name = {name: entry[0] for name, entry in tasks.items()}
    first_name, first_task = next(iter(tasks_by_name.items()))
    for name, task in tasks_by_name.items():
        if task.backbone is not first_task.backbone:
            raise ValueError(
                f"The tasks {first_name!r} and {name!r} have different backbones. Build each task on the same one: "
                f"`{type(task).__name__}(backbone, preprocessor, ...)`."
            )
    for name, task in tasks_by_name.items():
        if task.head_kind == "bidirectional_lm":
            raise ValueError(
                f"The task {name!r} is a {type(task).__name__}, which reads documents as streams: train it alone, with "
                "its `fit`."
            )
    if len({id(task) for task in tasks_by_name.values()}) < len(tasks_by_name):
        raise ValueError("A task may have only one name. Join the examples of its names.")
    return tasks_by_name


def _check_validation(data: Any, tasks_by_name: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Check the validation data, and return them as a dict from names of tasks, which is empty if `data` is None.

    Raises:
        TypeError: If `data` is not a dict of tuples, or the examples are not texts in memory.
        ValueError: If a name is not the name of a task, or a task refuses its examples.
    """
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise TypeError(f"`validation_data` must be a dict from names of tasks to (x, y), got {data!r:.60}.")
    for name, entry in data.items():
        require(
            name in tasks_by_name, "validation_data", f"a dict with some of the keys {', '.join(tasks_by_name)}", name
        )
        if not isinstance(entry, tuple) or len(entry) not in (1, 2):
            raise TypeError(f"`validation_data[{name!r}]` must be a tuple (x, y), got {entry!r:.60}.")
        with _add_task_to_errors(name):
            tasks_by_name[name].check_examples(*entry)
    return dict(data)


def _make_task_batches(name: str, entry: tuple[Any, ...], batch_size: int, seed: int) -> LengthBatches:
    """Return a task's batches, in which features, labels and weights are dicts with the task's name as the only key.

    Args:
        name: name of the task.
        entry: the task and its training examples.
        batch_size: int, number of examples in a batch.
        seed: int, seed of the order of the examples.
    """
    task, *examples = entry
    with _add_task_to_errors(name):
        batches: LengthBatches = task.training_batches(*examples, batch_size=batch_size, seed=seed)
    batches.make_batch = _add_task_name(name, batches.make_batch)
    return batches


@contextlib.contextmanager
def _add_task_to_errors(name: str) -> Iterator[None]:
    """Prefix type and value errors raised in the block with a task's name."""
    try:
        yield
    except (TypeError, ValueError) as error:
        error_class = TypeError if isinstance(error, TypeError) else ValueError
        raise error_class(f"In the task {name!r}: {error}") from error


def _add_task_name(name: str, make_batch: MakeBatch) -> MakeBatch:
    """Return a function like `make_batch` that wraps each part of a batch in a dict with the task's name as key."""

    def make_named_batch(indices: np.ndarray, width: int, rng: np.random.Generator) -> tuple[Any, ...]:
        return tuple({name: values} for values in make_batch(indices, width, rng))

    return make_named_batch


class _JointModel(keras.Model):
    """Model of several tasks with one backbone; features, labels and outputs are dicts by task name.

    Each training batch is for one task. `SeveralDevicesModel` would compile the step again whenever tasks with targets
    of different ranks alternate; here, each task has its own compiled step, since the names in its batches differ.
    """

    def __init__(self, tasks: Mapping[str, Any]) -> None:
        super().__init__(name="tasks")
        self.tasks = dict(tasks)
        first_task = next(iter(tasks.values()))
        self.backbone = first_task.backbone
        self.dtype_policy = first_task.dtype_policy  # for float16, so that Keras scales the loss
        self.built = True

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """The variables that any of the tasks trains."""
        variables = (variable for task in self.tasks.values() for variable in task.trainable_variables)
        return list({id(variable): variable for variable in variables}.values())

    trainable_weights = trainable_variables

    @property
    def non_trainable_variables(self) -> list[keras.Variable]:
        """The variables that no task trains."""
        trained_ids = {id(variable) for variable in self.trainable_variables}
        return [variable for variable in self.variables if id(variable) not in trained_ids]

    def compile_together(self, optimizer: Any) -> None:
        """Compile the model with its tasks' settings of `jit_compile` and `run_eagerly`.

        If `optimizer` is None, the model gets `AdamW` with the lowest learning rate that the tasks recommend.
        """
        tasks = self.tasks.values()
        if optimizer is None:
            optimizer = AdamW(min(task.recipe.learning_rate for task in tasks), global_clipnorm=1.0)
        run_eagerly = any(task.run_eagerly for task in tasks)
        self.compile(
            optimizer, jit_compile=all(task.jit_compile for task in tasks) and not run_eagerly, run_eagerly=run_eagerly
        )
        prepare_optimizer(self.optimizer, self)

    def make_train_function(self, force: bool = False) -> Any:
        """Set the backbone to this model's use of XLA before each step, since a task's evaluation changes it."""
        self.backbone.set_compiled_by_xla(self.jit_compile)
        return super().make_train_function(force)

    def build_optimizer(self) -> None:
        """Create the optimizer's state if it does not exist yet."""
        if not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)

    def forget_compiled(self) -> None:
        """Drop the compiled functions."""
        self.train_function = self.test_function = self.predict_function = None

    def merge_weights(self) -> None:
        """Merge weights that the tasks store separately during training."""
        for task in self.tasks.values():
            task.merge_weights()

    def build_losses(self, task_batches: Sequence[LengthBatches]) -> None:
        """Compute the loss on one example of each task, which creates the state of losses for several outputs."""
        for batches in task_batches:
            batch = batches.make_batch(np.arange(1), int(batches.lengths[0]), np.random.default_rng(0))
            x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
            self.compute_loss(x, y, self(x), weights, training=False)

    def call(self, inputs: dict[str, Features], training: bool = False) -> dict[str, Any]:
        """Return the outputs of the tasks that have features."""
        return {name: self.tasks[name](features, training=training) for name, features in inputs.items()}

    def train_step(self, *args: Any) -> Any:
        """Train on a batch, split between the devices."""
        return super().train_step(*args[:-1], split_evenly(args[-1]))

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Tensor:
        """Return the loss of the only task in a batch."""
        (name,) = y_pred
        task = self.tasks[name]
        y, sample_weight = (None if values is None else values[name] for values in (y, sample_weight))
        loss = task.compute_loss(x[name], y, y_pred[name], sample_weight, training=training)
        # On JAX, losses that layers add are losses of the outer model only.
        task_loss_ids = [*map(id, task.losses)]
        for layer_loss in self.losses:
            loss = loss if id(layer_loss) in task_loss_ids else loss + layer_loss
        # The heads of the other tasks take part, so that their gradients are zero on every backend. TensorFlow would
        # otherwise have no gradients for these heads, and skip their moments.
        trained_ids = {id(variable) for variable in task.trainable_variables}
        for variable in self.trainable_variables:
            if id(variable) not in trained_ids:
                loss = loss + 0.0 * ops.cast(ops.sum(variable), loss.dtype)
        return loss


def _run_epochs(
    model: _JointModel,
    batches: Interleaved,
    run: TrainingRun,
    epochs: int,
    epoch_steps: int,
    verbose: int | str,
    evaluate: Callable[[], dict[str, float]],
) -> None:
    """Run the epochs of a training run, with callbacks as in `keras.Model.fit`.

    After a signal, the model is not evaluated. `keras.Model.fit` itself needs batches that all have the same structure,
    as in TensorFlow's datasets.
    """
    callbacks = keras.callbacks.CallbackList(
        run.callbacks, add_progbar=verbose != 0, model=model, verbose=verbose, epochs=epochs, steps=epoch_steps
    )
    stream = batches.batches_from(run.first_step or 0)
    model.stop_training = False
    logs: dict[str, float] = {}
    callbacks.on_train_begin()
    for epoch in range(run.initial_epoch, epochs):
        callbacks.on_epoch_begin(epoch)
        losses: dict[str, list[float]] = {}
        for step in range(epoch_steps):
            x, y, weights = keras.utils.unpack_x_y_sample_weight(next(stream))
            callbacks.on_train_batch_begin(step)
            loss = model.train_on_batch(x, y, weights, return_dict=True)["loss"]
            (name,) = x
            for key in ("loss", f"{name}_loss"):
                losses.setdefault(key, []).append(float(loss))
            logs = {key: float(np.mean(values)) for key, values in losses.items()}
            callbacks.on_train_batch_end(step, logs)
            if model.stop_training:
                break
        if run.checkpoint is None or not run.checkpoint.stopped:
            logs = {**logs, **evaluate()}
        callbacks.on_epoch_end(epoch, logs)
        if model.stop_training:
            break
    model.optimizer.finalize_variable_values(model.trainable_variables)
    callbacks.on_train_end(logs)


def _evaluate(
    tasks_by_name: Mapping[str, Any], validation: Mapping[str, tuple[Any, ...]], batch_size: int
) -> dict[str, float]:
    """Return the metrics of each task on its validation data, under names such as `val_trec_accuracy` for "trec"."""
    metric_values = {}
    for name, examples in validation.items():
        scores = tasks_by_name[name].evaluate(*examples, batch_size=batch_size, verbose=0, return_dict=True)
        metric_values.update({f"val_{name}_{key}": value for key, value in scores.items()})
    return metric_values
