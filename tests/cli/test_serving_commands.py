"""`lmzoo export`: what it hands to `Task.export`, which `tests/serving` is about."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from typer.testing import CliRunner

from lmzoo import models
from lmzoo.families.bert import FAMILY
from lmzoo.families.gpt2 import FAMILY as GPT2
from lmzoo.testing.tiny import tiny_task
from lmzoo_cli.main import app


@pytest.fixture
def call(tmp_path, monkeypatch):
    """A function that exports a saved task with some options; returns what is exported, and the result."""
    task = tiny_task(models.TextClassifier, FAMILY)
    task.save(tmp_path / "model.keras")
    exported = []

    def export(self, path, verbose, dtype=None):
        exported.append((self, path if dtype is None else (path, dtype)))

    monkeypatch.setattr(models.Task, "export", export)

    def call(*options, model="model.keras", target="served"):
        result = CliRunner().invoke(app, ["export", str(tmp_path / model), str(tmp_path / target), *options])
        return task, *(exported.pop() if exported else (None, None)), result

    return call


@pytest.mark.slow
def test_bfloat16(call, tmp_path):
    task, found, path, result = call("--dtype", "bfloat16")
    assert result.exit_code == 0, result.output
    assert path == tmp_path / "served/1"
    assert {variable.dtype for variable in found.backbone.weights} == {"bfloat16"}
    for ours, theirs in zip(found.get_weights(), task.get_weights(), strict=True):
        np.testing.assert_allclose(ours.astype("float32"), theirs, rtol=1e-2, atol=1e-3)
    assert (found.labels, found.preprocessor.get_config()) == (task.labels, task.preprocessor.get_config())
    (ours,), (theirs,) = (model.classify(["good film"]) for model in (found, task))
    assert ours["score"] == pytest.approx(theirs["score"], abs=0.02)


@pytest.mark.slow
def test_int8(call, tmp_path):
    _, found, _, result = call("--dtype", "int8")
    assert result.exit_code == 0, result.output
    assert "int8" in {variable.dtype for variable in found.backbone.variables}
    found.save(tmp_path / "quantized.keras")
    _, found, _, result = call("--dtype", "bfloat16", model="quantized.keras")
    assert (found, result.exit_code) == (None, 1)
    assert "int8 already: leave out --dtype" in result.stderr


def test_int8_in_a_file(call, tmp_path):
    _, found, written, result = call("--dtype", "int8", target="model.onnx")
    assert result.exit_code == 0, result.output
    assert written == (tmp_path / "model.onnx", "int8")
    assert "int8" not in {variable.dtype for variable in found.backbone.variables}  # the runtime's own are written


def test_the_dtype_stays_as_it_is(call):
    _, found, _, result = call()
    assert result.exit_code == 0, result.output
    assert keras.backend.standardize_dtype(found.backbone.compute_dtype) == "float32"
    assert call("--dtype", "float8")[-1].exit_code == 2


def test_new_tokens(call, tmp_path):
    tiny_task(models.CausalLM, GPT2).save(tmp_path / "writer.keras")
    _, found, _, result = call("--max-new-tokens", "5", model="writer.keras")
    assert result.exit_code == 0, result.output
    assert found.max_new_tokens == 5
    result = call("--max-new-tokens", "73", model="writer.keras")[-1]
    assert "must be a positive integer below the model's 73 positions, got 73" in result.stderr.replace("\n", " ")
    assert "A TextClassifier generates no text: leave out --max-new-tokens." in call("--max-new-tokens", "5")[-1].stderr
