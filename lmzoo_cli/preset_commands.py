"""The commands `lmzoo presets`, `lmzoo convert` and `lmzoo verify`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from lmzoo_cli.output import plain_table, print_tabs, say, show_parts, show_status

if TYPE_CHECKING:
    from lmzoo import PresetInfo


def presets() -> None:
    """List the presets that `from_preset` loads by name, and where each comes from.

    A preset is part of the package, in a local directory of presets, or downloaded when it is first loaded.

    On a terminal, the output is a table; in a pipe or a file, tab-separated lines with column names and exact numbers.
    """
    from lmzoo import list_presets

    infos = [info for _, info in sorted(list_presets().items())]
    console = Console()
    if not console.is_terminal:
        columns = ("name", "family", "parameters", "size_bytes", "languages", "license", "handle", "where")
        rows = [
            {**asdict(info), "languages": ",".join(info.languages), "where": describe_place(info)} for info in infos
        ]
        print_tabs([columns, *([row[column] for column in columns] for row in rows)])
        return
    values_by_title: dict[str, list[str]] = {
        "name": [info.name for info in infos],
        "params": [f"{info.parameters / 1e6:.1f}M" for info in infos],
        "size": [f"{info.size_bytes / 1e6:.1f} MB" for info in infos],
        "where": [describe_place(info) for info in infos],
        "family": [info.family for info in infos],
        "language": [", ".join(info.languages) for info in infos],
        "license": [info.license for info in infos],
        "handle": ["" if info.shipped else info.handle for info in infos],
    }
    # Names are never truncated, since users copy them: on narrow terminals, the last columns are dropped.
    table = plain_table()
    free_width = console.width
    for title, values in values_by_title.items():
        free_width -= max(map(len, [title, *values])) + 2 * (title != "name")
        if free_width < 0:
            break
        table.add_column(title, no_wrap=True)
    for row in zip(*values_by_title.values(), strict=True):
        table.add_row(*row[: len(table.columns)])
    console.print(table)


def describe_place(info: PresetInfo) -> Literal["package", "local", "download"]:
    """Return where a preset comes from: the package, a local directory, or a download."""
    if info.shipped:
        return "package"
    return "local" if info.handle == info.name else "download"


_SOURCE = "A preset's name, a directory, hf://org/name, kaggle://... or https://..."
_FamilyOption = Annotated[str | None, typer.Option(help="Family, such as bert, of a checkpoint that does not name it.")]


def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=_SOURCE)],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The directory to write.")],
    to: Annotated[
        Literal["keras", "keras_hub", "hf", "tf1", "bilm"], typer.Option(help="The format to write.")
    ] = "keras",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing directory.")] = False,
    family: _FamilyOption = None,
) -> None:
    """Write a checkpoint or preset in another format: weights, head, labels and tokenizer.

    The formats are lmzoo's own presets (keras), KerasHub's presets (keras_hub; backbones only), Hugging Face's
    transformers (hf), the original code of BERT, ALBERT and XLNet (tf1), and ELMo of bilm-tf and AllenNLP (bilm).
    """
    import lmzoo

    with show_status(f"Converting {source}"):
        lmzoo.convert(source, target, to, overwrite, family)
    say(f"Wrote {target}.")


def verify(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=_SOURCE)],
    write_manifest: Annotated[
        bool,
        typer.Option(
            "--write-manifest",
            help="Write a manifest with checksums of the files, against which every later load checks them.",
        ),
    ] = False,
    family: _FamilyOption = None,
) -> None:
    """List the contents of a checkpoint or preset, and check its files, configuration, tensors and tokenizer."""
    import lmzoo

    with show_status(f"Checking {source}"):
        parts = lmzoo.verify(source, write_manifest, family)
    show_parts(parts)
