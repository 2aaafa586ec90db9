"""Options and arguments that several commands have, and their values."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

DATA = (
    "CSV, TSV (no quotes), JSON lines, Parquet, text lines, CoNLL, CoNLL-U, SQuAD's JSON; may be compressed with "
    "gzip or xz."
)
SEVERAL = "A directory, or a quoted pattern, is streamed and may be larger than memory."
DOCUMENTS = (
    "Text files, directories or patterns: .txt with a blank line between documents, or .jsonl; may be compressed with "
    "gzip or xz."
)
RECIPE = "Default: the recipe that the preset recommends for the task."
MODEL = "A .keras file, or a preset with the task's head."
_TEXT = 'Column of the texts (or words, questions, prompts), by name or by number from 0. Default: "text".'
_PAIR = "Column of the second texts of pairs, of the contexts, or of the words that every choice begins with."
_LABEL = (
    'Column of the labels. Default: "label"; for CoNLL the last one, for CoNLL-U UPOS. "|" separates several labels.'
)
_CHOICES = "Columns of the choices, separated by commas, or one column of lists. Default: ending0 to ending3."
_FORMAT = (
    "Format of DATA: csv, tsv, jsonl, parquet, txt, labeled (a label, a space, a text), conll, conllu or squad. "
    "Default: from the suffix."
)
_SCALE = "Divide numeric labels by this number, such as 5 for similarities from 0 to 5."
_WORKERS = "Number of worker processes, which Ray starts: pip install 'lmzoo\\[scale]'. Default: no workers."
_RAY = "Address of the Ray cluster that runs the workers, such as 10.0.0.5:6379. Default: this machine."

Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL, show_default=False)]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Examples in a batch.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")]

# === Files of examples ===

Text = Annotated[str | None, typer.Option("--text", help=_TEXT, rich_help_panel="Data")]
Pair = Annotated[str | None, typer.Option("--pair", help=_PAIR, rich_help_panel="Data")]
Label = Annotated[str | None, typer.Option("--label", help=_LABEL, rich_help_panel="Data")]
Choices = Annotated[str | None, typer.Option("--choices", help=_CHOICES, rich_help_panel="Data")]
FormatOption = Annotated[str | None, typer.Option("--format", help=_FORMAT, rich_help_panel="Data")]
Header = Annotated[
    bool,
    typer.Option("--header/--no-header", help="Whether CSV and TSV begin with column names.", rich_help_panel="Data"),
]
Encoding = Annotated[str, typer.Option("--encoding", help="Encoding of the files.", rich_help_panel="Data")]
Scale = Annotated[float, typer.Option("--scale", help=_SCALE, rich_help_panel="Data")]

# === Files of documents ===

Field = Annotated[str, typer.Option("--field", help="Key of the text in .jsonl files.")]
Split = Annotated[
    bool, typer.Option("--split/--no-split", help="Split lines into sentences, or take each line as a sentence.")
]

# === Workers ===

Workers = Annotated[int | None, typer.Option("--workers", min=1, help=_WORKERS, rich_help_panel="Scale")]
Ray = Annotated[str | None, typer.Option("--ray", metavar="ADDRESS", help=_RAY, rich_help_panel="Scale")]

# === Training ===


class Schedule(StrEnum):
    """Course of the learning rate after the warm-up, which takes a tenth of the steps."""

    linear = "linear"
    cosine = "cosine"
    constant = "constant"
    inverse_square_root = "inverse_square_root"


ScheduleOption = Annotated[
    Schedule,
    typer.Option("--schedule", help="How the learning rate falls after the warm-up over a tenth of the steps."),
]
ClassWeight = Annotated[
    list[str] | None,
    typer.Option(
        "--class-weight",
        metavar="CLASS=WEIGHT",
        help="Weight of the examples of a class in the loss, such as spam=5; may be given several times. Or balanced: "
        "all classes have the same total weight.",
    ),
]
Patience = Annotated[
    int | None,
    typer.Option(
        "--patience",
        min=1,
        help="Stop after this many epochs without a lower validation loss; keep the best weights.",
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        help="Directory, or URL such as s3://bucket/run, for the state of the run: the same command continues a "
        "stopped run.",
    ),
]

# === Predictions ===


class AnswerFormat(StrEnum):
    """Formats of answers."""

    jsonl = "jsonl"
    csv = "csv"
    parquet = "parquet"


def check_workers(workers: int | None, ray: str | None) -> None:
    """Check that a cluster is told how many workers to run.

    Raises:
        ValueError: if it is not.
    """
    if ray and not workers:
        raise ValueError("--ray needs the number of workers: give --workers, too.")
