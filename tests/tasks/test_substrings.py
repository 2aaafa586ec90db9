"""Answers and entities are substrings of their texts, for texts of all kinds and random predictions."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.models import QuestionAnswerer, TokenClassifier
from lmzoo.registry.family import families
from lmzoo.testing import tiny_task
from tests.text.varied import varied_texts

# Numbers of texts.
COUNTS = [607, pytest.param(3_001, marks=pytest.mark.slow)]
pytestmark = pytest.mark.filterwarnings("ignore::lmzoo.text.TextWarning")  # some texts are truncated


@pytest.fixture(scope="module", params=COUNTS)
def texts(request):
    # Invalid texts are left out, since tokenizers repair them first.
    candidates = varied_texts(2 * request.param, 1409, ["[MASK]", "<mask>", "##", "▁", " ", "é", "\n", "東"])
    texts = [text for text in candidates if isinstance(text, str) and is_valid(text)]
    assert len(texts) >= request.param
    return texts[: request.param]


def is_valid(text):
    return text.encode(errors="ignore").decode() == text


def randomize_predictions(task, monkeypatch):
    """Make the task predict random logits."""
    rng, width = np.random.default_rng(7), int(task.output.shape[-1])

    def predict(encoded, *_, **__):
        return rng.normal(size=(len(encoded), int(encoded.lengths.max()), width)).astype("float32")

    monkeypatch.setattr(task, "predict", predict)


# One family for each tokenizer, since the predictions are random.
FAMILIES = {
    family.tokenizer: family for family in reversed(families().values()) if TokenClassifier.supports(family)
}.values()


@pytest.mark.slow_cases(
    "607-albert", "607-bert", "607-deberta_v3", "607-ffnn_lm", "607-gpt", "607-marian_encoder", "607-xlnet"
)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_entities_are_substrings(family, texts, monkeypatch):
    task = tiny_task(TokenClassifier, family)
    randomize_predictions(task, monkeypatch)
    for options in ({}, {"constrained": True}, {"aggregation": "simple"}):
        tags = task.tag(texts, **options)
        assert sum(map(len, tags)) > len(texts)
        for text, spans in zip(texts, tags, strict=True):
            assert all(span["text"] and span["text"] == text[span["start"] : span["end"]] for span in spans)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_answers_are_substrings(family, texts, monkeypatch):
    task = tiny_task(QuestionAnswerer, family)
    randomize_predictions(task, monkeypatch)
    answers = task.answer([("the film", text) for text in texts])
    assert sum(bool(answer["text"]) for answer in answers) > len(texts) / 2
    for text, answer in zip(texts, answers, strict=True):
        assert answer["text"] == text[answer["start"] : answer["end"]]
