"""`lmzoo pretrain`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lmzoo.cli.app import app, messages, stoppable
from lmzoo.cli.joining import joined
from lmzoo.cli.options import DOCUMENTS, Field, Ray, Split, Workers
from lmzoo.cli.output import announce_keras, say

_LONG = 3600.0  # seconds of training that are confirmed first
_TOKENS = "Tokens to train on, counting repetitions: the corpus is repeated as often as necessary."
_WORK = "Folder of the run, from which a stopped run continues. Default: OUTPUT.work."
_LENGTH = "Tokens in most sequences (128); for elmo, the words through which gradients flow (20)."


@app.command(rich_help_panel="Tasks")
def pretrain(
    corpus: Annotated[list[str], typer.Argument(metavar="CORPUS...", help=DOCUMENTS, show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The preset's directory to write.")],
    family: Annotated[
        str | None, typer.Option("--family", help="bert (the default), roberta, albert, distilbert or elmo.")
    ] = None,
    size: Annotated[str, typer.Option("--size", help="nano, mini, small, medium or base.")] = "nano",
    tokens: Annotated[int, typer.Option("--tokens", min=1, help=_TOKENS)] = 60_000_000,
    validation: Annotated[
        list[str] | None,
        typer.Option(
            "--validation",
            help="Text to evaluate on: a file, folder or quoted pattern; may be given several times. Default: 1% of "
            "the documents.",
        ),
    ] = None,
    work: Annotated[Path | None, typer.Option("--work", help=_WORK)] = None,
    vocabulary_size: Annotated[
        int, typer.Option("--vocabulary-size", min=1, help="Tokens in the vocabulary; for elmo, words to predict.")
    ] = 8000,
    sequence_length: Annotated[int | None, typer.Option("--sequence-length", min=4, help=_LENGTH)] = None,
    positions: Annotated[int, typer.Option("--positions", min=4, help="Tokens in the longest sequences.")] = 512,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Sequences in a batch (32; for elmo 128).")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", help="Peak learning rate. Default: from the model's width.")
    ] = None,
    optimizer: Annotated[str, typer.Option("--optimizer", help="adamw or lamb; elmo uses Adagrad.")] = "adamw",
    objective: Annotated[
        str, typer.Option("--objective", help="Second objective: nsp, sop, none, or auto for the family's.")
    ] = "auto",
    dynamic: Annotated[
        bool, typer.Option("--dynamic/--static", help="Draw new masks for each batch, or keep those of a sequence.")
    ] = True,
    dtype: Annotated[str, typer.Option("--dtype", help="Dtype policy, such as mixed_bfloat16.")] = "float32",
    seed: Annotated[int, typer.Option("--seed", help="Seed for all random numbers.")] = 0,
    accumulate: Annotated[
        int, typer.Option("--accumulate", min=1, help="Batches whose gradients are accumulated for one step.")
    ] = 1,
    remat: Annotated[
        bool, typer.Option("--remat", help="Compute activations again in the backward pass: saves memory, costs time.")
    ] = False,
    field: Field = "text",
    split: Split = True,
    tensorboard: Annotated[Path | None, typer.Option("--tensorboard", help="Folder for TensorBoard's logs.")] = None,
    language: Annotated[str | None, typer.Option("--language", help="Language that the preset lists, as en.")] = None,
    licence: Annotated[str | None, typer.Option("--licence", help="Licence it lists, as Apache-2.0.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing preset.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask on a terminal before more than an hour of training.")
    ] = False,
    workers: Workers = None,
    ray: Ray = None,
) -> None:
    """Train a vocabulary and a model on text, and write them as a preset with a model card.

    A run that was stopped, even by a kill, continues with the same command. States are saved every few minutes, and
    after the current step on Ctrl-C (exit code 130; press it again not to wait) and SIGTERM (143). The run's folder
    holds log.csv, the vocabulary, the tokenized text and the latest states. With --workers, so many processes train one
    model, on JAX; if one dies, all continue from the latest state, at most three times.
    """
    with messages(), stoppable(work or Path(f"{output}.work")), joined(workers, ray):
        announce_keras()
        import keras

        from lmzoo.families import DEFAULT_FAMILY
        from lmzoo.pretraining import Recipe
        from lmzoo.pretraining import pretrain as run
        from lmzoo.processes import process_index

        def confirm(seconds: float) -> None:
            say(f"training takes about {_duration(seconds)} on this machine")
            if seconds > _LONG and not yes and sys.stdin.isatty():
                typer.confirm("Start it?", abort=True, err=True)

        recipe = Recipe(
            family=family or DEFAULT_FAMILY,
            size=size,
            tokens=tokens,
            vocabulary_size=vocabulary_size,
            sequence_length=sequence_length,
            positions=positions,
            batch_size=batch_size,
            learning_rate=learning_rate,
            optimizer=optimizer,
            objective=objective,
            dynamic=dynamic,
            dtype=dtype,
            seed=seed,
            accumulate=accumulate,
            remat=remat,
        )
        metadata = {"languages": language and [language], "licence": licence}
        scores = run(
            corpus,
            output,
            recipe,
            validation or None,
            work,
            overwrite,
            [keras.callbacks.TensorBoard(tensorboard)] if tensorboard and process_index() == 0 else [],
            {key: value for key, value in metadata.items() if value},
            say=say,
            field=field,
            split=split,
            confirm=confirm,
        )
        for name, value in scores.items():
            typer.echo(f"{name}\t{value:.6g}")


def _duration(seconds: float) -> str:
    """A time as one says it: "2 minutes", "3 hours 20 minutes", "5 days 4 hours"."""
    minutes = max(1, round(seconds / 60))
    if minutes >= 60:
        minutes = round(minutes, -1)  # an estimate is not better than that
    (days, rest), words = divmod(minutes, 24 * 60), []
    for count, name in ((days, "day"), (rest // 60, "hour"), (rest % 60, "minute")):
        if count:
            words.append(f"{count} {name}{'s' * (count > 1)}")
    return " ".join(words[:2])
