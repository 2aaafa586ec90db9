"""`lmzoo fit`, `lmzoo evaluate` and `lmzoo predict`."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lmzoo.files.urls import NamedBytes, find_files, is_url, source_of
from lmzoo_cli.answers import AnswerFormat, format_of_answers
from lmzoo_cli.app import app, messages, stoppable
from lmzoo_cli.examples import Columns, Examples, Inputs, Labels, Stream, is_several
from lmzoo_cli.fine_tuning import choose_recipe
from lmzoo_cli.fit_options import (
    Checkpoint,
    ClassWeight,
    Patience,
    Schedule,
    ScheduleOption,
    callbacks,
    class_weights,
)
from lmzoo_cli.joining import joined
from lmzoo_cli.model_loading import load_with_examples
from lmzoo_cli.options import (
    DATA,
    MODEL,
    RECIPE,
    SEVERAL,
    BatchSize,
    Choices,
    Encoding,
    FormatOption,
    Header,
    Label,
    Overwrite,
    Pair,
    Ray,
    Scale,
    Text,
    Workers,
    check_workers,
)
from lmzoo_cli.output import (
    announce_keras,
    announced,
    check_output,
    count_of,
    output_to,
    say,
    show,
    show_report,
    take,
    write_json,
)
from lmzoo_cli.predicting import Prediction, absolute_model, holds_examples, predict_files
from lmzoo_cli.task_kinds import KINDS, Kind, kind_called


@app.command(rich_help_panel="Models")
def fit(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help=f"Training examples. {DATA} {SEVERAL}", show_default=False)
    ],
    task: Annotated[str, typer.Option("--task", help=f"What to train: {', '.join(kind.name for kind in KINDS)}.")],
    preset: Annotated[str, typer.Option("--preset", help="Preset or checkpoint to start from: see `lmzoo presets`.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .keras file to write.")],
    validation: Annotated[Path | None, typer.Option("--validation", help="A file of examples to evaluate on.")] = None,
    validation_split: Annotated[
        float,
        typer.Option("--validation-split", min=0.0, max=0.99, help="Instead: a random share of DATA to hold out."),
    ] = 0.0,
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help=f"Passes over the examples. {RECIPE}")] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help=f"Examples in a batch. {RECIPE}")
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option("--learning-rate", min=0.0, help=f"Peak learning rate. {RECIPE}"),
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option("--sequence-length", help="Longest sequence in tokens. Default: the preset's.")
    ] = None,
    pooling: Annotated[
        str | None, typer.Option("--pooling", help=f"first or mean; for embedder cls, mean, max or others. {RECIPE}")
    ] = None,
    schedule: ScheduleOption = Schedule.linear,
    class_weight: ClassWeight = None,
    patience: Patience = None,
    checkpoint: Checkpoint = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed for all random numbers.")] = 0,
    text: Text = None,
    pair: Pair = None,
    label: Label = None,
    choices: Choices = None,
    format: FormatOption = None,
    header: Header = True,
    encoding: Encoding = "utf-8",
    scale: Scale = 1.0,
    overwrite: Overwrite = False,
    workers: Workers = None,
    ray: Ray = None,
) -> None:
    """Train a task on a file of examples and write it as a .keras file.

    The classes are the labels in DATA. If there are validation examples, their scores are printed after training. With
    --workers N, N processes train one model, on JAX. If one dies, all are restarted, at most three times: from the
    latest state in the folder of --checkpoint, or without it from scratch.
    """
    with messages(), stoppable(checkpoint), contextlib.ExitStack() as together:
        from lmzoo.common.span_marks import with_marks
        from lmzoo.presets.catalog import local_directory

        kind, columns = kind_called(task), Columns(text, pair, label, choices, format, header, encoding, scale)
        check_output(output, overwrite, suffix=".keras")
        if validation and validation_split:
            raise ValueError("Give --validation or --validation-split, not both.")
        if validation and is_several(validation):  # their answers are compared in memory
            raise ValueError(f"--validation names one file, not a folder or a pattern, got {validation}.")
        if patience and not (validation or validation_split):
            raise ValueError("--patience needs validation examples: give --validation or --validation-split, too.")
        if class_weight and kind.reading.names is not iter:
            raise ValueError(f"--class-weight is for tasks with one class for each example, which {kind.name} is not.")
        together.enter_context(joined(workers, ray))
        local_directory(preset)  # it exists, or can be downloaded
        with announced(f"Reading {data}"):
            x, y = kind.reading.read(data, columns, True, None)
        arguments: dict[str, Any] = {"multi_label": True} if kind.reading.multi_label else {}
        names, of_all = None, Counter[str]()
        if isinstance(x, Stream) and (validation_split or class_weight):
            raise ValueError("--validation-split and --class-weight are for examples in one file.")
        if kind.reading.names:
            with announced("Collecting the labels"):
                of_all.update(kind.reading.names(y))
            arguments["labels"] = names = _sorted_labels(with_marks(set(of_all)), data)
        held_out = kind.reading.read(validation, columns, True, names) if validation else None
        if validation_split:
            (x, y), held_out = _split(x, y, validation_split, seed)
        weights, counts = None, []
        if kind.reading.names and names:
            counts = [of_all if isinstance(x, Stream) else Counter(kind.reading.names(y))]
            counts += [Counter(kind.reading.names(held_out[1]))] if held_out else []
            if class_weight:
                weights = class_weights(class_weight, {name: counts[0][name] for name in names})
        options = {"sequence_length": sequence_length, "pooling": pooling}
        arguments |= {name: value for name, value in options.items() if value is not None}

        announce_keras()
        with announced(f"Loading {preset}"):
            import keras

            from lmzoo.parallel.processes import first_process_first, process_index
            from lmzoo.training import AdamW
            from lmzoo_cli.task_scores import Report, score

            keras.utils.set_random_seed(seed)
            task_class = _task_class(kind, arguments)
            model = task_class.from_preset(preset, **{**task_class.arguments_for(y), **arguments})
        chosen = {"learning_rate": learning_rate, "epochs": epochs, "batch_size": batch_size, "pooling": pooling}
        recipe = choose_recipe(model, preset, chosen)
        batch_size = recipe.batch_size
        if counts and names:
            titles = ["label", "training", "validation"][: len(counts) + 1]
            show(titles, [[name, *(count[name] for count in counts)] for name in names])
        if learning_rate is not None:
            model.compile(AdamW(learning_rate, global_clipnorm=1.0))
        model.optimizer.schedule = schedule.value
        verbose = "auto" if Console().is_terminal else 2
        with announced(f"Tokenizing {count_of(x):,} examples and compiling the first step") as seen:
            run = callbacks(patience, checkpoint, seen)
            given = x.arguments if isinstance(x, Stream) else {"x": x, "y": y}
            history = model.fit(
                **given,
                batch_size=batch_size,
                epochs=recipe.epochs,
                verbose=verbose,
                callbacks=run,
                validation_data=held_out,
                sample_weight=weights and [weights[name] for name in y or ()],
                seed=seed,
            ).history
        if any(getattr(callback, "stopped", False) for callback in run):
            raise InterruptedError
        if held_out and kind.name == "qa" and len({bool(answers) for answers in held_out[1] or ()}) == 2:
            model.fit_null_threshold(*held_out, batch_size)
        with announced(f"Writing {output}"), first_process_first():
            if process_index() == 0:
                model.save(output)
        say(f"written to {output}")
        training = {f"training {name}": values[-1] for name, values in history.items()}
        named = bool(kind.reading.names)
        show_report(score(model, named, *held_out, batch_size) if held_out else Report(training))


@app.command(rich_help_panel="Models")
def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL, show_default=False)],
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help=f"Labelled examples. {DATA} {SEVERAL}", show_default=False)
    ],
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write all scores to this file.")] = None,
    batch_size: BatchSize = 32,
    text: Text = None,
    pair: Pair = None,
    label: Label = None,
    choices: Choices = None,
    format: FormatOption = None,
    header: Header = True,
    encoding: Encoding = "utf-8",
    scale: Scale = 1.0,
    overwrite: Overwrite = False,
) -> None:
    """Print a task's scores on a file of labelled examples.

    The loss and the metrics are those that the model was compiled with; the other scores depend on the task.
    """
    with messages():
        if json_file:
            check_output(json_file, overwrite)
        columns = Columns(text, pair, label, choices, format, header, encoding, scale)
        kind, task, (x, y) = load_with_examples(
            model, lambda kind, names: kind.reading.read(data, columns, True, names)
        )
        from lmzoo_cli.task_scores import Report, score

        if isinstance(x, Stream):  # answers to all examples would not fit into memory either
            report = Report(task.evaluate(batch_size=batch_size, return_dict=True, **x.arguments))
        else:
            report = score(task, bool(kind.reading.names), x, y, batch_size)
        if json_file:
            write_json(json_file, {"model": model, "data": str(data), "examples": count_of(x)}, report)
        show_report(report)


@app.command(rich_help_panel="Models")
def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL, show_default=False)],
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="Examples: a file; a folder or quoted pattern for many; or - for lines of text from standard input. "
            f"{DATA}",
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="File to write instead of standard output; for many files, a folder."),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", min=1, help="Number of answers for each example, best first.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Lowest probability of a returned label, for multi-label. Default: 0.5."),
    ] = None,
    batch_size: BatchSize = 32,
    to: Annotated[
        AnswerFormat | None, typer.Option("--to", help="Format to write. Default: from the suffix of OUTPUT.")
    ] = None,
    ids: Annotated[
        str | None,
        typer.Option("--id", help="Column to write with each answer instead of the text.", rich_help_panel="Data"),
    ] = None,
    text: Text = None,
    pair: Pair = None,
    label: Label = None,
    choices: Choices = None,
    format: FormatOption = None,
    header: Header = True,
    encoding: Encoding = "utf-8",
    workers: Workers = None,
    ray: Ray = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a task's answers to a file of examples, as JSON lines, CSV or Parquet.

    An answer is what the task's method returns: a class and its score, a number, spans, an answer, a choice, words for
    the mask, or a vector. It is written with the example's id or text, and with its label ("actual") if it has one.
    Without --to, the suffix of OUTPUT gives the format; if it does not, CSV is written with --format csv, otherwise
    JSON lines.

    For a folder, a pattern, or with --workers, OUTPUT is a folder with a file of answers for each file of examples. If
    a run was stopped, the same command continues it.
    """
    with messages():
        check_workers(workers, ray)
        files = [data] if data == "-" else find_files(data, lambda name: holds_examples(name, format))
        many = workers is not None or files != [data]
        columns = Columns(text, pair, label, choices, format or ("txt" if data == "-" else None), header, encoding)
        options = {k: v for k, v in (("top_k", top_k), ("threshold", threshold)) if v is not None}
        answers = format_of_answers(to and to.value, None if many else output, format)
        prediction = Prediction(absolute_model(model), columns, ids, options, answers, batch_size)
        if many:
            if not files:
                raise ValueError(f"{data} holds no files of examples.")
            if output is None or data == "-":
                raise ValueError("Many files, or several workers, read files and write into a folder: give --output.")
            # Ray writes to the standard output that a worker has died.
            with stoppable(output), contextlib.redirect_stdout(sys.stderr):
                predict_files(prediction, data, files, output, overwrite, workers, ray)
            return
        if output and not is_url(output):
            check_output(Path(output), overwrite)
        source = NamedBytes(sys.stdin.buffer.read(), "<stdin>") if data == "-" else source_of(data)
        _, task, (x, of_answers) = load_with_examples(model, lambda kind, _: prediction.read(kind, source))
        shown = bool(output) or not sys.stdout.isatty()  # answers on the screen need no bar between them
        work = f"Tokenizing {count_of(x):,} examples, compiling and predicting"
        with output_to(output) as file, announced(work) as seen:
            prediction.write(task, x, of_answers, file, seen, shown)


# === Examples and models ===


def _split(x: Inputs, y: Labels, share: float, seed: int) -> list[Examples]:
    """Training and validation examples."""
    import numpy as np

    count = count_of(x)
    held_out = round(count * share)
    if not 0 < held_out < count:
        raise ValueError(f"--validation-split {share:g} leaves no examples for training or validation, of {count}.")
    order = np.random.default_rng(seed).permutation(count).tolist()
    parts = sorted(order[held_out:]), sorted(order[:held_out])
    return [(take(x, indices), y and [y[i] for i in indices]) for indices in parts]


def _sorted_labels(names: Iterable[str], data: Path) -> list[str]:
    """All different labels in alphabetical order or, if they are numbers, in numerical order."""
    labels = sorted(set(names))
    if not labels:
        raise ValueError(f"No example of {data} has a label.")
    if len(labels) < 2:
        raise ValueError(f"All labels of {data} are {labels[0]!r}: there is nothing to tell apart.")
    return sorted(labels, key=float) if all(re.fullmatch(r"-?\d+(\.\d+)?", label) for label in labels) else labels


def _task_class(kind: Kind, arguments: Iterable[str]) -> Any:
    from lmzoo.registry.head_kinds import task_of

    found: Any = task_of(kind.head)
    if "pooling" in arguments and "pooling" not in inspect.signature(found).parameters:
        raise ValueError(f"A {found.__name__} does not pool: leave out --pooling.")
    return found
