"""Implementation of `lmzoo embed`, `lmzoo search` and `lmzoo rank`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np

from lmzoo.common.progress import progress_over
from lmzoo.data.examples import ExampleStream
from lmzoo.data.readers.text_files import get_name, json_objects, open_text, read_numbered_lines
from lmzoo.errors import NoExamplesError
from lmzoo.files.compilation_cache import use_compilation_cache
from lmzoo.files.urls import whole_file
from lmzoo.models import TextEmbedder, TextRegressor
from lmzoo.search import Hit
from lmzoo_cli.answers import WRITERS, choose_format, open_output
from lmzoo_cli.examples import iterate_in_parts, open_input, read_texts
from lmzoo_cli.model_loading import find_file, load_task
from lmzoo_cli.options import Columns
from lmzoo_cli.output import show_status


class Candidates(NamedTuple):
    """A query with the texts to rank, and the indices of the texts in their corpus."""

    query: str
    texts: list[str]
    indices: list[int]


def load_embedder(source: str, windows: Mapping[str, Any]) -> TextEmbedder:
    """Load an embedder; a preset without an embedder's head gets a new head, which has no weights.

    Args:
        source: path of a file, or name or path of a preset.
        windows: values of the task's attributes `windows` and `stride`, which replace the stored values.

    Raises:
        ValueError: If `source` is a file that holds another task.
    """
    if find_file(source) is None:
        use_compilation_cache()
        with show_status(f"Loading {source}"):
            return TextEmbedder.from_preset(source, **windows)
    _, task = load_task(source, windows)
    if not isinstance(task, TextEmbedder):
        raise ValueError(f"{source} holds a {type(task).__name__}, which has no vectors of texts. Use `lmzoo predict`.")
    return task


def load_reranker(source: str) -> TextRegressor:
    """Load a model that scores pairs of texts.

    Raises:
        ValueError: If the model is another task.
    """
    _, task = load_task(source)
    if not isinstance(task, TextRegressor):
        name = type(task).__name__
        raise ValueError(f"{source} holds a {name}, but texts are ranked by a TextRegressor, such as a cross-encoder.")
    return task


def read_column(data: str, column: str, format: str | None) -> list[str]:
    """Read the texts in a column of a file or, for "-", of standard input (by default, its lines).

    Raises:
        ValueError: If there are several files, or the texts cannot be read.
    """
    if data == "-" and format is None:
        format = "txt"
    texts: Any = read_texts(open_input(data), Columns(text=column, format=format), labeled=False)[0]
    if isinstance(texts, ExampleStream):
        raise ValueError(f"{data} is a directory or a pattern. Give one file.")
    return texts


def load_vectors(path: Path) -> np.ndarray:
    """Memory-map an array of vectors.

    Raises:
        ValueError: If the file does not hold a matrix of numbers, with a vector in each row.
    """
    try:
        vectors = np.load(path.expanduser(), mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError):
        raise ValueError(f"{path} is not an array of vectors. Write it with `lmzoo embed` (.npy).") from None
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 2 or vectors.dtype.kind not in "fiu":
        raise ValueError(f"{path} must hold an array (n, H) of numbers. Write it with `lmzoo embed` (.npy).")
    return vectors


def write_vectors(
    embed: Callable[..., np.ndarray],
    texts: list[str],
    prompt_name: str | None,
    batch_size: int,
    output: str | None,
    cancel_status: Callable[[], None],
    show_progress: bool,
) -> None:
    """Embed texts part by part, and write their vectors.

    Args:
        embed: method of an embedder that computes the vectors.
        texts: texts to embed.
        prompt_name: name of a prompt, or None for the method's default.
        batch_size: texts in a batch.
        output: file to write, or None for standard output.
        cancel_status: function to call after each part, to cancel a status line.
        show_progress: whether to show a progress bar.

    Raises:
        ValueError: If the suffix of `output` stands for no supported format.
    """

    def embed_parts() -> Iterator[tuple[Any, np.ndarray]]:
        with iterate_in_parts(texts, batch_size, show_progress) as parts:
            for part in parts:
                vectors = embed(part, batch_size=batch_size, prompt_name=prompt_name)
                cancel_status()
                yield part, vectors

    suffix = PurePath(output or "").suffix.lower()
    if suffix and suffix.removeprefix(".") not in {"npy", *WRITERS}:
        raise ValueError(f"Vectors cannot be written as {suffix}: use one of .npy, .{', .'.join(WRITERS)}.")
    if output is not None and suffix == ".npy":
        array = np.concatenate([vectors for _, vectors in embed_parts()])
        with whole_file(output) as file:
            np.save(file, array)
        return
    pairs = (({"text": text}, vector) for part in embed_parts() for text, vector in zip(*part, strict=True))
    with open_output(output) as file:
        WRITERS[choose_format(None, output, None)](file, pairs)


def write_rankings(rankings: Iterable[tuple[str, list[Hit]]], output: str | None) -> None:
    """Write queries and their rankings to a file, or to standard output if `output` is None."""
    pairs = (({"query": query}, hits) for query, hits in rankings)
    with open_output(output) as file:
        WRITERS[choose_format(None, output, None)](file, pairs)


def read_rankings(data: str) -> list[Candidates]:
    """Read queries and the texts to rank from JSON lines in a file or, for "-", in standard input.

    Raises:
        ValueError: If the file holds no queries, or a line does not have the right fields; the message names the line.
    """
    source = open_input(data)
    name = get_name(source)
    with open_text(source) as file:
        rows = json_objects(read_numbered_lines(file), name)
        candidates = [_parse_candidates(row, f"{name}, line {line_number}") for line_number, row in rows]
    if not candidates:
        raise NoExamplesError(f"{name} holds no queries.")
    return candidates


def _parse_candidates(row: dict[str, Any], location: str) -> Candidates:
    """Return the candidates in a JSON object with "query" and either "texts" or the "answers" of `lmzoo search`."""
    query: Any = row.get("query")
    texts: Any = row.get("texts")
    indices = list(range(len(texts))) if isinstance(texts, list) else []
    answers = row.get("answers")
    if texts is None and isinstance(answers, list) and all(isinstance(answer, dict) for answer in answers):
        texts = [answer.get("text") for answer in answers]
        indices = [answer.get("index", position) for position, answer in enumerate(answers)]
    is_valid = isinstance(query, str) and isinstance(texts, list) and texts
    if not is_valid or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f'{location} must have a text as "query" and a list of texts as "texts", or be written by `lmzoo search`.'
        )
    return Candidates(query, texts, indices)


def rank_lines(
    task: TextRegressor,
    candidates: Sequence[Candidates],
    top_k: int | None,
    batch_size: int,
    cancel_status: Callable[[], None],
    show_progress: bool,
) -> Iterator[tuple[str, list[Hit]]]:
    """Yield each query with its texts in the order of their scores.

    Args:
        task: cross-encoder.
        candidates: queries with the texts to rank.
        top_k: number of texts for each query; None for all.
        batch_size: pairs in a batch.
        cancel_status: function to call after each query, to cancel a status line.
        show_progress: whether to show a progress bar.
    """
    with progress_over(candidates, "Ranking", "queries", show_progress) as tracked_candidates:
        for query, texts, indices in tracked_candidates:
            num_hits = None if top_k is None else min(top_k, len(texts))
            hits = task.rank(query, texts, num_hits, batch_size)
            cancel_status()
            yield query, [{**hit, "index": indices[hit["index"]]} for hit in hits]
