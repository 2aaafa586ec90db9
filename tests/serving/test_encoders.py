"""Tasks with encoders of pairs and with word vectors: exported models give the predictions of Python."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

pytest.importorskip("tensorflow")

from lmzoo.models import QuestionAnswerer, StaticEmbedder, TextClassifier
from lmzoo.registry.family import families
from lmzoo.tasks import Task
from lmzoo.testing import tiny_task
from lmzoo.testing.tiny import randomize
from tests.serving.exported_files import outputs_of
from tests.serving.varied import ask

pytestmark = [
    pytest.mark.usefixtures("eager"),
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="graphs are TensorFlow's"),
]
PAIRS = [("Good film", "éclair !"), ("the plot", ""), ("", "")]
QUESTIONS = [("the film ?", "the film was good . a plot is bad !"), ("", "very fine"), ("is bad ?", "")]


def build(family: str, cls: type[Task] = TextClassifier) -> Task:
    """Return a task with word vectors whose predictions differ."""
    vectors = StaticEmbedder(["film", "éclair", "plot"], np.random.default_rng(3).normal(size=(3, 7)))
    encoder = "esim" if cls is TextClassifier else "bidaf"
    task = tiny_task(cls, families()[family], encoder=encoder, encoder_dim=5, word_vectors=vectors)
    randomize(task)
    return task


@pytest.mark.parametrize("family", ["elmo", pytest.param("roberta", marks=pytest.mark.slow)])
def test_pairs_are_classified_as_in_python(family: str) -> None:
    task = build(family)
    outputs = ask(task, *zip(*PAIRS, strict=True))
    logits = task.predict(PAIRS, verbose=0)
    np.testing.assert_allclose(outputs["probabilities"], keras.ops.softmax(logits), atol=1e-5)
    assert np.ptp(outputs["score"]) > 1e-3


def test_questions_are_answered_as_in_python() -> None:
    task = build("static_words", QuestionAnswerer)
    outputs = ask(task, *zip(*QUESTIONS, strict=True))
    expected = task.answer(QUESTIONS)
    assert [text.decode() for text in outputs["answer"]] == [prediction["text"] for prediction in expected]
    np.testing.assert_allclose(outputs["score"], [prediction["score"] for prediction in expected], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "pairs"), [(TextClassifier, PAIRS), (QuestionAnswerer, QUESTIONS)])
def test_onnx_files_give_the_same_logits(cls: type[Task], pairs: list[tuple[str, str]], tmp_path: Path) -> None:
    pytest.importorskip("tf2onnx")
    task = build("static_words", cls)
    task.export(tmp_path / "model.onnx", verbose=False)
    for batch in (pairs, pairs[1:2]):
        features = task.preprocessor(batch)
        (logits,) = outputs_of(tmp_path / "model.onnx", features).values()
        expected = task.predict(features, verbose=0)
        np.testing.assert_allclose(logits, expected, atol=1e-5)
        assert np.ptp(expected) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("family", "cls"), [("elmo", TextClassifier), ("roberta", QuestionAnswerer)])
def test_saved_models_give_the_same_scores(family: str, cls: type[Task], tmp_path: Path) -> None:
    import tensorflow as tf

    task = build(family, cls)
    task.export(tmp_path / "model", verbose=False)
    names, pairs = (("text", "text_pair"), PAIRS) if cls is TextClassifier else (("question", "context"), QUESTIONS)
    serve = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    columns = dict(zip(names, map(tf.constant, zip(*pairs, strict=True)), strict=True))
    scores = [prediction["score"] for prediction in task.answers(pairs)]
    np.testing.assert_allclose(serve(**columns)["score"], scores, atol=1e-5)
