"""The command `lmzoo prepare`."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import typer

from lmzoo_cli.messages import exit_when_stopped
from lmzoo_cli.options import DOCUMENTS, Field, Split, WorkerOptions, expand_options
from lmzoo_cli.output import print_tabs, show_status


@dataclass(frozen=True)
class PreparationOptions:
    """Options for the fields of `lmzoo.data.corpora.Preparation`."""

    min_characters: Annotated[int, typer.Option(min=0, help="Leave out documents with fewer characters.")] = 0
    max_characters: Annotated[int | None, typer.Option(min=1, help="Leave out documents with more characters.")] = None
    languages: Annotated[
        list[str] | None,
        typer.Option(
            "--language",
            help="Language of the documents to keep, such as en; may be given several times. Default: all.",
        ),
    ] = None
    duplicates: Annotated[
        Literal["keep", "exact", "near"],
        typer.Option(help="Leave out copies of earlier documents: exact ones, or also near ones (by MinHash)."),
    ] = "keep"
    similarity: Annotated[
        float, typer.Option(help="Fraction of five-word runs that near duplicates have in common.")
    ] = 0.8
    shard_tokens: Annotated[int, typer.Option(min=1, help="Number of tokens after which a new file begins.")] = 1 << 24
    field: Field = "text"
    split: Split = True


@expand_options
def prepare(
    documents: Annotated[list[str], typer.Argument(metavar="DOCUMENTS...", help=DOCUMENTS)],
    output: Annotated[str, typer.Argument(metavar="OUT", help="The directory of the corpus to write.")],
    tokenizer: Annotated[str, typer.Option(help="The preset whose tokenizer to use.")],
    options: PreparationOptions,
    scale: WorkerOptions,
) -> None:
    """Tokenize documents into a corpus for pre-training in Python.

    Options leave out duplicates and other unwanted documents. Each file of documents becomes separate files in OUT. The
    result is the same for any number of workers. To continue a stopped run, repeat the command.
    """
    from lmzoo.data.corpora import Preparation, prepare_corpus
    from lmzoo.presets.source import open_source

    with show_status(f"Loading {tokenizer}"):
        preset_tokenizer = open_source(tokenizer).preprocessor().tokenizer
    preparation = Preparation(**{**asdict(options), "languages": tuple(options.languages or ())})
    # Ray reports the death of a worker on standard output.
    with exit_when_stopped(output), contextlib.redirect_stdout(sys.stderr):
        counts = prepare_corpus(documents, preset_tokenizer, output, preparation, scale.workers, scale.ray)
    print_tabs(counts.items())
