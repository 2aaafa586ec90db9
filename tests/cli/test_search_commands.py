"""`lmzoo embed`, `lmzoo search` and `lmzoo rank`: JSON lines, CSV, arrays, and errors."""

from __future__ import annotations

import csv
import json

import keras
import numpy as np
import pytest

from lmzoo.families.bert import FAMILY
from lmzoo.models import TextClassifier, TextEmbedder, TextRegressor
from lmzoo.testing import randomize, tiny_task
from tests.cli.commands import EAGERLY, error_of, json_lines, run

pytestmark = EAGERLY
TEXTS = ["good film", "the plot was never dull .", "a fine film !", "bad \u2028 plot", "very very bad plot"]
QUERIES = ["a good film", "dull"]
PROMPTS = {"query": "the ", "document": "bad ", "other": "is "}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    embedder = tiny_task(TextEmbedder, FAMILY, prompts=PROMPTS, default_prompt="other")
    reranker = tiny_task(TextRegressor, FAMILY)
    for task in (embedder, reranker):
        randomize(task)
        task.save(folder / f"{task.head_kind}.keras")
    tiny_task(TextClassifier, FAMILY).save(folder / "classifier.keras")
    lines = "".join(json.dumps({"id": i, "text": text}, ensure_ascii=False) + "\n" for i, text in enumerate(TEXTS))
    (folder / "corpus.jsonl").write_text(lines, "utf-8")
    (folder / "queries.csv").write_text("question\n" + "\n".join(QUERIES))
    return folder


@pytest.fixture
def embedder(folder):
    return keras.saving.load_model(folder / "embedding.keras")


@pytest.fixture
def reranker(folder):
    return keras.saving.load_model(folder / "regression.keras")


# === Embed ===


@pytest.mark.parametrize(
    ("options", "prompt"),
    [
        ((), "is "),
        (("--as", "query"), "the "),
        (("--as", "document"), "bad "),
        (("--prompt-name", "query"), "the "),
        (("--as", "query", "--prompt-name", "other"), "is "),
    ],
    ids=str,
)
def test_vectors_are_those_of_the_prompt(folder, embedder, options, prompt):
    expected = embedder.embed(TEXTS, prompt=prompt)
    rows = json_lines(run("embed", folder / "embedding.keras", folder / "corpus.jsonl", *options))
    assert [row["text"] for row in rows] == TEXTS
    np.testing.assert_allclose([row["vector"] for row in rows], expected, rtol=1e-4, atol=1e-5)


def test_search_reads_an_array_of_vectors(folder, embedder, tmp_path):
    command = ("embed", folder / "embedding.keras", folder / "corpus.jsonl", "--as", "document", "--batch-size", 3)
    run(*command, "-o", tmp_path / "corpus.npy")
    vectors = np.load(tmp_path / "corpus.npy")
    np.testing.assert_allclose(vectors, embedder.embed_documents(TEXTS), rtol=1e-4, atol=1e-5)
    assert vectors.dtype == "float32"
    assert "exists: pass --overwrite" in error_of(*command, "-o", tmp_path / "corpus.npy")
    search = ("search", folder / "embedding.keras", folder / "queries.csv", folder / "corpus.jsonl")
    search = (*search, "--query", "question")
    expected = json_lines(run(*search))
    np.save(tmp_path / "corpus.npy", vectors[::-1])
    actual = json_lines(run(*search, "--vectors", tmp_path / "corpus.npy"))
    assert [[hit["index"] for hit in row["answers"]] for row in actual] == [
        [4 - hit["index"] for hit in row["answers"]] for row in expected
    ]


def test_a_backbone_embeds_by_its_mean():
    rows = json_lines(run("embed", "bert_nano_en_uncased", "-", stdin="good film\nbad\n"))
    expected = TextEmbedder.from_preset("bert_nano_en_uncased").embed(["good film", "bad"])
    np.testing.assert_allclose([row["vector"] for row in rows], expected, rtol=1e-4, atol=1e-5)


# === Search ===


def test_search(folder, embedder, tmp_path):
    command = ("search", folder / "embedding.keras", "-", folder / "corpus.jsonl", "--top-k", 3)
    rows = json_lines(run(*command, stdin="\n".join(QUERIES)))
    assert_hits(rows, embedder.search(QUERIES, TEXTS, 3))
    run(*command, "-o", tmp_path / "answers.csv", stdin="\n".join(QUERIES))
    with open(tmp_path / "answers.csv", encoding="utf-8", newline="") as file:
        cells = [*csv.DictReader(file)]
    assert [*cells[0]] == ["query", "index", "text", "score"]
    assert [int(row["index"]) for row in cells] == [hit["index"] for row in rows for hit in row["answers"]]


def test_search_with_other_prompts(folder, embedder):
    command = ("search", folder / "embedding.keras", "-", folder / "corpus.jsonl")
    options = ("--query-prompt-name", "document", "--document-prompt-name", "other")
    expected = embedder.search(QUERIES, TEXTS, None, 32, None, "document", "other")
    assert_hits(json_lines(run(*command, *options, stdin="\n".join(QUERIES))), expected)


def assert_hits(rows, expected, queries=QUERIES):
    assert [row["query"] for row in rows] == queries
    for row, hits in zip(rows, expected, strict=True):
        assert [(hit["index"], hit["text"]) for hit in row["answers"]] == [(hit["index"], hit["text"]) for hit in hits]
        scores = [hit["score"] for hit in hits]
        assert [hit["score"] for hit in row["answers"]] == pytest.approx(scores, rel=1e-4, abs=1e-5)


# === Rank ===


def test_rank(folder, reranker, tmp_path):
    lines = [{"query": "dull", "texts": TEXTS[:3]}, {"query": "a film", "texts": TEXTS}]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = json_lines(run("rank", folder / "regression.keras", tmp_path / "texts.jsonl"))
    assert_hits(rows, [reranker.rank(line["query"], line["texts"]) for line in lines], ["dull", "a film"])
    assert [len(row["answers"]) for row in rows] == [3, 5]
    shortened = json_lines(run("rank", folder / "regression.keras", tmp_path / "texts.jsonl", "--top-k", 4))
    assert [row["answers"] for row in shortened] == [row["answers"][:4] for row in rows]


def test_rank_reads_what_search_writes(folder, reranker):
    search = ("search", folder / "embedding.keras", "-", folder / "corpus.jsonl", "--top-k", 3)
    lines = run(*search, stdin="\n".join(QUERIES)).stdout
    ranked = json_lines(run("rank", folder / "regression.keras", "-", stdin=lines))
    for line, row in zip(map(json.loads, lines.split("\n")[:-1]), ranked, strict=True):
        assert {(hit["index"], hit["text"]) for hit in row["answers"]} == {
            (hit["index"], hit["text"]) for hit in line["answers"]
        }
        texts = [hit["text"] for hit in reranker.rank(row["query"], [hit["text"] for hit in line["answers"]])]
        assert [hit["text"] for hit in row["answers"]] == texts


# === Errors ===


def test_errors_are_one_line(folder, tmp_path):
    embedder, corpus = folder / "embedding.keras", folder / "corpus.jsonl"
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "bad.npy").write_text("no array")
    np.save(tmp_path / "row.npy", np.ones(5))
    np.save(tmp_path / "short.npy", np.ones((4, 7)))
    for command, message in {
        ("embed", folder / "classifier.keras", corpus): "holds a TextClassifier, which has no vectors of texts. Use",
        ("embed", folder / "nowhere.keras", corpus): "There is no file",
        ("embed", embedder, corpus, "--prompt-name", "x"): "There is no prompt 'x'; `prompts` has 'query', 'document',",
        ("embed", embedder, corpus, "--text", "body"): "no 'body'",
        ("embed", embedder, tmp_path / "empty.txt"): "empty.txt",
        ("embed", embedder, corpus, "-o", tmp_path / "x.npz"): "cannot be written as .npz: use one of .npy, .jsonl,",
        ("embed", embedder, folder): "is a directory or a pattern. Give one file.",
        ("search", embedder, corpus, folder / "*.jsonl"): "*.jsonl is a directory or a pattern. Give one file.",
        ("search", embedder, corpus, tmp_path / "empty.txt"): "empty.txt",
        (
            "search",
            embedder,
            corpus,
            corpus,
            "--top-k",
            6,
        ): "an integer from 1 to 5, the size of `corpus`, got 6. Option: --top-k.",
        ("search", embedder, corpus, corpus, "--vectors", tmp_path / "bad.npy"): (
            "bad.npy is not an array of vectors. Write it with `lmzoo embed` (.npy)."
        ),
        ("search", embedder, corpus, corpus, "--vectors", tmp_path / "row.npy"): "row.npy must hold an array (n, H)",
        ("search", embedder, corpus, corpus, "--vectors", tmp_path / "short.npy"): "has vectors of width 7, but",
        ("rank", embedder, corpus): 'line 1 must have a text as "query" and a list of texts as "texts"',
        ("rank", embedder, tmp_path / "empty.txt"): "holds no queries",
    }.items():
        assert message in error_of(*command), command
    (tmp_path / "texts.jsonl").write_text('{"query": "a", "texts": ["b"]}\n{"query": "a", "texts": ["b", 3]}')
    assert "texts.jsonl, line 2 must have a text as" in error_of("rank", embedder, tmp_path / "texts.jsonl")
    (tmp_path / "texts.jsonl").write_text('{"query": "a", "texts": ["b"]}')
    message = error_of("rank", folder / "classifier.keras", tmp_path / "texts.jsonl")
    assert "holds a TextClassifier, but texts are ranked by a TextRegressor, such as a cross-encoder." in message
