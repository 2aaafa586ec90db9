"""The commands `lmzoo embed`, `lmzoo search` and `lmzoo rank`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from lmzoo_cli.options import BatchSize, Model, Overwrite, WindowOptions, expand_options
from lmzoo_cli.output import show_status, shows_progress

_FORMAT = "Format of the files: csv, tsv, jsonl, parquet or txt (one text per line). Default: from the suffix."
_LINES = "A table, JSON lines or lines of text"

Embedder = Annotated[
    str, typer.Argument(metavar="MODEL", help="A .keras file of an embedder, a preset or a checkpoint.")
]
Text = Annotated[str, typer.Option(help="Column of the texts, by name or by number from 0.")]
Format = Annotated[str | None, typer.Option(help=_FORMAT)]
PromptName = Annotated[str | None, typer.Option(help="Name of another of the model's prompts.")]
TopK = Annotated[int | None, typer.Option(min=1, help="Number of texts to return for each query.")]
Answers = Annotated[
    str | None,
    typer.Option("--output", "-o", help="File to write instead of standard output: .jsonl, .csv or .parquet."),
]


@expand_options
def embed(
    *,
    model: Embedder,
    data: Annotated[str, typer.Argument(metavar="DATA", help=f"Texts. {_LINES}; or - for lines from standard input.")],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="File to write instead of standard output: .npy for an array, or .jsonl, .csv or .parquet.",
        ),
    ] = None,
    role: Annotated[
        Literal["query", "document"] | None,
        typer.Option("--as", help="Put the model's prompt for queries or documents before each text."),
    ] = None,
    prompt_name: PromptName = None,
    text: Text = "text",
    format: Format = None,
    batch_size: BatchSize = 32,
    long_texts: WindowOptions,
    overwrite: Overwrite = False,
) -> None:
    """Write the vector of each text, as JSON lines, CSV, Parquet, or an array for `lmzoo search`.

    A preset without the head of an embedder gets one that takes the mean over the tokens.
    """
    from lmzoo_cli.answers import check_answers
    from lmzoo_cli.searching import load_embedder, read_column, write_vectors

    check_answers(output, overwrite)
    texts = read_column(data, text, format)
    task = load_embedder(model, long_texts.settings)
    methods: dict[str | None, Callable[..., Any]] = {
        None: task.embed,
        "query": task.embed_queries,
        "document": task.embed_documents,
    }
    with show_status(f"Tokenizing {len(texts):,} texts, compiling and predicting") as cancel_status:
        write_vectors(methods[role], texts, prompt_name, batch_size, output, cancel_status, shows_progress(output))


@expand_options
def search(
    *,
    model: Embedder,
    queries: Annotated[
        str, typer.Argument(metavar="QUERIES", help=f"Queries. {_LINES}; or - for lines from standard input.")
    ],
    corpus: Annotated[str, typer.Argument(metavar="CORPUS", help=f"Texts to search in. {_LINES}.")],
    output: Answers = None,
    top_k: TopK = None,
    vectors: Annotated[
        Path | None,
        typer.Option(help="Vectors of CORPUS, written by `lmzoo embed --as document`, to search in without computing."),
    ] = None,
    query: Annotated[str, typer.Option(help="Column of the queries, by name or by number from 0.")] = "text",
    text: Text = "text",
    format: Format = None,
    query_prompt_name: PromptName = None,
    document_prompt_name: PromptName = None,
    batch_size: BatchSize = 32,
    long_texts: WindowOptions,
    overwrite: Overwrite = False,
) -> None:
    """Find the texts that are most similar to each query, and write them as JSON lines, CSV or Parquet.

    A JSON line holds a query and its answers, best first, each with index, text and score. --top-k is 10 by default, or
    the size of a smaller corpus.
    """
    from lmzoo_cli.answers import check_answers
    from lmzoo_cli.searching import load_embedder, load_vectors, read_column, write_rankings

    check_answers(output, overwrite)
    texts = read_column(corpus, text, format)
    query_texts = read_column(queries, query, None if queries == "-" else format)
    corpus_vectors = None if vectors is None else load_vectors(vectors)
    task = load_embedder(model, long_texts.settings)
    with show_status(f"Searching for {len(query_texts):,} queries in {len(texts):,} texts"):
        rankings = task.search(
            query_texts,
            texts if corpus_vectors is None else corpus_vectors,
            top_k,
            batch_size,
            None if corpus_vectors is None else texts,
            query_prompt_name,
            document_prompt_name,
        )
    write_rankings(zip(query_texts, rankings, strict=True), output)


def rank(
    *,
    model: Model,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help='JSON lines with "query" and "texts", or written by `lmzoo search`; or - for standard input.',
        ),
    ],
    output: Answers = None,
    top_k: TopK = None,
    batch_size: BatchSize = 32,
    overwrite: Overwrite = False,
) -> None:
    """Order the texts of each query by the scores of a cross-encoder, and write them as JSON lines, CSV or Parquet.

    A JSON line holds a query and its answers, best first, each with index, text and score. The indices are those in the
    file that `lmzoo search` has written, or count the texts from 0.
    """
    from lmzoo_cli.answers import check_answers
    from lmzoo_cli.searching import load_reranker, rank_lines, read_rankings, write_rankings

    check_answers(output, overwrite)
    candidates = read_rankings(data)
    task = load_reranker(model)
    with show_status(f"Compiling and ranking the texts of {len(candidates):,} queries") as cancel_status:
        write_rankings(rank_lines(task, candidates, top_k, batch_size, cancel_status, shows_progress(output)), output)
