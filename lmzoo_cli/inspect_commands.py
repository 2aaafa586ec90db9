"""`lmzoo inspect`: what a model does with texts, as a page, tables or lines of JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text as Line

from lmzoo_cli.app import app, messages
from lmzoo_cli.examples import Columns, Stream, read_columns
from lmzoo_cli.model_loading import find_model, load_task, load_with_examples
from lmzoo_cli.options import (
    DATA,
    MODEL,
    BatchSize,
    Choices,
    Encoding,
    FormatOption,
    Header,
    Label,
    Pair,
    Scale,
    Text,
)
from lmzoo_cli.output import announce_keras, announced, json_of

if TYPE_CHECKING:
    from lmzoo.tasks import Task

inspect = typer.Typer(
    help="Look inside a model: attention, layers, word senses, surprisal, attributions, errors.", no_args_is_help=True
)
app.add_typer(inspect, name="inspect", rich_help_panel="Models")

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A .keras file, or a preset of any family.", show_default=False)
]
Texts = Annotated[
    list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts. Default: lines from standard input.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]


Context = Annotated[
    str | None, typer.Option("--context", help="The context of the questions, or the second text of pairs.")
]


def _texts(given: list[str] | None) -> list[str]:
    found = given or [line.rstrip("\r\n") for line in sys.stdin]
    if not found:
        raise ValueError("There are no texts: pass them as arguments, or as lines of the standard input.")
    return found


def _with_context(texts: list[str], context: str | None) -> list[Any]:
    return [*texts] if context is None else [(text, context) for text in texts]


def _load(model: str) -> Task:
    """Any task on the model: the stored one, or one that computes vectors of texts."""
    stored = find_model(model)
    if stored.kind is not None or Path(model).is_file():
        return load_task(stored)[1]
    announce_keras()
    with announced(f"Loading {model}"):
        from lmzoo.models import TextEmbedder
        from lmzoo.presets.source import open_source
        from lmzoo.registry.head_kinds import task_that_reads

        found: Any = task_that_reads(open_source(model).head) or TextEmbedder
        task: Task = found.from_preset(model)
        return task


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Rows as lines of JSON or as a table."""
    if as_json:
        for row in rows:
            typer.echo(json_of(row))
        return
    table = Table(box=None, pad_edge=False)
    for name in rows[0] if rows else ():
        table.add_column(name, justify="left" if isinstance(rows[0][name], (str, Line)) else "right")
    for row in rows:
        table.add_row(*(x if isinstance(x, (str, Line)) else "" if x is None else f"{x:.4g}" for x in row.values()))
    Console().print(table)


@inspect.command()
def attention(
    model: Model,
    texts: Texts = None,
    context: Context = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("attention.html"),
) -> None:
    """Write a page that shows what each token attends to, in every layer and head. It needs no network."""
    with messages():
        found = _texts(texts)
        task = _load(model)
        with announced("Compiling and reading"):
            from lmzoo import analysis

            scores = analysis.attention(task, _with_context(found, context))
            analysis.write_attention(output, scores, f"Attention of {Path(model).name}")
        typer.echo(f"Wrote {output}.")


@inspect.command()
def report(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL, show_default=False)],
    data: Annotated[Path, typer.Argument(metavar="DATA", help=f"Labelled examples. {DATA}", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    by: Annotated[
        list[str] | None,
        typer.Option("--by", help="Column: scores are also given for each of its values; may be given several times."),
    ] = None,
    batch_size: BatchSize = 32,
    text: Text = None,
    pair: Pair = None,
    label: Label = None,
    choices: Choices = None,
    format: FormatOption = None,
    header: Header = True,
    encoding: Encoding = "utf-8",
    scale: Scale = 1.0,
) -> None:
    """Write a page with a task's scores on labelled examples, its most confident mistakes and its calibration.

    The scores are those of `lmzoo evaluate`, also by the length of texts and by the columns that --by names.
    """
    with messages():
        columns = Columns(text, pair, label, choices, format, header, encoding, scale)
        kind, task, (x, y) = load_with_examples(
            model, lambda kind, names: kind.reading.read(data, columns, True, names)
        )
        if isinstance(x, Stream):
            raise ValueError(f"A report is on the examples of one file, not of a folder or a pattern: {data}.")
        by_name = read_columns(data, columns, by or [])
        from lmzoo import analysis
        from lmzoo.tasks.base.reports import check_additions, with_errors
        from lmzoo_cli.task_scores import score

        check_additions(task, x, True, by_name)
        found = with_errors(score(task, bool(kind.reading.names), x, y, batch_size), x, columns=by_name)
        analysis.write_report(output, found, f"{Path(model).name} on {data.name}")
        typer.echo(f"Wrote {output}.")


@inspect.command()
def layers(model: Model, texts: Texts = None, as_json: AsJson = False) -> None:
    """Show how far each layer moves the vectors of the tokens, and how similar their directions are."""
    with messages():
        found = _texts(texts)
        task = _load(model)
        with announced("Compiling and reading"):
            from lmzoo import analysis

            changes, cosines = analysis.layer_changes(task, found), analysis.anisotropy(task, found)
        rows = [
            {
                "layer": str(layer),
                "distance": float(changes.distance[layer - 1]) if layer else None,
                "degrees": float(changes.degrees[layer - 1]) if layer else None,
                "cosine of random tokens": float(cosine),
            }
            for layer, cosine in enumerate(cosines)
        ]
        _print(rows, as_json)


@inspect.command()
def senses(
    model: Model,
    word: Annotated[str, typer.Argument(metavar="WORD", help="A word of the texts.", show_default=False)],
    texts: Texts = None,
    groups: Annotated[int, typer.Option("--groups", min=1, help="Number of groups.")] = 2,
    layer: Annotated[
        int | None, typer.Option("--layer", help="Layer to take the vectors from. Default: the last one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Group the occurrences of a word by the similarity of their vectors, that is, by sense."""
    with messages():
        found = _texts(texts)
        task = _load(model)
        with announced("Compiling and reading"):
            from lmzoo import analysis
            from lmzoo.models import TextEmbedder

            embedder = task if isinstance(task, TextEmbedder) else TextEmbedder(task.backbone, task.preprocessor)
            occurrences = analysis.senses(embedder, word, found, layers=layer, groups=groups)
        rows: list[dict[str, Any]] = []
        for sense in sorted(occurrences, key=lambda sense: sense.group):
            text = found[sense.text]
            if as_json:
                rows.append({"group": sense.group, "text": text, "start": sense.start, "end": sense.end})
            else:
                line = Line(text)
                line.stylize("bold reverse", sense.start, sense.end)
                rows.append({"group": str(sense.group), "text": line})
        _print(rows, as_json)


@inspect.command()
def surprisal(model: Model, texts: Texts = None, as_json: AsJson = False) -> None:
    """Show the surprisal of each word to a language model, in nats."""
    with messages():
        found = _texts(texts)
        task = _load(model)
        with announced("Compiling and reading"):
            from lmzoo import analysis

            words = analysis.surprisal(task, found)
        if as_json:
            for text, of_text in zip(found, words, strict=True):
                named = [word._asdict() for word in of_text]
                typer.echo(json_of({"text": text, "words": named}))
            return
        for of_text in words:
            _print([{"word": word.word, "surprisal": word.surprisal} for word in of_text], False)


@inspect.command()
def why(
    model: Model,
    texts: Texts = None,
    target: Annotated[
        str | None, typer.Option("--target", help="Class to explain. Default: the one that the model answers.")
    ] = None,
    gradients: Annotated[
        bool, typer.Option("--gradients", help="Use integrated gradients of tokens instead of leaving words out.")
    ] = False,
    word: Annotated[
        str | None,
        typer.Option("--word", help="For a tagger: the word whose label is explained, or its number from 0."),
    ] = None,
    context: Context = None,
    page: Annotated[
        Path | None, typer.Option("--html", help="Write a page with highlighted texts instead of tables.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what each word contributes to an answer: a class, a number, a word's label, or an answer to a question."""
    with messages():
        found = _texts(texts)
        task = _load(model)
        with announced("Compiling and reading"):
            from lmzoo import analysis

            explain: Any = analysis.integrated_gradients if gradients else analysis.leave_out
            chosen: Any = int(word) if word and word.isdecimal() else word
            results = explain(task, _with_context(found, context), target=target, word=chosen)
        if page:
            analysis.write_attributions(page, results, f"Contributions to answers of {Path(model).name}")
            typer.echo(f"Wrote {page}.")
            return
        for text, result in zip(found, results, strict=True):
            parts = [
                {"part": token, "contribution": float(value)}
                for token, value in zip(result.tokens, result.values, strict=True)
            ]
            if as_json:
                answer = {"text": text, "target": result.target, "score": result.score, "parts": parts}
                typer.echo(json_of(answer))
            else:
                typer.echo(f"{result.target}: {result.score:.4g}")
                _print(parts, False)
