"""`lmzoo generate`."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, Literal

import typer

from lmzoo_cli.options import Model
from lmzoo_cli.output import read_lines, show_status

Sampler = Literal["greedy", "random", "top_k", "top_p", "beam", "contrastive"]


def _above_zero(temperature: float) -> float:
    if temperature <= 0:
        raise typer.BadParameter("it must be above 0; its limit of 0 is --sampler greedy")
    return temperature


def generate(
    model: Model,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROMPT]...", help="Texts to continue. Default: lines from standard input."),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Largest number of tokens to add to a prompt. Default: 64.")
    ] = None,
    sampler: Annotated[Sampler, typer.Option(help="How tokens are chosen.")] = "greedy",
    temperature: Annotated[
        float, typer.Option(help="Divides the logits: below 1, likely tokens become more likely.", callback=_above_zero)
    ] = 1.0,
    stop: Annotated[
        list[str] | None, typer.Option(help="String before which a text ends; may be given several times.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed that makes samples repeatable.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines, with prompt and new text in separate fields.")
    ] = False,
) -> None:
    """Continue texts with a language model; the text is printed as it comes."""
    from lmzoo.models import CausalLM, Seq2SeqLM
    from lmzoo_cli.model_loading import load_task

    texts = prompts or read_lines()
    _, task = load_task(model)
    if not isinstance(task, CausalLM):
        command = "translate" if isinstance(task, Seq2SeqLM) else "predict"
        name = type(task).__name__
        raise ValueError(f"{model} holds a {name}, which does not continue texts: use `lmzoo {command}`.")
    settings: dict[str, Any] = {"sampler": sampler, "temperature": temperature, "stop": stop or (), "seed": seed}
    if as_json:
        with show_status("Compiling and generating"):
            continuations = task.generate(texts, max_new_tokens, **settings)
        for prompt, text in zip(texts, continuations, strict=True):
            typer.echo(json.dumps({"prompt": prompt, "text": text}, ensure_ascii=False))
        return
    for prompt in texts:
        pieces = task.generate([prompt], max_new_tokens, stream=True, **settings)
        typer.echo(prompt, nl=False)
        for (piece,) in pieces:
            typer.echo(piece, nl=False)
            sys.stdout.flush()
        typer.echo()
