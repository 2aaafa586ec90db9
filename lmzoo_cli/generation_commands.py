"""The commands `lmzoo generate`, `lmzoo classify` and `lmzoo translate`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from lmzoo_cli.options import BatchSize, Columns, Model
from lmzoo_cli.output import get_texts, show_status

Reduction = Literal["sum", "mean"]
Sampler = Literal["greedy", "random", "top_k", "top_p", "beam", "contrastive"]


def _check_temperature(temperature: float) -> float:
    """Return the temperature; raise an error if it is not above 0."""
    if temperature <= 0:
        raise typer.BadParameter("it must be above 0; its limit of 0 is --sampler greedy")
    return temperature


def _check_choices(choices: list[str] | None) -> list[str]:
    """Check that there are choices, and return them.

    Raises:
        typer.BadParameter: If there are no choices, as in a call that is meant for `lmzoo predict`.
    """
    if not choices:
        raise typer.BadParameter(
            "a fine-tuned classifier answers with `lmzoo predict`, such as `echo TEXT | lmzoo predict MODEL -`; "
            "`lmzoo classify` asks a language model, which needs at least two choices",
            param_hint="'--choice'",
        )
    return choices


def generate(
    model: Model,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROMPT]...", help="Texts to continue. Default: lines from standard input."),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of tokens to add to a prompt. Default: the model's.")
    ] = None,
    sampler: Annotated[Sampler, typer.Option(help="Method for choosing tokens.")] = "greedy",
    temperature: Annotated[
        float,
        typer.Option(
            help="Divides the logits: below 1, likely tokens become even more likely.", callback=_check_temperature
        ),
    ] = 1.0,
    stop: Annotated[
        list[str] | None, typer.Option(help="String before which the text ends; may be given several times.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed that makes samples repeatable.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines, with prompt and new text in separate fields.")
    ] = False,
) -> None:
    """Continue texts with a language model.

    Without --json, text is printed as it is generated.
    """
    from lmzoo.models import CausalLM, Seq2SeqLM
    from lmzoo_cli.model_loading import load_task

    texts = get_texts(prompts)
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


def classify(
    *,
    model: Model,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROMPT]...", help="Prompts to classify. Default: lines from standard input."),
    ] = None,
    choices: Annotated[
        list[str] | None,
        typer.Option("--choice", help="Possible continuation of every prompt; give at least two."),
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help='Table of solved examples to put before each prompt, with prompts in the column "text" and choices in '
            'the column "label": CSV, TSV, JSON lines or Parquet.',
        ),
    ] = None,
    reduction: Annotated[
        Reduction, typer.Option(help="Likelihood of a choice: sum over its tokens, or mean per token.")
    ] = "sum",
    unconditional_prompt: Annotated[
        str | None,
        typer.Option(
            help="Prompt that says nothing about the answer, such as 'Answer:' or ''; the log-likelihoods after it are "
            "subtracted."
        ),
    ] = None,
    separator: Annotated[
        str,
        typer.Option(
            help="String between prompt and choice if neither has whitespace there. Default: a space.",
            show_default=False,
        ),
    ] = " ",
    top_k: Annotated[int, typer.Option(min=1, help="Number of choices to print for each prompt, best first.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences in a batch.")] = 32,
) -> None:
    """Print as JSON lines the choices that a language model finds most likely after each prompt.

    A fine-tuned classifier answers with `lmzoo predict` instead.

    The scores of all choices are the softmax of their log-likelihoods.
    """
    from lmzoo.models import CausalLM
    from lmzoo.text.validate_text import clean_texts
    from lmzoo_cli.answers import open_output, write_json_lines
    from lmzoo_cli.examples import read_texts
    from lmzoo_cli.model_loading import load_task

    choices = clean_texts(map(os.fsencode, _check_choices(choices)), "choices")
    texts = get_texts(prompts)
    solved_examples: list[tuple[Any, Any]] = []
    if examples is not None:
        example_prompts, example_choices = read_texts(examples, Columns(), True)
        solved_examples = [*zip(example_prompts, example_choices or [], strict=True)]
    _, task = load_task(model)
    if not isinstance(task, CausalLM):
        name = type(task).__name__
        raise ValueError(f"{model} holds a {name}, which does not continue texts: use `lmzoo predict`.")
    settings: dict[str, Any] = {"reduction": reduction, "unconditional_prompt": unconditional_prompt}
    with show_status(f"Compiling and classifying {len(texts):,} prompts"):
        answers = task.classify(
            texts, choices, solved_examples, **settings, separator=separator, top_k=top_k, batch_size=batch_size
        )
    with open_output(None) as file:
        write_json_lines(file, zip(({"prompt": prompt} for prompt in texts), answers, strict=True))


def translate(
    model: Model,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="Texts to translate. Default: lines from standard input."),
    ] = None,
    to: Annotated[
        str | None, typer.Option(help="Language to translate to, such as fra, for a multilingual model.")
    ] = None,
    num_beams: Annotated[
        int | None, typer.Option(min=1, help="Number of beams in the search. Default: the model's.")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="Above 1 favors longer translations. Default: the model's.")
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of tokens in a translation. Default: the model's, or 2·n + 16 for a source of n.",
        ),
    ] = None,
    batch_size: BatchSize = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines, with the text and its translation.")] = (
        False
    ),
) -> None:
    """Translate texts; each translation is printed on its own line."""
    from lmzoo.models import Seq2SeqLM
    from lmzoo_cli.model_loading import load_task

    sources = get_texts(texts)
    _, task = load_task(model)
    if not isinstance(task, Seq2SeqLM):
        raise ValueError(f"{model} holds a {type(task).__name__}, which does not translate: use `lmzoo predict`.")
    with show_status(f"Compiling and translating {len(sources):,} texts"):
        translations = task.translate(sources, num_beams, length_penalty, max_new_tokens, to, batch_size)
    for text, translation in zip(sources, translations, strict=True):
        line = {"text": text, "translation": translation}
        typer.echo(json.dumps(line, ensure_ascii=False) if as_json else translation)
