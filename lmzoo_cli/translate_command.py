"""`lmzoo translate`."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from lmzoo_cli.app import app, messages
from lmzoo_cli.model_loading import find_model, load_task
from lmzoo_cli.options import MODEL, BatchSize
from lmzoo_cli.output import announced


@app.command(rich_help_panel="Models")
def translate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL, show_default=False)],
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="Texts to translate. Default: lines from standard input."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", help="Language to translate to, such as fra, for a model of several languages."),
    ] = None,
    num_beams: Annotated[
        int | None, typer.Option("--num-beams", min=1, help="Number of beams of the search. Default: the model's.")
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option("--length-penalty", help="Above 1 favours longer translations. Default: the model's."),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens",
            min=1,
            help="Largest number of tokens of a translation. Default: 2·n + 16 for a source of n.",
        ),
    ] = None,
    batch_size: BatchSize = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines, with the text and its translation.")] = (
        False
    ),
) -> None:
    """Translate texts; each translation is printed on a line."""
    with messages():
        found = texts or [line.rstrip("\r\n") for line in sys.stdin]
        kind, task = load_task(find_model(model))
        if kind.name != "translation":
            raise ValueError(f"{model} holds a {type(task).__name__}, which does not translate: use `lmzoo predict`.")
        with announced(f"Compiling and translating {len(found):,} texts"):
            answers = task.translate(found, num_beams, length_penalty, max_new_tokens, to, batch_size)
        for text, answer in zip(found, answers, strict=True):
            line = {"text": text, "translation": answer}
            typer.echo(json.dumps(line, ensure_ascii=False) if as_json else answer)
