"""The `lmzoo` command."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(help="lmzoo: a Keras 3 model zoo from ELMo to BERT, RoBERTa and ALBERT.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Keeps sub-commands even while there is but one."""


@app.command()
def presets() -> None:
    """List the presets that `from_preset` knows by name."""
    from lmzoo.presets import list_presets

    table = Table("name", "family", "parameters", "size", "languages", "licence", "where")
    for name, info in sorted(list_presets().items()):
        table.add_row(
            name,
            info.family,
            f"{info.parameters:,}",
            f"{info.size_bytes / 1e6:.1f} MB",
            ", ".join(info.languages),
            info.licence,
            "shipped" if info.shipped else info.handle,
        )
    Console().print(table)


def main() -> None:
    """Runs the command line."""
    app()
