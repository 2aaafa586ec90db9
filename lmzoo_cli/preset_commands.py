"""`lmzoo presets`, `lmzoo convert` and `lmzoo verify`."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lmzoo_cli.app import app, messages
from lmzoo_cli.output import announce_keras, announced, plain_table, print_tabs, say


class TargetFormat(StrEnum):
    """The formats that `lmzoo convert` writes."""

    keras = "keras"
    keras_hub = "keras_hub"
    hf = "hf"
    tf1 = "tf1"
    bilm = "bilm"


@app.command(rich_help_panel="Presets and checkpoints")
def presets() -> None:
    """List the presets that `from_preset` knows by name.

    On a terminal they are shown as a table; in a pipe or a file, as tab-separated lines with exact numbers, after a
    line that names the columns.
    """
    from lmzoo.presets.catalog import list_presets

    known = [info for _, info in sorted(list_presets().items())]
    console = Console()
    if not console.is_terminal:
        columns = ("name", "family", "parameters", "size_bytes", "languages", "licence", "handle")
        fields = [{**asdict(info), "languages": ",".join(info.languages)} for info in known]
        print_tabs([columns, *([row[column] for column in columns] for row in fields)])
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
    # Users copy the names, so they are never cut: where space is short, the last columns are left out.
    table, room = plain_table(), console.width
    for title, values in cells.items():
        room -= max(map(len, [title, *values])) + 2 * (title != "name")
        if room < 0:
            break
        table.add_column(title, no_wrap=True)
    for row in zip(*cells.values(), strict=True):
        table.add_row(*row[: len(table.columns)])
    console.print(table)


_SOURCE = "A preset's name, a directory, hf://org/name, kaggle://... or https://..."
_FamilyOption = Annotated[
    str | None,
    typer.Option(help="The family, such as bert, of a checkpoint that does not tell it.", show_default=False),
]


@app.command(rich_help_panel="Presets and checkpoints")
def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=_SOURCE, show_default=False)],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The directory to write.", show_default=False)],
    to: Annotated[TargetFormat, typer.Option(help="The format to write.")] = TargetFormat.keras,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing directory.")] = False,
    family: _FamilyOption = None,
) -> None:
    """Write a checkpoint or preset in another format: weights, head, labels and tokenizer.

    The formats are lmzoo's own presets (keras), KerasHub's presets (keras_hub; backbones only), Hugging Face's
    transformers (hf), the original code of BERT, ALBERT and XLNet (tf1), and ELMo of bilm-tf and AllenNLP (bilm).
    """
    with messages():
        from lmzoo.presets.catalog import local_directory

        local_directory(source)  # it exists, or can be downloaded
        announce_keras()
        with announced(f"Converting {source}"):
            import lmzoo.models  # noqa: F401 - registers the families
            from lmzoo.presets.converting import convert

            convert(source, target, to.value, overwrite, family)
        say(f"written to {target}")


@app.command(rich_help_panel="Presets and checkpoints")
def verify(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=_SOURCE, show_default=False)],
    write_manifest: Annotated[
        bool,
        typer.Option(
            "--write-manifest", help="Write the checksums of its files, which are checked whenever it is loaded."
        ),
    ] = False,
    family: _FamilyOption = None,
) -> None:
    """List what a checkpoint or preset holds, and check all of it: files, configuration, tensors, tokenizer."""
    with messages():
        from lmzoo.presets.catalog import local_directory

        local_directory(source)  # it exists, or can be downloaded
        announce_keras()
        with announced(f"Checking {source}"):
            import lmzoo.models  # noqa: F401 - registers the families
            from lmzoo.presets.verifying import verify

            found = verify(source, write_manifest, family)
        console = Console()
        if not console.is_terminal:
            print_tabs(found.items())
            return
        table = plain_table(show_header=False)
        for part, value in found.items():
            table.add_row(part, value)
        console.print(table)
