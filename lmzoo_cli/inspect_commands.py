"""The commands of `lmzoo inspect`, which analyze a model and write pages, tables or JSON lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text as Line

from lmzoo_cli.messages import Command
from lmzoo_cli.options import DATA, MODEL, BatchSize, LabeledColumns, expand_options
from lmzoo_cli.output import check_output, get_texts, show_status, to_json

if TYPE_CHECKING:
    from lmzoo.tasks import Task

inspect = typer.Typer(
    help="Look inside a model: attention, layers, word senses, surprisal, attributions, errors.", no_args_is_help=True
)

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A .keras file, or a preset of any family.")]
Texts = Annotated[
    list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts. Default: lines from standard input.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]
Context = Annotated[str | None, typer.Option(help="The context of the questions, or the second text of pairs.")]


@inspect.command(cls=Command)
def attention(
    model: Model,
    texts: Texts = None,
    context: Context = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("attention.html"),
) -> None:
    """Write an HTML page, which works offline, with the attention of each token in every layer and head."""
    from lmzoo import analysis

    check_output(output, overwrite=True)
    task, inputs = _load(model, texts)
    with show_status("Compiling and reading"):
        attentions = analysis.attention(task, _pair_with_context(inputs, context))
        analysis.write_attention(output, attentions, f"Attention of {Path(model).name}")
    typer.echo(f"Wrote {output}.")


@inspect.command(cls=Command)
@expand_options
def report(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)],
    data: Annotated[Path, typer.Argument(metavar="DATA", help=f"Labeled examples. {DATA}")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    by: Annotated[
        list[str] | None,
        typer.Option(help="Column by whose values the scores are broken down; may be given several times."),
    ] = None,
    batch_size: BatchSize = 32,
    columns: LabeledColumns,
) -> None:
    """Write an HTML page with a task's scores on labeled examples, its most confident mistakes and its calibration.

    The page shows the scores of `lmzoo evaluate`, and breaks them down by the length of texts and the columns of --by.
    """
    from lmzoo import analysis
    from lmzoo.data.examples import ExampleStream
    from lmzoo.tasks.base.reports import add_optional_tables, check_optional_tables
    from lmzoo_cli.examples import read_columns
    from lmzoo_cli.model_loading import load_task
    from lmzoo_cli.task_scores import score

    check_output(output, overwrite=True)
    kind, task = load_task(model)
    with show_status("Reading the examples"):
        x, y = kind.read_labeled(data, columns, task)
    if isinstance(x, ExampleStream):
        raise ValueError(f"A report is on the examples of one file, not of a directory or a pattern: {data}.")
    values_by_column = read_columns(data, columns, by or [])
    check_optional_tables(x, True, values_by_column, judged=task.judges(y))
    task_report = add_optional_tables(score(kind, task, x, y, batch_size), x, True, values_by_column)
    analysis.write_report(output, task_report, f"{Path(model).name} on {data.name}")
    typer.echo(f"Wrote {output}.")


@inspect.command(cls=Command)
def layers(model: Model, texts: Texts = None, as_json: AsJson = False) -> None:
    """Show how far each layer moves the token vectors, and how similar the vectors of random tokens are."""
    from lmzoo import analysis

    task, inputs = _load(model, texts)
    with show_status("Compiling and reading"):
        changes = analysis.layer_changes(task, inputs)
        cosines = analysis.anisotropy(task, inputs)
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


@inspect.command(cls=Command)
def senses(
    model: Model,
    word: Annotated[str, typer.Argument(metavar="WORD", help="A word in the texts.")],
    texts: Texts = None,
    groups: Annotated[int, typer.Option(min=1, help="Number of groups.")] = 2,
    layer: Annotated[int | None, typer.Option(help="Layer to take the vectors from. Default: the last one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Group the occurrences of a word by sense, using the similarity of their vectors."""
    from lmzoo import analysis
    from lmzoo.models import TextEmbedder

    task, inputs = _load(model, texts)
    with show_status("Compiling and reading"):
        embedder = task if isinstance(task, TextEmbedder) else TextEmbedder(task.backbone, task.preprocessor)
        occurrences = analysis.senses(embedder, word, inputs, layers=layer, groups=groups)
    rows: list[dict[str, Any]] = []
    for occurrence in sorted(occurrences, key=lambda occurrence: occurrence.group):
        text = inputs[occurrence.text]
        if as_json:
            rows.append({"group": occurrence.group, "text": text, "start": occurrence.start, "end": occurrence.end})
        else:
            line = Line(text)
            line.stylize("bold reverse", occurrence.start, occurrence.end)
            rows.append({"group": str(occurrence.group), "text": line})
    _print(rows, as_json)


@inspect.command(cls=Command)
def surprisal(model: Model, texts: Texts = None, as_json: AsJson = False) -> None:
    """Show the surprisal of each word to a language model, in nats."""
    from lmzoo import analysis

    task, inputs = _load(model, texts)
    with show_status("Compiling and reading"):
        surprisals = analysis.surprisal(task, inputs)
    for text, words in zip(inputs, surprisals, strict=True):
        if as_json:
            typer.echo(to_json({"text": text, "words": [word._asdict() for word in words]}))
        else:
            _print([{"word": word.word, "surprisal": word.surprisal} for word in words], False)


@inspect.command(cls=Command)
def why(
    model: Model,
    texts: Texts = None,
    target: Annotated[str | None, typer.Option(help="Class to explain. Default: the predicted class.")] = None,
    gradients: Annotated[
        bool, typer.Option("--gradients", help="Use integrated gradients of tokens instead of leaving words out.")
    ] = False,
    word: Annotated[
        str | None, typer.Option(help="For a tagger: the word whose label to explain, or its index from 0.")
    ] = None,
    context: Context = None,
    page: Annotated[
        Path | None,
        typer.Option("--html", help="Write an HTML page with highlighted texts, instead of printing tables."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show each word's contribution to a prediction: a class, a number, a word's label, or an answer to a question."""
    from lmzoo import analysis

    if page:
        check_output(page, overwrite=True)
    task, inputs = _load(model, texts)
    explain: Any = analysis.integrated_gradients if gradients else analysis.leave_out
    word_or_index: Any = int(word) if word and word.isdecimal() else word
    with show_status("Compiling and reading"):
        attributions = explain(task, _pair_with_context(inputs, context), target=target, word=word_or_index)
    if page:
        analysis.write_attributions(page, attributions, f"Contributions to answers of {Path(model).name}")
        typer.echo(f"Wrote {page}.")
        return
    for text, attribution in zip(inputs, attributions, strict=True):
        contributions = [
            {"part": token, "contribution": float(value)}
            for token, value in zip(attribution.tokens, attribution.values, strict=True)
        ]
        if as_json:
            typer.echo(
                to_json(
                    {"text": text, "target": attribution.target, "score": attribution.score, "parts": contributions}
                )
            )
        else:
            typer.echo(f"{attribution.target}: {attribution.score:.4g}")
            _print(contributions, False)


def _pair_with_context(texts: list[str], context: str | None) -> list[Any]:
    """Pair each text with the context, or return the texts if the context is None."""
    return [*texts] if context is None else [(text, context) for text in texts]


def _load(model: str, text_arguments: list[str] | None) -> tuple[Task, list[str]]:
    """Load a task, or a `TextEmbedder` if a preset has no head, and read the texts.

    Args:
        model: a .keras file or a preset.
        text_arguments: texts, or None for the lines of standard input.

    Raises:
        FileNotFoundError: If `model` is a .keras file that does not exist.
        ValueError: If there are no texts, `model` cannot be loaded, or it is not a task.
    """
    from lmzoo.models import TextEmbedder
    from lmzoo.presets.source import open_source
    from lmzoo.registry.head_kinds import find_task_for_head
    from lmzoo.tasks import Task
    from lmzoo_cli.model_loading import find_file, load_file

    texts = get_texts(text_arguments)
    if not texts:
        raise ValueError("There are no texts: pass them as arguments, or as lines of the standard input.")
    path = find_file(model)
    with show_status(f"Loading {model}"):
        if path is not None:
            task = load_file(path)  # of any class, such as Pretrainer, which `load_task` refuses
            if not isinstance(task, Task):
                raise ValueError(f"{model} holds a {type(task).__name__}, which is not a task.")
            return task, texts
        task_class: Any = find_task_for_head(open_source(model).head) or TextEmbedder
        return task_class.from_preset(model), texts


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print rows as JSON lines or as a table."""
    if as_json:
        for row in rows:
            typer.echo(to_json(row))
        return
    table = Table(box=None, pad_edge=False)
    for name in rows[0] if rows else ():
        table.add_column(name, justify="left" if isinstance(rows[0][name], (str, Line)) else "right")
    for row in rows:
        table.add_row(*map(_format_cell, row.values()))
    Console().print(table)


def _format_cell(value: Any) -> str | Line:
    """Format a cell: numbers get four significant digits, and None becomes an empty string."""
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Line):
        return value
    return "" if value is None else f"{value:.4g}"
