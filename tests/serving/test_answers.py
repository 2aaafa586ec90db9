"""Predictions of exported question answerers equal those of `QuestionAnswerer.answer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

pytest.importorskip("tensorflow")

from lmzoo.models import QuestionAnswerer
from lmzoo.registry.family import Family, families
from lmzoo.testing import tiny_task, tiny_texts
from tests.serving.varied import ask, on_families, varied_task, varied_text

pytestmark = [
    pytest.mark.usefixtures("eager"),
    pytest.mark.filterwarnings("ignore::lmzoo.text.TextWarning"),
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="graphs are TensorFlow's"),
]
SETTINGS = [
    {"n_best": 2, "max_answer_length": 3},
    {"n_best": 7, "max_answer_length": 2, "null_score_threshold": 0.3},
    {"n_best": 4, "max_answer_length": 5, "null_score_threshold": 0.0},
]


@pytest.mark.quick_cases("bert-2", "elmo-1", "static_words-0", "t5_encoder-1", "xlm_roberta-2")
@pytest.mark.parametrize(
    ("family", "settings"),
    [case for case in on_families(SETTINGS) if case.values[0].tokenizer.has_offsets_in_graphs],
)
def test_answers_equal_those_of_python(family: Family, settings: dict[str, Any]) -> None:
    if family.name == "static_words":
        # Equal words have equal vectors, and rounding would decide which of their positions are among the best.
        settings = {**settings, "n_best": 17}
    task = varied_task(QuestionAnswerer, family, doc_stride=3, max_question_length=5, **settings)
    task.preprocessor.sequence_length = 17
    questions, contexts = (varied_text(tiny_texts(), 31, longest, seed=3) for longest in (9, 31))
    pairs = [("", ""), ("x", ""), *zip(questions, (f" {context}\n" for context in contexts), strict=True)]
    expected = task.answer(pairs, top_k=7)
    outputs = ask(task, *zip(*pairs, strict=True))
    columns = (outputs[name].tolist() for name in ("answer", "start", "end", "score"))
    ties = 0
    for pair, ranked, (text, start, end, score) in zip(pairs, expected, zip(*columns, strict=True), strict=True):
        # Unknown tokens have equal vectors, and rounding decides between their answers.
        tied = [a for a in ranked if abs(a["score"] - ranked[0]["score"]) < 1e-5]
        assert (text.decode(), start, end) in [(a["text"], a["start"], a["end"]) for a in tied], pair
        assert score == pytest.approx(ranked[0]["score"], abs=1e-5)
        ties += len(tied) > 1
    assert ties < (12 if family.name == "static_words" else 3)  # static vectors of equal words are equal
    has_answer = np.array([ranked[0]["end"] > 0 for ranked in expected])
    assert 0.1 < has_answer.mean() < 1  # some questions have no answer


def test_a_tokenizer_without_offsets_in_graphs_is_refused(tmp_path: Path) -> None:
    task = tiny_task(QuestionAnswerer, families()["marian_encoder"])
    with pytest.raises(ValueError, match="MarianTokenizer has no offsets in TensorFlow graphs, so a SavedModel cannot"):
        task.export(tmp_path / "1", verbose=False)
    assert not (tmp_path / "1").exists()
