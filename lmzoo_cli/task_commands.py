"""The commands `lmzoo fit`, `lmzoo evaluate` and `lmzoo predict`."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from lmzoo_cli.messages import exit_when_stopped
from lmzoo_cli.options import (
    DATA,
    SEVERAL,
    BatchSize,
    Columns,
    FitOptions,
    LabeledColumns,
    Model,
    Overwrite,
    TrainingWorkerOptions,
    WindowOptions,
    WorkerOptions,
    expand_options,
)
from lmzoo_cli.output import check_output, show_status, shows_progress


@expand_options
def fit(options: FitOptions, columns: LabeledColumns, long_texts: WindowOptions, scale: TrainingWorkerOptions) -> None:
    """Train a task on a file of examples and write it as a .keras file.

    The classes are the labels in DATA. If there are validation examples, their scores are printed after training. With
    --workers N, N processes train one model, on JAX. If one dies, all are restarted, at most three times: from the
    latest state in the directory of --checkpoint, or without it from scratch.
    """
    from lmzoo.files.compilation_cache import use_compilation_cache
    from lmzoo_cli.fine_tuning import check_options, fine_tune
    from lmzoo_cli.joining import train_together
    from lmzoo_cli.task_kinds import get_kind

    kind = get_kind(options.task)
    check_options(options, kind, long_texts)
    use_compilation_cache()
    with exit_when_stopped(options.checkpoint), train_together(scale):
        fine_tune(options, columns, kind, long_texts)


@expand_options
def evaluate(
    *,
    model: Model,
    data: Annotated[Path, typer.Argument(metavar="DATA", help=f"Labeled examples. {DATA} {SEVERAL}")],
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write all scores to this file.")] = None,
    batch_size: BatchSize = 32,
    columns: LabeledColumns,
    long_texts: WindowOptions,
    overwrite: Overwrite = False,
) -> None:
    """Print a task's scores on a file of labeled examples.

    The scores are the loss and metrics that the model was compiled with, and further scores for its task.
    """
    from lmzoo_cli.examples import count_examples
    from lmzoo_cli.model_loading import load_task
    from lmzoo_cli.task_scores import score, show_report, write_report

    if json_file:
        check_output(json_file, overwrite)
    kind, task = load_task(model, long_texts.settings)
    with show_status("Reading the examples"):
        x, y = kind.read_labeled(data, columns, task)
    report = score(kind, task, x, y, batch_size)
    if json_file:
        write_report(json_file, {"model": model, "data": str(data), "examples": count_examples(x)}, report)
    show_report(report)


@expand_options
def predict(
    *,
    model: Model,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="Examples: a file; a directory or quoted pattern for many files; or - for lines of text from standard "
            f"input. {DATA}",
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="File to write instead of standard output; for many files, a directory."),
    ] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="Number of answers for each example, best first.")] = None,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Minimum probability of a returned label, for multi-label. Default: 0.5."),
    ] = None,
    batch_size: BatchSize = 32,
    to: Annotated[
        Literal["jsonl", "csv", "parquet"] | None,
        typer.Option(help="Format to write. Default: from the suffix of OUTPUT."),
    ] = None,
    ids: Annotated[
        str | None,
        typer.Option("--id", help="Column to write with each answer instead of the text.", rich_help_panel="Data"),
    ] = None,
    columns: Columns,
    long_texts: WindowOptions,
    scale: WorkerOptions,
    overwrite: Overwrite = False,
) -> None:
    """Predict for a file of examples, and write the answers as JSON lines, CSV or Parquet.

    An answer is the result of the task's method: a class and its score, a number, spans, an answer, a choice, words for
    the mask, or a vector. It is written with the example's id or text, and with its label ("actual") if it has one.
    Without --to, the suffix of OUTPUT determines the format: .jsonl, .csv or .parquet. For other suffixes, answers are
    written as CSV with --format csv, and otherwise as JSON lines.

    For a directory, a pattern, or with --workers, OUTPUT is a directory with a file of answers for each file of
    examples. To continue a stopped run, repeat the command. With --overwrite, answers from another model or other
    options are replaced file by file, and if all files are done, all answers are computed again.
    """
    from lmzoo.data.readers.text_files import SKIPPED_PREFIXES
    from lmzoo.files.urls import find_files
    from lmzoo_cli.answers import check_answers, choose_format, open_output
    from lmzoo_cli.examples import count_examples, open_input
    from lmzoo_cli.model_loading import load_task
    from lmzoo_cli.predicting import Prediction, absolute_model, holds_examples, predict_files

    data = os.path.expanduser(data)  # shells do not expand a quoted "~"
    files = (
        [data] if data == "-" else find_files(data, lambda name: holds_examples(name, columns.format), SKIPPED_PREFIXES)
    )
    writes_directory = scale.workers is not None or files != [data]
    options = {name: value for name, value in (("top_k", top_k), ("threshold", threshold)) if value is not None}
    answer_format = choose_format(to, None if writes_directory else output, columns.format)
    if data == "-" and columns.format is None:
        columns = replace(columns, format="txt")
    prediction = Prediction(
        absolute_model(model), columns, ids, options, answer_format, batch_size, long_texts.settings or None
    )
    if writes_directory:
        if not files:
            raise ValueError(f"{data} holds no files of examples.")
        if output is None or data == "-":
            raise ValueError("Many files, or several workers, read files and write into a directory: give --output.")
        # Ray reports the death of a worker on standard output.
        with exit_when_stopped(output), contextlib.redirect_stdout(sys.stderr):
            predict_files(prediction, data, files, output, overwrite, scale)
        return
    check_answers(output, overwrite)
    kind, task = load_task(model, prediction.windows)
    with show_status("Reading the examples"):
        x, origins = prediction.read(kind, open_input(data))
    status = show_status(f"Tokenizing {count_examples(x):,} examples, compiling and predicting")
    with open_output(output) as file, status as cancel_status:
        prediction.write(task, x, origins, file, cancel_status, shows_progress(output))
