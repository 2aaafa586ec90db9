"""Spans of exported token classifiers equal those of `TokenClassifier.tag`."""

from __future__ import annotations

import keras
import numpy as np
import pytest

pytest.importorskip("tensorflow")

from lmzoo.models import TokenClassifier
from lmzoo.registry.family import Family
from lmzoo.testing import tiny_texts
from tests.serving.varied import ask, on_families, varied_task, varied_text

pytestmark = [
    pytest.mark.usefixtures("eager"),
    pytest.mark.filterwarnings("ignore::lmzoo.text.TextWarning"),
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="graphs are TensorFlow's"),
]
LABELS = ("O", "B-PER", "I-PER", "E-PER", "S-PER", "B-LOC", "I-LOC")
OTHER_SCHEMES = ("O", "PER_B", "PER_I", "LOC_L", "LOC_U", "X", "LOC_B")


@pytest.mark.quick_cases(
    "ffnn_lm-2", "gpt-0", "marian_encoder-1", "modernbert-2", "static_words-0", "t5_encoder-1", "xlm_roberta-2"
)
@pytest.mark.parametrize(("family", "labels"), list(on_families([LABELS, OTHER_SCHEMES, ("NOUN", "VERB", "DET")])))
def test_spans_equal_those_of_python(family: Family, labels: tuple[str, ...]) -> None:
    task = varied_task(TokenClassifier, family, num_classes=len(labels), labels=labels)
    task.preprocessor.sequence_length = 13
    texts = ["", " \n", "\u0301", *varied_text(tiny_texts(), 37, longest=31, seed=3)]
    expected = task.tag(texts, aggregation="first")
    outputs = ask(task, texts)
    assert outputs["truncated"].any()
    assert not outputs["truncated"].all()
    assert len({span["label"] for spans in expected for span in spans}) > 1
    for row, (text, spans) in enumerate(zip(texts, expected, strict=True)):
        for name, filler in (("text", b""), ("label", b""), ("start", -1), ("end", -1)):
            values = outputs[name][row].tolist()
            assert values[len(spans) :] == [filler] * (len(values) - len(spans)), text
            actual = [v.decode() if isinstance(v, bytes) else v for v in values[: len(spans)]]
            assert actual == [span[name] for span in spans], (text, name)
        np.testing.assert_allclose(outputs["score"][row][: len(spans)], [span["score"] for span in spans], atol=1e-5)
