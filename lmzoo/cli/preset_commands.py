"""`lmzoo presets`, `lmzoo convert` and `lmzoo verify`."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lmzoo.cli.app import app, messages


class TargetFormat(StrEnum):
    """What `lmzoo convert` writes."""

    keras = "keras"
    keras_hub = "keras_hub"
    hf = "hf"
    tf1 = "tf1"
    bilm = "bilm"


@app.command()
def presets() -> None:
    """List the presets that `from_preset` knows by name.

    On a terminal it is a table. Into a pipe or a file go tab-separated lines with exact numbers, the first one naming
    the columns.
    """
    from lmzoo.presets.catalog import list_presets

    known = [info for _, info in sorted(list_presets().items())]
    console = Console()
    if not console.is_terminal:
        columns = ("name", "family", "parameters", "size_bytes", "languages", "licence", "handle")
        typer.echo("\t".join(columns))
        for info in known:
            fields = {**asdict(info), "languages": ",".join(info.languages)}
            typer.echo("\t".join(str(fields[column]) for column in columns))
        return
    cells = {
        "name": [info.name for info in known],
        "params": [f"{info.parameters / 1e6:.1f}M" for info in known],
        "size": [f"{info.size_bytes / 1e6:.1f} MB" for info in known],
        "family": [info.family for info in known],
        "language": [", ".join(info.languages) for info in known],
        "licence": [info.licence for info in known],
        "where": ["shipped" if info.shipped else info.handle for info in known],
    }
    # Names are for copying: where space is short, the last columns are left out.
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    room = console.width
    for title, values in cells.items():
        room -= max(map(len, [title, *values])) + 2 * (title != "name")
        if room < 0:
            break
        table.add_column(title, no_wrap=True)
    for row in zip(*cells.values(), strict=True):
        table.add_row(*row[: len(table.columns)])
    console.print(table)


_SOURCE = "A preset's name, a directory, hf://org/name, kaggle://... or https://..."


@app.command()
def convert(
    source: Annotated[str, typer.Argument(help=_SOURCE)],
    target: Annotated[Path, typer.Argument(help="The directory to write.")],
    to: Annotated[TargetFormat, typer.Option(help="The format to write.")] = TargetFormat.keras,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing directory.")] = False,
) -> None:
    """Write a checkpoint or preset in another format: weights, head, labels and tokenizer.

    keras: a preset of lmzoo. keras_hub: KerasHub's (backbones). hf: Hugging Face's transformers. tf1: Google's BERT and
    ALBERT code. bilm: bilm-tf's and AllenNLP's ELMo.
    """
    with messages():
        import lmzoo.models  # noqa: F401 - registers the families
        from lmzoo.conversion import convert

        convert(source, target, to.value, overwrite)
        Console(stderr=True).print(f"written to {target}", highlight=False)


@app.command()
def verify(source: Annotated[str, typer.Argument(help=_SOURCE)]) -> None:
    """List what is in a checkpoint or preset, and check all of it: files, configuration, tensors, tokenizer."""
    with messages():
        import lmzoo.models  # noqa: F401 - registers the families
        from lmzoo.conversion import verify

        found = verify(source)
        console = Console()
        if not console.is_terminal:
            for part, value in found.items():
                typer.echo(f"{part}\t{value}")
            return
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        for part, value in found.items():
            table.add_row(part, value)
        console.print(table)
