"""A RoBERTa with two segments, the default of transformers: all tokens belong to the first segment."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.analysis import hidden_states
from lmzoo.families.roberta import FAMILY
from lmzoo.models import MaskedLM, MultipleChoice, QuestionAnswerer, TextClassifier, TokenClassifier
from lmzoo.testing import tiny_backbone, tiny_preprocessor
from tests.checkpoints.model_files import peer

TEXTS = ["good film", "a dull plot , was it ?", ""]


@pytest.fixture
def backbone():
    return tiny_backbone(FAMILY, num_segments=2)


def test_logits_are_those_of_transformers(tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    sizes = {"vocab_size": 313, "type_vocab_size": 2, "max_position_embeddings": 73}
    peer_model = peer("roberta", "ForSequenceClassification", tmp_path, **sizes)
    task = TextClassifier.from_preset(tmp_path, preprocessor=tiny_preprocessor(FAMILY))
    for x in (TEXTS, (TEXTS, TEXTS[::-1])):
        features = task.preprocessor(x)
        assert not features["segment_ids"].any()
        with torch.no_grad():
            expected = peer_model(
                input_ids=torch.tensor(features["token_ids"]), attention_mask=torch.tensor(features["padding_mask"])
            ).logits.numpy()
        np.testing.assert_allclose(task.predict(x, verbose=0), expected, atol=1e-5)


@pytest.mark.parametrize("cls", [TextClassifier, TokenClassifier, QuestionAnswerer, MultipleChoice, MaskedLM])
def test_every_task_takes_text(backbone, cls):
    arguments = {"labels": ["O", "B-PER"]} if cls in (TextClassifier, TokenClassifier) else {}
    arguments = {"max_question_length": 9} if cls is QuestionAnswerer else arguments
    task = cls(backbone, tiny_preprocessor(FAMILY), **arguments)
    x = {QuestionAnswerer: [("a", "good film")], MultipleChoice: [("a", ["film", "plot"])], MaskedLM: ["a <mask>"]}
    assert len(task.answers(x.get(cls, ["good film"]))) == 1


def test_the_callers_preprocessor_is_not_changed(backbone):
    preprocessor = tiny_preprocessor(FAMILY)
    task = TextClassifier(backbone, preprocessor, num_classes=2)
    assert "segment_ids" in task.preprocessor(TEXTS)
    assert "segment_ids" not in preprocessor(TEXTS)
    # The segments have different embeddings.
    features = task.preprocessor(TEXTS)
    ones = task.predict({**features, "segment_ids": features["padding_mask"]}, verbose=0)
    assert np.abs(ones - task.predict(TEXTS, verbose=0)).max() > 1e-3


def test_analysis_takes_a_backbone(backbone):
    assert len(hidden_states(backbone, TEXTS[:2], preprocessor=tiny_preprocessor(FAMILY))) == 2


def test_files_restore_the_predictions(tmp_path):
    task = TextClassifier(tiny_backbone(FAMILY, num_segments=2), tiny_preprocessor(FAMILY), num_classes=2)
    task.save(tmp_path / "task.keras")
    task.save_to_preset(tmp_path / "preset")
    for loaded in (TextClassifier.load(tmp_path / "task.keras"), TextClassifier.from_preset(tmp_path / "preset")):
        np.testing.assert_array_equal(loaded.predict(TEXTS, verbose=0), task.predict(TEXTS, verbose=0))


@pytest.mark.slow
@pytest.mark.tf_only
def test_exported_models_give_the_same_scores(backbone, tmp_path):
    import tensorflow as tf

    task = TextClassifier(backbone, tiny_preprocessor(FAMILY), labels=["bad", "good"])
    task.export(tmp_path / "1", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "1")).signatures
    expected = [answer["score"] for answer in task.classify(TEXTS)]
    scores = served["serving_default"](text=tf.constant(TEXTS))["score"]
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    scores = served["pair"](text=tf.constant(TEXTS), text_pair=tf.constant(TEXTS))["score"]
    np.testing.assert_allclose(scores, [answer["score"] for answer in task.classify((TEXTS, TEXTS))], atol=1e-5)
    features = {name: tf.constant(x) for name, x in tiny_preprocessor(FAMILY)(TEXTS).items()}
    np.testing.assert_allclose(served["tokens"](**features)["score"], expected, atol=1e-5)


@pytest.mark.quick_cases("tflite")
@pytest.mark.tf_only
@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
@pytest.mark.parametrize("format", ["onnx", pytest.param("tflite", marks=pytest.mark.slow)])
def test_other_runtimes_give_the_same_logits(format, tmp_path):
    backbone = tiny_backbone(FAMILY, num_segments=2, num_layers=1)
    task = TextClassifier(backbone, tiny_preprocessor(FAMILY), labels=["bad", "good"])
    file = tmp_path / f"model.{format}"
    features = tiny_preprocessor(FAMILY)(TEXTS)
    if format == "onnx":
        onnxruntime, _ = pytest.importorskip("onnxruntime"), pytest.importorskip("tf2onnx")
        task.export(file, verbose=False)
        (logits,) = onnxruntime.InferenceSession(str(file)).run(None, features)
    else:
        import tensorflow as tf

        task.export(file, verbose=False)
        logits = tf.lite.Interpreter(str(file)).get_signature_runner()(**features)["logits"]
    np.testing.assert_allclose(logits, task.predict(TEXTS, verbose=0), atol=1e-5)
