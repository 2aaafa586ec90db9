"""The command `lmzoo pretrain`."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from lmzoo_cli.messages import exit_when_stopped
from lmzoo_cli.options import DOCUMENTS, Field, Split, TrainingWorkerOptions, expand_options
from lmzoo_cli.output import say
from lmzoo_cli.registered import PRETRAINED_FAMILIES

_CONFIRMATION_SECONDS = 3600.0  # longer training must be confirmed
_TOKENS = "Number of tokens to train on, counting repetitions; the corpus is repeated as needed."
_WORK = "Directory of the run, from which a stopped run continues. Default: OUTPUT.work."
_STATES = "Directory, or URL such as s3://bucket/run, for the saved states. Default: in the directory of the run."
_MIXTURE = (
    "Instead of CORPUS: a file, directory or quoted pattern, and its weight in a mixture; may be given several times. "
    "`--text films/:2 --text books/:1` takes two thirds of the tokens from the films, whatever their sizes."
)
_SIZE = "nano, mini, small, medium or base; or layers and width, such as 6x256. Default: nano."
_INIT = (
    "Start from the weights and the vocabulary of a preset: its name, such as bert_nano_en_uncased, or its directory. "
    "Its family and size are kept. Default: random weights."
)
_SCHEDULE = (
    "Decay of the learning rate: linear, over the whole training; or wsd, in the last fifth, so that the same command "
    "with more --tokens can continue from before the decay."
)
_LENGTH = (
    "Tokens in most sequences (128); for t5, in sources from which spans were dropped; for elmo, the words through "
    "which gradients flow (20)."
)


@dataclass(frozen=True)
class RecipeOptions:
    """Options for the fields of `lmzoo.pretraining.Recipe`; None stands for the recipe's default."""

    family: Annotated[str | None, typer.Option(help=f"One of {', '.join(PRETRAINED_FAMILIES)}. Default: bert.")] = None
    size: Annotated[str | None, typer.Option(help=_SIZE)] = None
    tokens: Annotated[int, typer.Option(min=1, help=_TOKENS)] = 60_000_000
    vocabulary_size: Annotated[
        int | None, typer.Option(min=1, help="Tokens in the vocabulary; for elmo, words to predict (8000).")
    ] = None
    words: Annotated[
        bool,
        typer.Option("--words", help="Use whole words as tokens, for lstm_lm and ffnn_lm; rare ones become <unk>."),
    ] = False
    sequence_length: Annotated[int | None, typer.Option(min=4, help=_LENGTH)] = None
    positions: Annotated[int | None, typer.Option(min=4, help="Tokens in the longest sequences (512).")] = None
    batch_size: Annotated[int | None, typer.Option(min=1, help="Sequences in a batch (32; for elmo 128).")] = None
    learning_rate: Annotated[
        float | None, typer.Option(help="Peak learning rate. Default: from the model's width.")
    ] = None
    optimizer: Annotated[str, typer.Option(help="adamw or lamb; elmo uses Adagrad.")] = "adamw"
    schedule: Annotated[str, typer.Option(help=_SCHEDULE)] = "linear"
    objective: Annotated[
        str,
        typer.Option(
            help="Objective in addition to masked tokens: nsp, sop, sbo (SpanBERT's spans and their boundaries) or "
            "none; for electra and albert also rtd (detection of tokens that a generator replaced). For xlnet plm, and "
            "for t5 span_corruption instead. auto: the family's objective."
        ),
    ] = "auto"
    dynamic: Annotated[
        bool,
        typer.Option("--dynamic/--static", help="Draw new masks for each batch, or keep the masks of each sequence."),
    ] = True
    mask_probability: Annotated[
        float, typer.Option(help="Fraction of tokens to mask, or for t5 to drop, and predict.")
    ] = 0.15
    whole_word: Annotated[bool, typer.Option("--whole-word", help="Mask all tokens of a word together.")] = False
    dtype: Annotated[str, typer.Option(help="Dtype policy, such as mixed_bfloat16.")] = "float32"
    seed: Annotated[int, typer.Option(help="Seed for all random numbers.")] = 0
    accumulate: Annotated[
        int, typer.Option(min=1, help="Number of batches whose gradients are accumulated for a step.")
    ] = 1
    remat: Annotated[
        bool, typer.Option("--remat", help="Recompute activations in the backward pass: saves memory, costs time.")
    ] = False


@expand_options
def pretrain(
    *,
    corpus: Annotated[list[str] | None, typer.Argument(metavar="CORPUS...", help=DOCUMENTS)] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory of the preset to write.")],
    text: Annotated[list[str] | None, typer.Option(metavar="PATTERN[:WEIGHT]", help=_MIXTURE)] = None,
    validation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN[:WEIGHT]",
            help="Text to evaluate on: a file, directory or quoted pattern; may be given several times. Default: 1% of "
            "the documents of each text.",
        ),
    ] = None,
    init: Annotated[str | None, typer.Option(metavar="PRESET", help=_INIT)] = None,
    options: RecipeOptions,
    work: Annotated[Path | None, typer.Option(help=_WORK)] = None,
    states: Annotated[str | None, typer.Option(help=_STATES)] = None,
    field: Field = "text",
    split: Split = True,
    tensorboard: Annotated[Path | None, typer.Option(help="Directory for TensorBoard logs.")] = None,
    language: Annotated[str | None, typer.Option(help="Language of the preset, such as en.")] = None,
    license: Annotated[str | None, typer.Option(help="License of the preset, such as Apache-2.0.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing preset.")] = False,
    weights_dtype: Annotated[
        str, typer.Option(help="Dtype of the weights in the preset's files: float32, float16 or int8.")
    ] = "float16",
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Start training runs of more than an hour without asking.")
    ] = False,
    scale: TrainingWorkerOptions,
) -> None:
    """Train a vocabulary and a model on text, and write them as a preset with a model card.

    If a run was stopped or killed, the same command continues it. Its state is saved at least every five minutes, and
    after the current step on Ctrl-C (exit code 130; press it again to stop at once) and SIGTERM (143). The directory of
    the run holds log.csv, the vocabulary, the tokenized text and the latest states. With --workers N, N processes train
    one model, on JAX; if one dies, all are restarted from the latest state, at most three times.
    """
    if bool(corpus) == bool(text):
        raise typer.BadParameter("give the text either as CORPUS or as --text.")
    import keras

    from lmzoo.files.compilation_cache import use_compilation_cache
    from lmzoo.parallel.processes import process_index
    from lmzoo.pretraining import Recipe
    from lmzoo.pretraining import pretrain as run
    from lmzoo_cli.joining import train_together

    settings = _drop_none(**asdict(options))
    use_compilation_cache()
    with exit_when_stopped(work or f"{output}.work"), train_together(scale):
        recipe = Recipe(**settings) if init is None else Recipe.from_preset(init, **settings)
        scores = run(
            _parse_texts(corpus or text or []),
            output,
            recipe,
            _parse_texts(validation) if validation else None,
            work,
            overwrite,
            [keras.callbacks.TensorBoard(tensorboard)] if tensorboard and process_index() == 0 else [],
            _drop_none(languages=[language] if language else None, license=license or None),
            say=say,
            field=field,
            split=split,
            confirm=lambda seconds: _confirm(seconds, yes),
            weights_dtype=weights_dtype,
            states=states,
        )
    for name, value in scores.items():
        typer.echo(f"{name}\t{value:.6g}")


def _drop_none(**options: Any) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def _confirm(seconds: float, yes: bool) -> None:
    """Print the estimated training time and, above an hour without `yes`, ask for confirmation on a terminal."""
    say(f"Training takes about {_describe_duration(seconds)} on this machine.")
    if seconds > _CONFIRMATION_SECONDS and not yes and sys.stdin.isatty():
        typer.confirm("Start it?", abort=True, err=True)


def _parse_texts(values: list[str]) -> list[str] | dict[str, float]:
    """Parse files, directories or patterns with optional weights, such as "films/:2".

    Returns:
        `values` unchanged if none has a weight, else a dict from each file, directory or pattern to its weight.

    Raises:
        ValueError: If only some values have a weight, or a text occurs twice.
    """
    matches = [re.fullmatch(r"(.+):(\d+\.?\d*|\.\d+)", text) for text in values]
    if not any(matches):
        return values
    if unweighted_texts := [text for text, match in zip(values, matches, strict=True) if match is None]:
        raise ValueError(f"{', '.join(unweighted_texts)}: no weight. Give all texts a weight, as in films/:2, or none.")
    weights = [(match[1], float(match[2])) for match in matches if match]
    if len(dict(weights)) < len(weights):
        raise ValueError("A text is given twice: each has one weight.")
    return dict(weights)


def _describe_duration(seconds: float) -> str:
    """Describe a duration in words, such as "2 minutes", "3 hours 20 minutes" or "5 days 4 hours"."""
    minutes = max(1, round(seconds / 60))
    if minutes >= 60:
        minutes = round(minutes, -1)  # the estimate is not accurate to the minute
    days, remaining_minutes = divmod(minutes, 24 * 60)
    words = []
    for count, name in ((days, "day"), (remaining_minutes // 60, "hour"), (remaining_minutes % 60, "minute")):
        if count:
            words.append(f"{count} {name}{'s' * (count > 1)}")
    return " ".join(words[:2])
