"""`lmzoo prepare`."""

from __future__ import annotations

import contextlib
import sys
from enum import StrEnum
from typing import Annotated

import typer

from lmzoo_cli.messages import exit_when_stopped
from lmzoo_cli.options import DOCUMENTS, Field, Ray, Split, Workers, check_workers
from lmzoo_cli.output import announce_keras, print_tabs, show_status


class Duplicates(StrEnum):
    """Treatments of documents that occur twice."""

    keep = "keep"
    exact = "exact"
    near = "near"


def prepare(
    documents: Annotated[list[str], typer.Argument(metavar="DOCUMENTS...", help=DOCUMENTS, show_default=False)],
    output: Annotated[
        str, typer.Argument(metavar="OUT", help="The directory of the corpus to write.", show_default=False)
    ],
    tokenizer: Annotated[str, typer.Option("--tokenizer", help="The preset whose tokenizer to use.")],
    min_characters: Annotated[
        int, typer.Option("--min-characters", min=0, help="Leave out documents with fewer characters.")
    ] = 0,
    max_characters: Annotated[
        int | None, typer.Option("--max-characters", min=1, help="Leave out documents with more characters.")
    ] = None,
    languages: Annotated[
        list[str] | None,
        typer.Option(
            "--language",
            help="Leave out documents in other languages than this one, such as en; may be given several times.",
        ),
    ] = None,
    duplicates: Annotated[
        Duplicates,
        typer.Option(
            "--duplicates",
            help="Leave out documents that occurred before: exact copies, or near ones too (by MinHash).",
        ),
    ] = Duplicates.keep,
    similarity: Annotated[
        float,
        typer.Option("--similarity", help="Fraction of the runs of five words that near duplicates have in common."),
    ] = 0.8,
    shard_tokens: Annotated[
        int, typer.Option("--shard-tokens", min=1, help="Tokens after which a new file begins.")
    ] = 1 << 24,
    field: Field = "text",
    split: Split = True,
    workers: Workers = None,
    ray: Ray = None,
) -> None:
    """Tokenize documents into a corpus for pre-training in Python; leave out duplicates and other unwanted ones.

    Every file of documents becomes files of its own in OUT, which are the same for any number of workers. A run that
    was stopped continues with the same command.
    """
    announce_keras()
    from lmzoo.data.corpora import Preparation, prepare_corpus
    from lmzoo.presets.source import open_source

    check_workers(workers, ray)
    with show_status(f"Loading {tokenizer}"):
        stored_tokenizer = open_source(tokenizer).preprocessor().tokenizer
    preparation = Preparation(
        field=field,
        split=split,
        min_characters=min_characters,
        max_characters=max_characters,
        languages=tuple(languages or ()),
        duplicates=duplicates.value,
        similarity=similarity,
        shard_tokens=shard_tokens,
    )
    # Ray writes to the standard output that a worker has died.
    with exit_when_stopped(output), contextlib.redirect_stdout(sys.stderr):
        counts = prepare_corpus(documents, stored_tokenizer, output, preparation, workers, ray)
    print_tabs(counts.items())
