"""mteb's scores of lmzoo's models, compared with the same models in Sentence Transformers."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from lmzoo.compat.mteb import MtebCrossEncoder, MtebEncoder
from lmzoo.models import TextEmbedder, TextRegressor
from lmzoo.registry.family import families
from lmzoo.testing import tiny_task, tiny_texts
from tests.reference.weights import randomise

pytestmark = pytest.mark.usefixtures("eager")


def make_task(cls, **arguments):
    task = tiny_task(cls, families()["bert"], **arguments)
    randomise(task)
    return task


def test_the_package_and_the_right_tasks_are_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "mteb", None)
    monkeypatch.setitem(sys.modules, "mteb.models.model_meta", None)
    with pytest.raises(ImportError, match=r"pip install 'lmzoo\[mteb\]'"):
        MtebEncoder(make_task(TextEmbedder), "lmzoo/tiny")
    with pytest.raises(ValueError, match="`embedder` must be a TextEmbedder"):
        MtebEncoder(make_task(TextRegressor), "lmzoo/tiny")
    with pytest.raises(ValueError, match="`reranker` must be a TextRegressor"):
        MtebCrossEncoder(make_task(TextEmbedder), "lmzoo/tiny")


@pytest.mark.filterwarnings("ignore")  # mteb's own
class TestWithMteb:
    @pytest.fixture(autouse=True)
    def mteb(self):
        pytest.importorskip("sentence_transformers")
        return pytest.importorskip("mteb")

    @pytest.mark.parametrize("similarity", ["cosine", "dot"])
    def test_embedders_have_the_scores_of_sentence_transformers(self, similarity, mteb, tmp_path):
        from sentence_transformers import SentenceTransformer

        from lmzoo import save_checkpoint

        prompts = {"query": "the ", "document": "bad ", "STS": "is "}
        embedder = make_task(TextEmbedder, normalize=False, prompts=prompts, similarity=similarity)
        save_checkpoint(embedder, tmp_path / "hf", to="hf")
        theirs = SentenceTransformer(str(tmp_path / "hf"), device="cpu", local_files_only=True)
        ours = MtebEncoder(embedder, "lmzoo/tiny")
        for task in (retrieval(), sts()):
            expected = scores(mteb, theirs, task)
            assert scores(mteb, ours, task) == pytest.approx(expected, abs=1e-4)
            assert 0.01 < abs(expected[0]) < 0.99
        meta = ours.mteb_model_meta
        assert (meta.name, meta.embed_dim, meta.similarity_fn_name) == (
            "lmzoo/tiny",
            embedder.output_shape[-1],
            similarity,
        )

    def test_cross_encoders_have_the_scores_of_sentence_transformers(self, mteb, tmp_path):
        from sentence_transformers import CrossEncoder

        from lmzoo import save_checkpoint

        reranker = make_task(TextRegressor)
        save_checkpoint(reranker, tmp_path / "hf", to="hf")
        theirs = CrossEncoder(str(tmp_path / "hf"), device="cpu", local_files_only=True)
        expected = scores(mteb, theirs, reranking())
        assert scores(mteb, MtebCrossEncoder(reranker, "lmzoo/tiny"), reranking()) == pytest.approx(expected, abs=1e-4)
        assert 0.01 < expected[0] < 0.99

    def test_similarities_of_pairs_are_the_diagonal(self):
        encoder = MtebEncoder(make_task(TextEmbedder), "lmzoo/tiny")
        rows = np.random.default_rng(3).normal(size=(5, 7))
        matrix = encoder.similarity(rows[:3], rows)
        assert matrix.shape == (3, 5)
        expected = np.diag(encoder.similarity(rows, rows[::-1]))
        np.testing.assert_allclose(encoder.similarity_pairwise(rows, rows[::-1]), expected, rtol=1e-6)


def scores(mteb, model, task):
    """Return the main scores of a task."""
    result = mteb.evaluate(model, task, cache=None, co2_tracker=False, show_progress_bar=False)
    return [row["main_score"] for row in result.task_results[0].scores["test"]]


def metadata(**fields):
    from mteb.abstasks.task_metadata import TaskMetadata

    return TaskMetadata(
        description="Random labels of random texts.",
        reference="https://github.com/lmzoo/lmzoo",
        dataset={"path": "NA", "revision": "NA"},
        category="t2t",
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        date=("2026-11-29", "2026-11-29"),
        dialect=[],
        domains=[],
        task_subtypes=[],
        license="apache-2.0",
        annotations_creators="derived",
        modalities=["text"],
        sample_creation="created",
        bibtex_citation="",
        **fields,
    )


TEXTS = [*dict.fromkeys(tiny_texts(40))]
CORPUS, QUERIES = TEXTS[:23], TEXTS[23:34]


def retrieval(kind="Retrieval"):
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval

    numbers = np.random.default_rng(1409)
    relevant = {f"q{i}": {f"d{j}": 1 for j in numbers.choice(23, 3, replace=False)} for i in range(len(QUERIES))}
    ranked = {f"q{i}": [f"d{j}" for j in numbers.permutation(23)] for i in range(len(QUERIES))}

    class Task(AbsTaskRetrieval):
        pass

    Task.metadata = metadata(type=kind, name=f"Tiny{kind}", main_score="ndcg_at_10")
    task = Task()
    task.dataset = {
        "default": {
            "test": {
                "queries": Dataset.from_dict({"id": [*relevant], "text": QUERIES}),
                "corpus": Dataset.from_dict({"id": [f"d{i}" for i in range(23)], "text": CORPUS, "title": [""] * 23}),
                "relevant_docs": relevant,
                "top_ranked": ranked if kind == "Reranking" else None,
            }
        }
    }
    task.data_loaded = True
    return task


def reranking():
    return retrieval("Reranking")


def sts():
    from datasets import Dataset, DatasetDict
    from mteb.abstasks.sts import AbsTaskSTS

    class Task(AbsTaskSTS):
        min_score = 0
        max_score = 1

    Task.metadata = metadata(type="STS", name="TinySTS", main_score="cosine_spearman")
    task = Task()
    labels = np.random.default_rng(1409).uniform(size=17).tolist()
    columns = {"sentence1": TEXTS[:17], "sentence2": TEXTS[17:34], "score": labels}
    task.dataset = DatasetDict({"test": Dataset.from_dict(columns)})
    task.data_loaded = True
    return task
