"""Implementation of `lmzoo fit`: from files of examples to a `.keras` file and its scores."""

from __future__ import annotations

import inspect
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
from rich.console import Console

from lmzoo.common.arguments import near_names
from lmzoo.common.span_marks import expand_marks
from lmzoo.data.examples import ExampleStream
from lmzoo.evaluation.reports import Report
from lmzoo.parallel.processes import main_process_first, process_index
from lmzoo.presets.catalog import find_local_directory
from lmzoo.tasks import QuestionAnswerer, Task
from lmzoo.tasks.missing_classes import describe_missing_classes
from lmzoo.training import FineTuningRecipe, ResumableCheckpoint
from lmzoo_cli.examples import Examples, Inputs, Labels, count_examples, is_several, take
from lmzoo_cli.model_loading import check_reads_windows
from lmzoo_cli.options import Columns, FitOptions, WindowOptions
from lmzoo_cli.output import check_output, say, show, show_status
from lmzoo_cli.task_kinds import Kind, Reading
from lmzoo_cli.task_scores import score, show_report

_BALANCED = "balanced"
_RECIPE_FIELDS = ("learning_rate", "epochs", "batch_size", "pooling")  # also names of options
_SAVE_INTERVAL_MINUTES = 5.0  # between saved states of a resumable run


def check_options(options: FitOptions, kind: Kind, long_texts: WindowOptions) -> None:
    """Check the options of `lmzoo fit` before any examples are read.

    Raises:
        OSError: If the output exists and is not to be overwritten, or cannot be written.
        ValueError: If the output does not end in ".keras", options conflict or do not apply to the task, or the preset
            is unknown.
    """
    check_output(options.output, options.overwrite, suffix=".keras")
    if options.validation and options.validation_split:
        raise ValueError("Give --validation or --validation-split, not both.")
    if options.validation and is_several(options.validation):  # answers to validation examples are compared in memory
        raise ValueError(f"--validation names one file, not a directory or a pattern, got {options.validation}.")
    if options.patience and not (options.validation or options.validation_split):
        raise ValueError("--patience needs validation examples: also pass --validation or --validation-split.")
    if options.class_weight and kind.reading.names is not iter:
        raise ValueError(f"--class-weight is for tasks with one class for each example, which {kind.name} is not.")
    if options.pooling is not None and "pooling" not in inspect.signature(kind.task_class).parameters:
        raise ValueError(f"A {kind.task_class.__name__} does not pool: leave out --pooling.")
    if long_texts.settings:
        check_reads_windows(kind.task_class)
    if options.window_pooling is not None and "window_pooling" not in inspect.signature(kind.task_class).parameters:
        raise ValueError(f"A {kind.task_class.__name__} does not pool windows: leave out --window-pooling.")
    find_local_directory(options.preset)  # raises an error for an unknown preset


@dataclass(frozen=True)
class FitExamples:
    """Training and validation examples of `lmzoo fit`.

    Attributes:
        x: inputs of the training examples.
        y: labels of the training examples.
        validation: inputs and labels of the validation examples, or None.
        class_names: names of the classes, or None if labels have no names.
        counts: counters of the labels by class, for the training examples and then for any validation examples; empty
            if labels have no names.
        weights: weights of the training examples, or None.
    """

    x: Inputs
    y: Labels
    validation: Examples | None
    class_names: list[str] | None
    counts: list[Counter[str]]
    weights: list[float] | None


def fine_tune(options: FitOptions, columns: Columns, kind: Kind, long_texts: WindowOptions) -> None:
    """Train a task, save it, and print its validation scores, or its training scores without validation examples."""
    examples = read_examples(options, columns, kind.reading)
    task = load_pretrained(options, examples, kind, long_texts)
    recipe = choose_recipe(task, options)
    if examples.class_names:
        titles = ["label", "training", "validation"][: len(examples.counts) + 1]
        show(titles, [[name, *(counter[name] for counter in examples.counts)] for name in examples.class_names])
    history = train(task, options, examples, recipe)
    if isinstance(task, QuestionAnswerer) and examples.validation:
        _fit_null_threshold(task, *examples.validation, recipe.batch_size)
    with show_status(f"Writing {options.output}"), main_process_first():
        if process_index() == 0:
            task.save(options.output)
    say(f"Wrote {options.output}.")
    if examples.validation:
        show_report(score(kind, task, *examples.validation, recipe.batch_size))
    else:
        show_report(Report({f"training {name}": values[-1] for name, values in history.items()}))


def read_examples(options: FitOptions, columns: Columns, reading: Reading) -> FitExamples:
    """Read the examples, count their labels, and read or split off validation examples."""
    with show_status(f"Reading {options.data}"):
        x, y = reading.read(options.data, columns, True, None)
    is_streamed = isinstance(x, ExampleStream)
    if is_streamed and (options.validation_split or options.class_weight):
        raise ValueError("--validation-split and --class-weight are for examples in one file.")
    class_names = None
    counts: list[Counter[str]] = []
    if reading.names:
        with show_status("Collecting the labels"):
            counts = [Counter(reading.names(y))]
        class_names = _sort_labels(expand_marks(counts[0]) if reading.marks_spans else counts[0], options.data)
    validation = None
    if options.validation:
        validation = reading.read(options.validation, columns, True, class_names)
    elif options.validation_split:
        (x, y), validation = _split(x, y, options.validation_split, options.seed)
    if reading.names and validation:
        training_counts = counts[0] if is_streamed else Counter(reading.names(y))
        counts = [training_counts, Counter(map(str, reading.names(validation[1])))]  # streams may have class numbers
    if options.validation_split and reading.names is iter and (warning := describe_missing_classes(*counts)):
        warnings.warn(f"{warning} Raise --validation-split, or pass --validation.", stacklevel=2)
    weights = None
    if options.class_weight and class_names:
        weight_by_class = class_weights(options.class_weight, {name: counts[0][name] for name in class_names})
        weights = [weight_by_class[name] for name in y or ()]
    return FitExamples(x, y, validation, class_names, counts, weights)


def load_pretrained(options: FitOptions, examples: FitExamples, kind: Kind, long_texts: WindowOptions) -> Task:
    """Load the task from the preset, with a new head for the classes of the examples."""
    arguments: dict[str, Any] = {
        "labels": examples.class_names,
        "sequence_length": options.sequence_length,
        "pooling": options.pooling,
        "window_pooling": options.window_pooling,
        "multi_label": kind.reading.multi_label or None,
    }
    set_arguments = {name: value for name, value in arguments.items() if value is not None}
    with show_status(f"Loading {options.preset}"):
        keras.utils.set_random_seed(options.seed)
        arguments = {**kind.task_class.arguments_for(examples.y), **set_arguments, **long_texts.settings}
        return kind.task_class.from_preset(options.preset, **arguments)


def choose_recipe(task: Task, options: FitOptions) -> FineTuningRecipe:
    """Return the task's recipe, some of whose fields options replace, and print it to standard error."""
    set_fields = {name: value for name in _RECIPE_FIELDS if (value := getattr(options, name)) is not None}
    recipe = replace(task.recipe, **{"pooling": getattr(task, "pooling", None), **set_fields})
    settings = [
        f"peak learning rate {recipe.learning_rate:g}",
        f"{recipe.epochs} epoch{'s' * (recipe.epochs > 1)}",
        f"batches of {recipe.batch_size}",
        *([f"pooling {recipe.pooling}"] if recipe.pooling else []),
    ]
    source = f"Recipe of {options.preset}" if task.head_kind in task.backbone.fine_tuning else "Default recipe"
    names = ", ".join(name.replace("_", " ") for name in set_fields)
    note = f"; set by options: {names}" if set_fields else ""
    say(f"{source}: {', '.join(settings)}{note}")
    return recipe


def train(task: Task, options: FitOptions, examples: FitExamples, recipe: FineTuningRecipe) -> dict[str, list[float]]:
    """Train the task, and return the history of its losses and metrics.

    Raises:
        InterruptedError: If SIGTERM stopped a resumable run.
    """
    if options.learning_rate is not None:
        optimizer = task.optimizer
        task.compile(type(optimizer).from_config({**optimizer.get_config(), "learning_rate": recipe.learning_rate}))
    task.optimizer.schedule = options.schedule
    x = examples.x
    callbacks: list[keras.callbacks.Callback] = []
    if options.patience is not None:
        callbacks.append(
            keras.callbacks.EarlyStopping("val_loss", patience=options.patience, restore_best_weights=True)
        )
    if options.checkpoint is not None:
        callbacks.append(ResumableCheckpoint(options.checkpoint, minutes=_SAVE_INTERVAL_MINUTES))
    with show_status(f"Tokenizing {count_examples(x):,} examples and compiling the first step") as cancel_status:
        status_callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: cancel_status())
        history: dict[str, list[float]] = task.fit(
            x,
            None if isinstance(x, ExampleStream) else examples.y,
            batch_size=recipe.batch_size,
            epochs=recipe.epochs,
            verbose="auto" if Console().is_terminal else 2,
            callbacks=[status_callback, *callbacks],
            validation_data=examples.validation,
            sample_weight=examples.weights,
            seed=options.seed,
        ).history
    if any(isinstance(callback, ResumableCheckpoint) and callback.stopped for callback in callbacks):
        raise InterruptedError
    return history


def class_weights(entries: Sequence[str], counts: Mapping[str, int]) -> dict[str, float]:
    """Return the weight of each class: its weight in `entries`, or 1.

    The single entry `balanced` weights each class inversely to its number of examples instead; classes without examples
    are then left out.

    Args:
        entries: values of `--class-weight`, such as "spam=5".
        counts: number of training examples by class.

    Raises:
        ValueError: If a class is unknown, or a weight is not a number of at least 0.
    """
    if entries == [_BALANCED]:
        num_examples = sum(counts.values())
        return {name: num_examples / (len(counts) * count) for name, count in counts.items() if count}
    weights = dict.fromkeys(counts, 1.0)
    for entry in entries:
        name, _, weight_text = entry.rpartition("=")
        if name not in counts:
            raise ValueError(
                f"--class-weight takes {_BALANCED}, or a class and its weight such as {next(iter(counts))}=2, got "
                f"{entry!r}.{near_names(name or entry, list(counts))}"
            )
        try:
            weights[name] = float(weight_text)
        except ValueError:
            weights[name] = math.nan
        if not 0 <= weights[name] < math.inf:
            raise ValueError(
                f"--class-weight: the weight of {name} must be a number of at least 0, got {weight_text!r}."
            )
    return weights


def _split(x: Inputs, y: Labels, fraction: float, seed: int) -> tuple[Examples, Examples]:
    """Split examples at random into training and validation examples."""
    num_examples = count_examples(x)
    num_validation = round(num_examples * fraction)
    if not 0 < num_validation < num_examples:
        raise ValueError(
            f"--validation-split {fraction:g} leaves no examples for training or validation, of {num_examples}."
        )
    order = np.random.default_rng(seed).permutation(num_examples).tolist()
    return _take_examples(x, y, sorted(order[num_validation:])), _take_examples(x, y, sorted(order[:num_validation]))


def _take_examples(x: Inputs, y: Labels, indices: list[int]) -> Examples:
    return take(x, indices), y and [y[i] for i in indices]


def _sort_labels(names: Iterable[str], data: Path) -> list[str]:
    """Return the distinct labels in alphabetical order, or in numerical order if all are numbers.

    Raises:
        ValueError: If there are fewer than two labels.
    """
    labels = sorted(set(names))
    if not labels:
        raise ValueError(f"No example of {data} has a label.")
    if len(labels) < 2:
        raise ValueError(f"{data} has only the label {labels[0]!r}. Provide at least two labels.")
    are_numbers = all(re.fullmatch(r"-?\d+(\.\d+)?", label) for label in labels)
    return sorted(labels, key=float) if are_numbers else labels


def _fit_null_threshold(task: QuestionAnswerer, x: Inputs, answers: Labels, batch_size: int) -> None:
    """Fit the threshold for "no answer", if some questions have an answer and some do not."""
    if answers and len({bool(answer) for answer in answers}) == 2:
        task.fit_null_threshold(x, answers, batch_size)
