"""The `lmzoo` command. Imports nothing heavy at the top: `lmzoo_script` starts it before Keras is loaded."""

from __future__ import annotations

import importlib.metadata
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(
    help="lmzoo: a Keras 3 model zoo from ELMo to BERT, RoBERTa and ALBERT.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lmzoo {importlib.metadata.version('lmzoo')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Keeps sub-commands even while there is but one."""


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
    # Names are for copying: where space is short, the other columns give way.
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("name", no_wrap=True, min_width=max((len(info.name) for info in known), default=0))
    for title in ("family", "params", "size", "language", "licence"):
        table.add_column(title, no_wrap=True)
    table.add_column("where", overflow="fold")
    for info in known:
        table.add_row(
            info.name,
            info.family,
            f"{info.parameters / 1e6:.1f}M",
            f"{info.size_bytes / 1e6:.1f} MB",
            ", ".join(info.languages),
            info.licence,
            "shipped" if info.shipped else info.handle,
        )
    console.print(table)
