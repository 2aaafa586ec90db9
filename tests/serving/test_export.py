"""Exported SavedModels give the predictions of Python in a process without lmzoo."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lmzoo.families.bert import FAMILY
from lmzoo.layers import BiLSTMEncoder
from lmzoo.models import TextClassifier
from lmzoo.testing import tiny_task
from lmzoo.testing.exported_answers import assert_answers_agree
from lmzoo.text import TextWarning
from tests.serving.artifacts import Exported
from tests.serving.bare import BareProcess
from tests.serving.varied import classifier
from tests.text.varied import varied_texts

TEXTS = ["good film", "", "Bad, bad FILM!", "a film " * 1500, "zzz unknown é", "good"]


def check(model, served, *texts):
    inputs = texts[0] if len(texts) == 1 else texts
    predictions = model.classify(inputs)
    assert len({round(a["score"], 4) for a in predictions}) > 1
    assert served["label"] == [a["label"] for a in predictions]
    np.testing.assert_allclose(served["score"], [a["score"] for a in predictions], atol=1e-5)
    np.testing.assert_allclose(np.sum(served["probabilities"], axis=1), 1, atol=1e-5)


@pytest.mark.slow
def test_strings_are_served_without_lmzoo(reviews: Exported, bare: BareProcess) -> None:
    served = bare.ask(reviews.path(10), "serving_default", text=TEXTS)
    with pytest.warns(TextWarning, match="1 of 6"):
        check(reviews.models[10], served, TEXTS)
    assert served["truncated"] == [False, False, False, True, False, False]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::lmzoo.text.TextWarning")
def test_odd_texts_are_classified_as_in_python(reviews: Exported, bare: BareProcess) -> None:
    """Ask for one, some and many texts at a time; `test_presets.py` does so with every task."""
    texts = varied_texts(80, 47, ["[MASK", "[SEP]", "good", "\x00"])
    assert len(texts) > 90
    for part in (texts[:1], texts[1:8], texts[8:]):
        served = bare.ask(reviews.path(10), "serving_default", text=part)
        outputs = {name: np.array(rows, object if name == "label" else None) for name, rows in served.items()}
        assert_answers_agree(reviews.models[10], part, outputs)


@pytest.mark.slow
def test_pairs_are_served(reviews: Exported, bare: BareProcess) -> None:
    firsts, seconds = ["good", "bad film", ""], ["film", "", "good good"]
    served = bare.ask(reviews.path(10), "pair", text=firsts, text_pair=seconds)
    check(reviews.models[10], served, firsts, seconds)


def test_token_ids_are_served(reviews: Exported, bare: BareProcess) -> None:
    texts = ["good film", "bad"]
    features = {name: value.tolist() for name, value in reviews.models[10].preprocessor(texts).items()}
    check(reviews.models[10], bare.ask(reviews.path(10), "tokens", **features), texts)


@pytest.mark.slow
def test_masks_are_filled_as_in_python(fill: Exported, bare: BareProcess) -> None:
    texts = ["good [MASK]", "no mask", "[MASK] film [MASK] !"]
    served = bare.ask(fill.path(1), "serving_default", text=texts)
    no_mask = [""] * 5
    first, second, third = served["token"]
    assert first[1:] == [no_mask]
    assert second == [no_mask] * 2
    for text, tokens, scores in ((texts[0], first[:1], served["score"][0]), (texts[2], third, served["score"][2])):
        expected = fill.models[1].fill([text], top_k=5)[0]
        expected = [expected] if len(tokens) == 1 else expected
        assert tokens == [[prediction["token"] for prediction in row] for row in expected]
        expected_scores = [[prediction["score"] for prediction in row] for row in expected]
        np.testing.assert_allclose(scores[: len(tokens)], expected_scores, atol=1e-5)


@pytest.mark.slow
@pytest.mark.tf_only
@pytest.mark.usefixtures("eager")
def test_all_labels_are_served_best_first(bare: BareProcess, tmp_path: Path) -> None:
    model = classifier(labels=["art", "sport", "war", "sea", "law"], multi_label=True)
    texts = ["good film", "bad", ""]
    model.export(tmp_path / "1", verbose=False)
    served = bare.ask(tmp_path / "1", "serving_default", text=texts)
    probabilities = 1 / (1 + np.exp(-model.predict(texts, verbose=0)))
    np.testing.assert_allclose(served["probabilities"], probabilities, atol=1e-5)
    expected = model.classify(texts, threshold=0.0)
    for predictions, labels, scores in zip(expected, served["label"], served["score"], strict=True):
        assert labels == [prediction["label"] for prediction in predictions]
        np.testing.assert_allclose(scores, [prediction["score"] for prediction in predictions], atol=1e-5)
    assert len({tuple(labels) for labels in served["label"]}) > 1


def test_a_task_without_a_preprocessor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="preprocessor"):
        TextClassifier(classifier(num_classes=2).backbone, num_classes=2).export(tmp_path / "1")
    assert list(tmp_path.iterdir()) == []


def test_another_process_imports_the_modules_of_all_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoder of the user is registered in its module; LoRA in the file for the other process needs no warning."""
    import lmzoo.serving.export as module

    model = classifier(labels=["no", "yes"], encoder="bilstm")
    model.backbone.enable_lora(1)
    monkeypatch.setattr(BiLSTMEncoder, "__module__", "encoders.mine")
    calls = []
    monkeypatch.setattr(module.subprocess, "run", lambda command, **_: calls.append(command))
    with pytest.raises(AttributeError):  # there is no result
        module._write_with_tensorflow(model, tmp_path / "1")
    assert calls[0][-1] == "encoders.mine"
    assert calls[0][-2].endswith("export")


def test_a_failed_export_leaves_the_old_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lmzoo.serving.export as module

    target = tmp_path / "1"
    (target / "variables").mkdir(parents=True)
    old = {"saved_model.pb": "old graph", "variables/variables.index": "old weights", "labels.txt": "no\n"}
    for name, text in old.items():
        (target / name).write_text(text)

    def fail(task, folder):
        (folder / "saved_model.pb").write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(module, "_write_saved_model", fail)
    monkeypatch.setattr(module, "_write_with_tensorflow", fail)
    with pytest.raises(OSError, match="disk full"):
        classifier(labels=["no", "yes"]).export(target)
    files = [path for path in target.rglob("*") if path.is_file()]
    assert {path.relative_to(target).as_posix(): path.read_text() for path in files} == old
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_unsupported_dtypes_are_refused_before_another_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lmzoo.serving.export as module

    monkeypatch.setattr(module.keras.backend, "backend", lambda: "jax")
    monkeypatch.setattr(module, "_write_with_tensorflow", lambda model, path: pytest.fail("another process starts"))
    task = tiny_task(TextClassifier, FAMILY)
    task.quantize("int8")
    for model in (task, task.backbone):
        with pytest.raises(ValueError, match=r"Keras cannot write quantized weights as \.tflite"):
            model.export(tmp_path / "model.tflite")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("step", "suffix"), [("load_model", "keras"), ("export", "onnx")])
def test_a_value_error_in_another_process_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, suffix: str
) -> None:
    import lmzoo.serving.export as module

    def run_here(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["-c", *command[3:]])
        with contextlib.suppress(SystemExit, ValueError):
            exec(command[2], {})
        return subprocess.CompletedProcess(command, 1, stderr="Traceback")

    def refuse(*arguments: object, **_: object) -> None:
        raise ValueError(f"This é cannot be a file {Path(str(arguments[-1])).suffix}.")

    monkeypatch.setattr(module.subprocess, "run", run_here)
    monkeypatch.setattr(module.keras.saving if step == "load_model" else TextClassifier, step, refuse)
    with pytest.raises(ValueError, match=rf"^This é cannot be a file \.{suffix}\.$"):
        module._write_with_tensorflow(tiny_task(TextClassifier, FAMILY), tmp_path / "model.onnx")
