"""Quality of embeddings: the shipped embedder, its teacher, averages of token embeddings, and BM25.

    python -m benchmarks.embedder_quality --data DATA [--embedders NAME ...]

"STS-B" is Spearman's correlation, times 100, of cosines with the annotated similarities of STS-B's development pairs.
"SQuAD" searches the paragraphs of SQuAD 1.1's development set for each of its questions, and gives the percentage of
questions whose paragraph is among the first ten, and MRR@10. No embedder was trained on either dataset. `make minilm`
downloads the teacher, and BM25 needs `pip install bm25s`; what is missing is left out.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.common import ROOT, SHARED, console, save
from lmzoo.evaluation import retrieval_metrics
from lmzoo.models import TextEmbedder
from lmzoo.search import search_vectors

TEACHER = ROOT / "real_weights/all-minilm-l6-v2"
NUM_HITS = 10

Search = Callable[[list[str], list[str]], list[Any]]


def read_similarities(data: Path) -> tuple[list[str], list[str], list[float]]:
    """Return the first texts and the second texts of STS-B's development pairs, and the similarities, from 0 to 5."""
    with open(data / "stsb/stsb-en-dev.decontam.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    first, second, similarities = zip(*rows, strict=True)
    return list(first), list(second), [float(value) for value in similarities]


def read_questions(data: Path) -> tuple[list[str], list[int], list[str]]:
    """Return SQuAD's development questions, the index of each question's paragraph, and all paragraphs."""
    articles = json.loads(gzip.decompress((data / "squad/dev-v1.1.open.json.gz").read_bytes()))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    questions = [
        (question["question"], number) for number, paragraph in enumerate(paragraphs) for question in paragraph["qas"]
    ]
    texts, owners = zip(*questions, strict=True)
    return list(texts), list(owners), [paragraph["context"] for paragraph in paragraphs]


def load(name: str) -> Callable[[list[str]], np.ndarray]:
    """Return the function that embeds texts, by the name of a preset.

    With `words of ` before the name, a text's vector is the mean of its token embeddings, without any layers.
    """
    preset = name.removeprefix("words of ")
    embedder = TextEmbedder.from_preset(str(TEACHER) if preset == TEACHER.name else preset)
    if preset == name:
        return embedder.embed
    table = np.asarray(embedder.backbone.token_embedding.embeddings)  # (V, H)

    def embed_words(texts: list[str]) -> np.ndarray:
        encoded = embedder.text_preprocessor.encode(texts)
        sums = np.add.reduceat(table[encoded.token_ids], encoded.sequence_splits[:-1])  # (n, H)
        return sums / np.linalg.norm(sums, axis=-1, keepdims=True)

    return embed_words


def search_with_bm25(questions: list[str], paragraphs: list[str]) -> list[list[int]]:
    """Return the indices of the first paragraphs for each question by BM25, without English stop words."""
    import bm25s

    index = bm25s.BM25()
    index.index(bm25s.tokenize(paragraphs, stopwords="en", show_progress=False), show_progress=False)
    tokens = bm25s.tokenize(questions, stopwords="en", show_progress=False)
    return index.retrieve(tokens, k=NUM_HITS, show_progress=False).documents.tolist()


def measure_search(search: Search, data: Path) -> dict[str, float]:
    """Return the percentage of questions whose paragraph is among the first ten, and MRR@10 in percent."""
    questions, owners, paragraphs = read_questions(data)
    scores = retrieval_metrics(search(questions, paragraphs), [[owner] for owner in owners], k=NUM_HITS)
    return {name: 100 * scores[f"{name}@{NUM_HITS}"] for name in ("recall", "mrr")}


def measure(name: str, data: Path) -> dict[str, float]:
    """Return the scores of an embedder."""
    from scipy.stats import spearmanr

    embed = load(name)
    first, second, similarities = read_similarities(data)
    cosines = np.sum(embed(first) * embed(second), axis=-1)

    def search(questions: list[str], paragraphs: list[str]) -> list[Any]:
        return search_vectors(embed(questions), embed(paragraphs), top_k=NUM_HITS)

    return {"STS-B": 100 * float(spearmanr(cosines, similarities).statistic), **measure_search(search, data)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED / "data", help="parent directory of the datasets")
    parser.add_argument(
        "--embedders",
        nargs="+",
        default=["words of bert_nano_en_uncased", "bert_nano_en_uncased", "bert_nano_embedder_en", TEACHER.name],
    )
    options = parser.parse_args()
    rows: dict[str, dict[str, float]] = {}
    if importlib.util.find_spec("bm25s"):
        rows["BM25"] = measure_search(search_with_bm25, options.data)
    for name in options.embedders:
        if name.endswith(TEACHER.name) and not TEACHER.is_dir():
            console.print(f"[yellow]skipped:[/] {TEACHER} does not exist: run `make minilm`")
            continue
        rows[name] = measure(name, options.data)
    table = Table("embedder", "STS-B", f"SQuAD, recall@{NUM_HITS}", f"MRR@{NUM_HITS}")
    for name, row in rows.items():
        table.add_row(name, *(f"{row[key]:.1f}" if key in row else "-" for key in ("STS-B", "recall", "mrr")))
    console.print(table)
    save("embedder_quality", {"embedders": options.embedders}, rows=rows)


if __name__ == "__main__":
    main()
