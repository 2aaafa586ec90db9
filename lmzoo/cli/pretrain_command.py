"""`lmzoo pretrain`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lmzoo.cli.app import app, messages

_CORPUS = (
    "Files of text, folders of them or patterns: .txt with a blank line between documents, or .jsonl; also compressed "
    "by gzip or xz."
)
_TOKENS = "Tokens to train on, repeated ones counted. What is there is gone through as often as it takes."
_WORK = "Folder of the run, from which it goes on if it was stopped. Default: OUTPUT.work."
_LENGTH = "Tokens of most rows (128); of elmo the words through which gradients flow (20)."


@app.command(rich_help_panel="Tasks")
def pretrain(
    corpus: Annotated[list[str], typer.Argument(metavar="CORPUS...", help=_CORPUS, show_default=False)],
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
            help="Text to evaluate on: a file, folder or quoted pattern; may be given several times. Default: a "
            "hundredth of the documents.",
        ),
    ] = None,
    work: Annotated[Path | None, typer.Option("--work", help=_WORK)] = None,
    vocabulary_size: Annotated[
        int, typer.Option("--vocabulary-size", min=1, help="Pieces; of elmo words that it predicts.")
    ] = 8000,
    sequence_length: Annotated[int | None, typer.Option("--sequence-length", min=4, help=_LENGTH)] = None,
    positions: Annotated[int, typer.Option("--positions", min=4, help="Tokens of the longest rows.")] = 512,
    batch_size: Annotated[int | None, typer.Option("--batch-size", min=1, help="Rows (32; of elmo 128).")] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", help="Its peak. Default: by the width.")
    ] = None,
    optimizer: Annotated[str, typer.Option("--optimizer", help="adamw or lamb; elmo has Adagrad.")] = "adamw",
    objective: Annotated[
        str, typer.Option("--objective", help="Beside masks: nsp, sop, none, or auto for the family's.")
    ] = "auto",
    dynamic: Annotated[
        bool, typer.Option("--dynamic/--static", help="Whether masks are drawn anew for each batch.")
    ] = True,
    dtype: Annotated[str, typer.Option("--dtype", help="Such as mixed_bfloat16.")] = "float32",
    seed: Annotated[int, typer.Option("--seed", help="Of all that is random.")] = 0,
    accumulate: Annotated[
        int, typer.Option("--accumulate", min=1, help="Batches whose gradients are gathered for one step.")
    ] = 1,
    remat: Annotated[
        bool, typer.Option("--remat", help="Keep less for the backward pass and compute it again: memory for time.")
    ] = False,
    field: Annotated[str, typer.Option("--field", help="Key of the text in .jsonl files.")] = "text",
    split: Annotated[
        bool, typer.Option("--split/--no-split", help="Whether lines are split into sentences, or each is one.")
    ] = True,
    tensorboard: Annotated[Path | None, typer.Option("--tensorboard", help="Folder for TensorBoard's logs.")] = None,
    language: Annotated[str | None, typer.Option("--language", help="For the preset's list: en.")] = None,
    licence: Annotated[str | None, typer.Option("--licence", help="For the preset's list: Apache-2.0.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing preset.")] = False,
) -> None:
    """Learn a vocabulary and a model from text and write them as a preset with a model card.

    A run that is stopped, also by a kill, goes on with the same command; after a SIGTERM, on which it saves its state,
    the exit code is 143. Its folder holds log.csv, the vocabulary, the tokenised text and the newest states.
    """
    with messages():
        import keras

        from lmzoo.families import DEFAULT_FAMILY
        from lmzoo.pretraining import Recipe
        from lmzoo.pretraining import pretrain as run

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
        console = Console(stderr=True)
        try:
            scores = run(
                corpus,
                output,
                recipe,
                validation or None,
                work,
                overwrite,
                [keras.callbacks.TensorBoard(tensorboard)] if tensorboard else [],
                {key: value for key, value in metadata.items() if value},
                say=lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True),
                field=field,
                split=split,
            )
        except InterruptedError as stopped:
            console.print(str(stopped), markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(128 + signal.SIGTERM) from None
        for name, value in scores.items():
            typer.echo(f"{name}\t{value:.6g}")
