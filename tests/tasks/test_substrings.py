"""Answers and entities are cut out of the text that they are about, whatever the text is."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.models import QuestionAnswerer, TokenClassifier
from lmzoo.registry.family import families
from lmzoo.testing import tiny_task
from tests.text.varied import varied_texts

# Strings; all of them before a release.
COUNTS = [607, pytest.param(3_001, marks=pytest.mark.slow)]
pytestmark = pytest.mark.filterwarnings("ignore::lmzoo.text.TextWarning")  # some are cut


@pytest.fixture(scope="module", params=COUNTS)
def texts(request):
    # Invalid ones are changed before anything looks at them.
    made = varied_texts(2 * request.param, 1409, ["[MASK]", "<mask>", "##", "▁", " ", "é", "\n", "東"])
    texts = [text for text in made if isinstance(text, str) and is_valid(text)]
    assert len(texts) >= request.param
    return texts[: request.param]


def is_valid(text):
    return text.encode(errors="ignore").decode() == text


def random_outputs(task, monkeypatch):
    """Lets the model say anything."""
    rng, width = np.random.default_rng(7), int(task.output.shape[-1])

    def predict(encoded, *_, **__):
        return rng.normal(size=(len(encoded), int(encoded.lengths.max()), width)).astype("float32")

    monkeypatch.setattr(task, "predict", predict)


# One for each tokenizer: neither test looks at what a network computes.
FAMILIES = {
    family.tokenizer: family for family in reversed(families().values()) if TokenClassifier.supports(family)
}.values()


@pytest.mark.slow_cases(
    "607-albert", "607-bert", "607-deberta_v3", "607-ffnn_lm", "607-gpt", "607-marian_encoder", "607-xlnet"
)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_entities(family, texts, monkeypatch):
    task = tiny_task(TokenClassifier, family)
    random_outputs(task, monkeypatch)
    for options in ({}, {"constrained": True}, {"aggregation": "simple"}):
        found = task.tag(texts, **options)
        assert sum(map(len, found)) > len(texts)
        for text, spans in zip(texts, found, strict=True):
            assert all(span["text"] and span["text"] == text[span["start"] : span["end"]] for span in spans)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_answers(family, texts, monkeypatch):
    task = tiny_task(QuestionAnswerer, family)
    random_outputs(task, monkeypatch)
    answers = task.answer([("the film", text) for text in texts])
    assert sum(bool(answer["text"]) for answer in answers) > len(texts) / 2
    for text, answer in zip(texts, answers, strict=True):
        assert answer["text"] == text[answer["start"] : answer["end"]]
