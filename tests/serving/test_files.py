"""Models for ONNX Runtime and LiteRT: tokens in, the outputs of `predict` out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lmzoo.models import QuestionAnswerer, TextClassifier
from lmzoo.models.family import families
from lmzoo.testing import tiny_backbone, tiny_task, tiny_texts
from lmzoo.text import Preprocessor

# The formats hold what Keras' exporters give them; two tasks and two families see both kinds of outputs and inputs.
CASES = [(TextClassifier, "bert"), (QuestionAnswerer, "roberta")]

pytestmark = [pytest.mark.slow, pytest.mark.tf_only]


def features_of(preprocessor: Preprocessor, family: str) -> list[dict[str, np.ndarray]]:
    """Batches of different sizes and lengths."""
    return [preprocessor(texts) for texts in (tiny_texts(1), tiny_texts(7), ["good film " * 12, ""])]


@pytest.mark.parametrize(("task_class", "family"), CASES)
def test_onnx(task_class: type, family: str, tmp_path: Path) -> None:
    onnxruntime, _ = pytest.importorskip("onnxruntime"), pytest.importorskip("tf2onnx")
    task = tiny_task(task_class, families()[family])
    task.export(tmp_path / "model.onnx", verbose=False)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    assert {i.name for i in session.get_inputs()} == set(task.input)
    assert [o.name for o in session.get_outputs()] == ["logits"]
    for features in features_of(task.preprocessor, family):
        (found,) = session.run(None, features)
        np.testing.assert_allclose(found, task.predict(features, verbose=0), atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
@pytest.mark.parametrize(("task_class", "family"), CASES)
def test_litert(task_class: type, family: str, tmp_path: Path) -> None:
    import tensorflow as tf

    task = tiny_task(task_class, families()[family])
    task.export(tmp_path / "model.tflite", verbose=False)
    # The interpreter has LiteRT's own operations only.
    run = tf.lite.Interpreter(str(tmp_path / "model.tflite")).get_signature_runner()
    assert set(run.get_input_details()) == set(task.input)
    for features in features_of(task.preprocessor, family):
        np.testing.assert_allclose(run(**features)["logits"], task.predict(features, verbose=0), atol=1e-5)


@pytest.mark.parametrize(
    ("family", "name", "op"), [("elmo", "model.onnx", "UniqueV2"), ("albert", "model.tflite", "Ten")]
)
def test_what_the_runtime_lacks_is_refused(family: str, name: str, op: str, tmp_path: Path) -> None:
    if name.endswith("onnx"):
        pytest.importorskip("tf2onnx")
    with pytest.raises(ValueError, match=f"{family} cannot be written as .*: the format has nothing for {op}"):
        tiny_task(TextClassifier, families()[family]).export(tmp_path / name, verbose=False)
    assert list(tmp_path.iterdir()) == []


def test_other_dtypes_are_refused(tmp_path: Path) -> None:
    backbone = tiny_backbone(families()["bert"], dtype="bfloat16")
    with pytest.raises(ValueError, match="Only models in float32"):
        TextClassifier(backbone, num_classes=2).export(tmp_path / "model.tflite", verbose=False)


def test_quantised_weights_have_no_place_in_litert(tmp_path: Path) -> None:
    task = tiny_task(TextClassifier, families()["bert"])
    task.quantize("int8")
    with pytest.raises(ValueError, match=r"cannot write quantised weights as \.tflite"):
        task.export(tmp_path / "model.tflite", verbose=False)


@pytest.mark.parametrize("name", ["model.ONNX", "model.onnx.gz", "model.keras"])
def test_other_files_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in \.onnx or \.tflite, and a SavedModel is a folder"):
        tiny_task(TextClassifier, families()["bert"]).export(tmp_path / name, verbose=False)
