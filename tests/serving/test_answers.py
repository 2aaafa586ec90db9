"""Answers found in the graph against those of `QuestionAnswerer.answer`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from lmzoo.models import QuestionAnswerer  # noqa: E402
from lmzoo.models.family import Family, families  # noqa: E402
from lmzoo.testing import tiny_task, tiny_texts  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::lmzoo.text.TextNotice"),
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="graphs are TensorFlow's"),
]
ODD = ["é", "e\u0301\u0323", "東京", "\u00a0", "\n", "!", "👩🏽", "\u0301", "ﬁ", "  ", "good film"]


def varied_pairs(texts: Sequence[str], count: int, seed: int) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    words = [*" ".join(texts).split(), *ODD]

    def text(longest: int) -> str:
        return rng.choice(["", " "]).join(rng.choices(words, k=rng.randrange(longest)))

    return [(text(9), rng.choice([" ", ""]) + text(31) + rng.choice([" ", ""])) for _ in range(count)]


@pytest.mark.parametrize("family", families().values(), ids=families())
@pytest.mark.parametrize(
    "settings",
    [
        {"n_best": 2, "max_answer_length": 3},
        {"n_best": 7, "max_answer_length": 2, "null_score_threshold": 0.3},
        {"n_best": 1, "null_score_threshold": -2.0},
    ],
)
def test_answers_equal_those_of_python(family: Family, settings: dict[str, Any]) -> None:
    task = tiny_task(QuestionAnswerer, family, doc_stride=3, max_question_length=5, **settings)
    task.preprocessor.sequence_length = 17
    pairs = [("", ""), ("x", ""), *varied_pairs(tiny_texts(), 53, 3)]
    expected = task.answer(pairs, top_k=7)
    serve = task.signatures()[1]["serving_default"]
    found = serve(*(tf.constant(column) for column in zip(*pairs, strict=True)))
    columns = (found[name].numpy().tolist() for name in ("answer", "start", "end", "score"))
    ties = 0
    for pair, ranked, (text, start, end, score) in zip(pairs, expected, zip(*columns, strict=True), strict=True):
        # Tokens that the model does not know have equal vectors, and rounding decides between their answers.
        tied = [a for a in ranked if abs(a["score"] - ranked[0]["score"]) < 1e-5]
        assert (text.decode(), start, end) in [(a["text"], a["start"], a["end"]) for a in tied], pair
        assert score == pytest.approx(ranked[0]["score"], abs=1e-5)
        ties += len(tied) > 1
    assert ties < 5
    given = np.array([ranked[0]["end"] > 0 for ranked in expected])
    assert 0.2 < given.mean() < 1
