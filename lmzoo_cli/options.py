"""Options and arguments shared by several commands, and groups of options as dataclasses."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

import typer

from lmzoo_cli.registered import TASKS

DATA = (
    "CSV, TSV (no quotes), JSON lines, Parquet, text lines, CoNLL, CoNLL-U, SQuAD's JSON; may be compressed with "
    "gzip or xz."
)
SEVERAL = "A directory, or a quoted pattern, is streamed and may be larger than memory."
DOCUMENTS = (
    "Text files, directories or patterns: .txt with a blank line between documents, or JSON lines (.jsonl, .ndjson, "
    ".json); may be compressed with gzip or xz."
)
RECIPE = "Default: the preset's recommendation for the task."
MODEL = "A .keras file, or a preset with the task's head."
_TEXT = 'Column of the texts (or words, questions, prompts), by name or by number from 0. Default: "text".'
_PAIR = "Column of the second texts of pairs, the contexts, or the words that every choice begins with."
_LABEL = (
    'Column of the labels. Default: "label"; for CoNLL the last column, for CoNLL-U UPOS. "|" separates several labels.'
)
_CHOICES = "Columns of the choices, separated by commas, or one column of lists. Default: ending0 to ending3."
_FORMAT = (
    "Format of DATA: csv, tsv, jsonl, parquet, txt, labeled (a label, a space, a text), conll, conllu or squad. "
    "Default: from the suffix."
)
_SCALE = "Divide numeric labels by this number, such as 5 for similarities from 0 to 5."
_WINDOWS = (
    "Read long texts in windows instead of truncating them: auto for as many as a text needs, or their maximum number. "
    "Default: the model's."
)
_STRIDE = "Number of tokens from one window to the next. Default: the model's."
_WORKERS = "Number of worker processes, started by Ray (pip install 'lmzoo\\[scale]'). Default: no workers."
_MIN_WORKERS = "Number of workers that suffice to continue after a host is lost. Default: all of them."
_RAY = "Address of the Ray cluster that runs the workers, such as 10.0.0.5:6379. Default: this machine."

Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)]
BatchSize = Annotated[int, typer.Option(min=1, help="Examples in a batch.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")]

# === Files of examples ===

_data_option = functools.partial(typer.Option, rich_help_panel="Data")


@dataclass(frozen=True)
class Columns:
    """Options for the columns of the examples, and the format of their file."""

    text: Annotated[str | None, _data_option(help=_TEXT)] = None
    pair: Annotated[str | None, _data_option(help=_PAIR)] = None
    label: Annotated[str | None, _data_option(help=_LABEL)] = None
    choices: Annotated[str | None, _data_option(help=_CHOICES)] = None
    format: Annotated[str | None, _data_option(help=_FORMAT)] = None
    header: Annotated[bool, _data_option(help="Whether CSV and TSV begin with column names.")] = True
    encoding: Annotated[str, _data_option(help="Encoding of the files.")] = "utf-8"
    scale: float = 1.0  # an option only in `LabeledColumns`

    @property
    def file_options(self) -> dict[str, Any]:
        """Keyword arguments for the table readers of `lmzoo.data.readers`."""
        return {"header": self.header, "format": self.format, "encoding": self.encoding}


@dataclass(frozen=True)
class LabeledColumns(Columns):
    """Options for the columns of labeled examples."""

    scale: Annotated[float, _data_option(help=_SCALE)] = 1.0


# === Files of documents ===

Field = Annotated[str, typer.Option(help="Key of the text in .jsonl files.")]
Split = Annotated[bool, typer.Option(help="Split lines into sentences, or take each line as a sentence.")]

# === Workers ===


@dataclass(frozen=True)
class WorkerOptions:
    """Options for worker processes.

    Raises:
        ValueError: If a cluster is set without a number of workers.
    """

    workers: Annotated[int | None, typer.Option(min=1, help=_WORKERS, rich_help_panel="Scale")] = None
    ray: Annotated[str | None, typer.Option(metavar="ADDRESS", help=_RAY, rich_help_panel="Scale")] = None

    def __post_init__(self) -> None:
        if self.ray and not self.workers:
            raise ValueError("--ray needs the number of workers: also pass --workers.")


@dataclass(frozen=True)
class TrainingWorkerOptions(WorkerOptions):
    """Options for worker processes that train one model.

    Raises:
        ValueError: If the minimum number of workers exceeds the number of workers.
    """

    min_workers: Annotated[int | None, typer.Option(min=1, help=_MIN_WORKERS, rich_help_panel="Scale")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.min_workers or 0) > (self.workers or 0):
            raise ValueError("--min-workers must not be more than --workers.")


# === Long texts ===

_window_option = functools.partial(typer.Option, rich_help_panel="Long texts")


@dataclass(frozen=True)
class WindowOptions:
    """Options for long texts.

    Raises:
        ValueError: If the number of windows is not "auto" or a positive integer.
    """

    windows: Annotated[str | None, _window_option(metavar="auto|N", help=_WINDOWS)] = None
    stride: Annotated[int | None, _window_option(min=1, help=_STRIDE)] = None

    def __post_init__(self) -> None:
        if self.windows not in (None, "auto") and not (self.windows.isdecimal() and int(self.windows)):
            raise ValueError(f"--windows must be auto or a positive number, got {self.windows!r}.")

    @property
    def settings(self) -> dict[str, Any]:
        """Values of the task attributes that these options set, by name."""
        windows = int(self.windows) if self.windows and self.windows != "auto" else self.windows
        values = {"windows": windows, "stride": self.stride}
        return {name: value for name, value in values.items() if value is not None}


# === Training ===


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Options of `lmzoo fit`."""

    data: Annotated[Path, typer.Argument(metavar="DATA", help=f"Training examples. {DATA} {SEVERAL}")]
    task: Annotated[str, typer.Option(help=f"Task to train: {', '.join(TASKS)}.")]
    preset: Annotated[str, typer.Option(help="Preset or checkpoint to start from; see `lmzoo presets`.")]
    output: Annotated[Path, typer.Option("--output", "-o", help="The .keras file to write.")]
    validation: Annotated[Path | None, typer.Option(help="A file of examples to evaluate on.")] = None
    validation_split: Annotated[
        float, typer.Option(min=0.0, max=0.99, help="Fraction of DATA to hold out at random, instead of --validation.")
    ] = 0.0
    epochs: Annotated[int | None, typer.Option(min=1, help=f"Number of passes over the examples. {RECIPE}")] = None
    batch_size: Annotated[int | None, typer.Option(min=1, help=f"Examples in a batch. {RECIPE}")] = None
    learning_rate: Annotated[float | None, typer.Option(min=0.0, help=f"Peak learning rate. {RECIPE}")] = None
    sequence_length: Annotated[
        int | None, typer.Option(help="Maximum sequence length in tokens. Default: the preset's.")
    ] = None
    pooling: Annotated[
        str | None, typer.Option(help=f"Pooling: first or mean; for embedder cls, mean, max or others. {RECIPE}")
    ] = None
    window_pooling: Annotated[
        Literal["mean", "max"] | None,
        _window_option(help="How a classifier joins the logits of a text's windows. Default: the preset's, or mean."),
    ] = None
    schedule: Annotated[
        Literal["linear", "cosine", "constant", "inverse_square_root"],
        typer.Option(help="Decay of the learning rate, after a warm-up over the first tenth of the steps."),
    ] = "linear"
    class_weight: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLASS=WEIGHT",
            help="Weight of a class in the loss, such as spam=5; may be given several times. Or balanced, to give all "
            "classes the same total weight.",
        ),
    ] = None
    patience: Annotated[
        int | None,
        typer.Option(min=1, help="Stop after this many epochs without a lower validation loss; keep the best weights."),
    ] = None
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Directory, or URL such as s3://bucket/run, for the state of the run, so that the same command can "
            "continue a stopped run. It then counts --patience anew, without the best weights of earlier epochs. Use a "
            "new directory for each run."
        ),
    ] = None
    seed: Annotated[int, typer.Option(help="Seed for all random numbers.")] = 0
    overwrite: Overwrite = False


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's dataclass parameters with one option per annotated field."""
    signature = inspect.signature(command, eval_str=True)
    expanded_parameters: dict[str, list[inspect.Parameter]] = {}
    for name, parameter in signature.parameters.items():
        if isinstance(parameter.annotation, type) and is_dataclass(parameter.annotation):
            all_fields = inspect.signature(parameter.annotation, eval_str=True).parameters.values()
            expanded_parameters[name] = [field for field in all_fields if get_origin(field.annotation) is Annotated]

    @functools.wraps(command)
    def call(**values: Any) -> None:
        for name, options in expanded_parameters.items():
            arguments = {option.name: values.pop(option.name) for option in options}
            values[name] = signature.parameters[name].annotation(**arguments)
        command(**values)

    options = chain.from_iterable(
        expanded_parameters.get(name, [option]) for name, option in signature.parameters.items()
    )
    parameters = [option.replace(kind=option.KEYWORD_ONLY) for option in options]
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call
