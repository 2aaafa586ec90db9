"""`lmzoo translate`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from lmzoo_cli.options import BatchSize, Model
from lmzoo_cli.output import read_lines, show_status


def translate(
    model: Model,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="Texts to translate. Default: lines from standard input."),
    ] = None,
    to: Annotated[
        str | None, typer.Option(help="Language to translate to, such as fra, for a model of several languages.")
    ] = None,
    num_beams: Annotated[
        int | None, typer.Option(min=1, help="Number of beams of the search. Default: the model's.")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="Above 1 favors longer translations. Default: the model's.")
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Largest number of tokens of a translation. Default: 2·n + 16 for a source of n."),
    ] = None,
    batch_size: BatchSize = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines, with the text and its translation.")] = (
        False
    ),
) -> None:
    """Translate texts; each translation is printed on a line."""
    from lmzoo.models import Seq2SeqLM
    from lmzoo_cli.model_loading import load_task

    sources = texts or read_lines()
    _, task = load_task(model)
    if not isinstance(task, Seq2SeqLM):
        raise ValueError(f"{model} holds a {type(task).__name__}, which does not translate: use `lmzoo predict`.")
    with show_status(f"Compiling and translating {len(sources):,} texts"):
        translations = task.translate(sources, num_beams, length_penalty, max_new_tokens, to, batch_size)
    for text, translation in zip(sources, translations, strict=True):
        line = {"text": text, "translation": translation}
        typer.echo(json.dumps(line, ensure_ascii=False) if as_json else translation)
