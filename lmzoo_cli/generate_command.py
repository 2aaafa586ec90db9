"""`lmzoo generate`."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Literal

import typer

from lmzoo_cli.app import app, messages
from lmzoo_cli.model_loading import find_model, load_task
from lmzoo_cli.options import MODEL
from lmzoo_cli.output import announced

Sampler = Literal["greedy", "random", "top_k", "top_p", "beam", "contrastive"]


def _above_zero(temperature: float) -> float:
    if temperature <= 0:
        raise typer.BadParameter("it must be above 0; its limit of 0 is --sampler greedy")
    return temperature


@app.command(rich_help_panel="Models")
def generate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL, show_default=False)],
    prompts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROMPT]...", help="Texts to continue. Default: lines from standard input."),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option("--max-new-tokens", min=1, help="Largest number of tokens to add to a prompt. Default: 64."),
    ] = None,
    sampler: Annotated[Sampler, typer.Option("--sampler", help="How tokens are chosen.")] = "greedy",
    temperature: Annotated[
        float,
        typer.Option(
            "--temperature",
            help="Divides the logits: below 1, likely tokens become more likely.",
            callback=_above_zero,
        ),
    ] = 1.0,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help="String before which a text ends; may be given several times.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Seed that makes samples repeatable.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines, with prompt and new text in separate fields.")
    ] = False,
) -> None:
    """Continue texts with a language model; the text is printed as it comes."""
    with messages():
        found = prompts or [line.rstrip("\r\n") for line in sys.stdin]
        kind, task = load_task(find_model(model))
        if kind.name != "causal-lm":
            name, other = type(task).__name__, "translate" if kind.name == "translation" else "predict"
            raise ValueError(f"{model} holds a {name}, which does not continue texts: use `lmzoo {other}`.")
        settings = {"sampler": sampler, "temperature": temperature, "stop": stop or (), "seed": seed}
        if as_json:
            with announced("Compiling and generating"):
                texts = task.generate(found, max_new_tokens, **settings)
            for prompt, text in zip(found, texts, strict=True):
                typer.echo(json.dumps({"prompt": prompt, "text": text}, ensure_ascii=False))
            return
        for prompt in found:
            pieces = task.generate([prompt], max_new_tokens, stream=True, **settings)
            typer.echo(prompt, nl=False)
            for (piece,) in pieces:
                typer.echo(piece, nl=False)
                sys.stdout.flush()
            typer.echo()
