"""`lmzoo export`: the task and options that it passes to `Task.export`, which `tests/serving` tests.

The commands of README, from training to a server, also run here.
"""

from __future__ import annotations

import json
import re

import keras
import numpy as np
import pytest
from typer.testing import CliRunner

from lmzoo import models
from lmzoo.families.bert import FAMILY
from lmzoo.families.gpt2 import FAMILY as GPT2
from lmzoo.serving import server
from lmzoo.testing.tiny import tiny_task
from lmzoo_cli.main import app
from tests.cli.commands import run, run_line


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Return a function that exports a saved task, and returns it, the exported task, its path and the result."""
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
def test_bfloat16_weights_are_rounded(call, tmp_path):
    task, exported, path, result = call("--dtype", "bfloat16")
    assert result.exit_code == 0, result.output
    assert path == tmp_path / "served/1"
    assert {variable.dtype for variable in exported.backbone.weights} == {"bfloat16"}
    for actual, expected in zip(exported.get_weights(), task.get_weights(), strict=True):
        np.testing.assert_allclose(actual.astype("float32"), expected, rtol=1e-2, atol=1e-3)
    assert (exported.labels, exported.preprocessor.get_config()) == (task.labels, task.preprocessor.get_config())
    (actual,), (expected,) = (model.classify(["good film"]) for model in (exported, task))
    assert actual["score"] == pytest.approx(expected["score"], abs=0.02)


@pytest.mark.slow
def test_a_quantized_model_cannot_be_cast(call, tmp_path):
    _, exported, _, result = call("--dtype", "int8")
    assert result.exit_code == 0, result.output
    assert "int8" in {variable.dtype for variable in exported.backbone.variables}
    exported.save(tmp_path / "quantized.keras")
    _, exported, _, result = call("--dtype", "bfloat16", model="quantized.keras")
    assert (exported, result.exit_code) == (None, 1)
    assert "int8 already: leave out --dtype" in result.stderr


def test_int8_of_onnx_is_left_to_its_runtime(call, tmp_path):
    _, exported, path_and_dtype, result = call("--dtype", "int8", target="model.onnx")
    assert result.exit_code == 0, result.output
    assert path_and_dtype == (tmp_path / "model.onnx", "int8")
    assert "int8" not in {
        variable.dtype for variable in exported.backbone.variables
    }  # the runtime's own kernels are written


@pytest.mark.parametrize("options", [("--windows", "auto"), ("--max-new-tokens", "5")])
def test_files_of_other_runtimes_hold_one_window_and_no_loop(call, options):
    _, exported, _, result = call(*options, target="model.onnx")
    assert (exported, result.exit_code) == (None, 1)
    assert "model.onnx takes the tokens of one window and returns logits: leave out --windows" in result.stderr


def test_the_default_dtype_is_that_of_the_model(call):
    _, exported, _, result = call()
    assert result.exit_code == 0, result.output
    assert keras.backend.standardize_dtype(exported.backbone.compute_dtype) == "float32"
    assert call("--dtype", "float8")[-1].exit_code == 2


def test_max_new_tokens_are_set_and_checked(call, tmp_path):
    tiny_task(models.CausalLM, GPT2).save(tmp_path / "writer.keras")
    _, exported, _, result = call("--max-new-tokens", "5", model="writer.keras")
    assert result.exit_code == 0, result.output
    assert exported.max_new_tokens == 5
    result = call("--max-new-tokens", "73", model="writer.keras")[-1]
    assert "must be a positive integer below the model's 73 positions, got 73" in result.stderr.replace("\n", " ")
    assert "A TextClassifier generates no text: leave out --max-new-tokens." in call("--max-new-tokens", "5")[-1].stderr


def test_the_next_version_below_the_home_directory(call, tmp_path, monkeypatch):
    """Shells do not expand a quoted "~"."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "served" / "1").mkdir(parents=True)
    (tmp_path / "served" / "1" / "saved_model.pb").touch()
    assert f"TextClassifier in {tmp_path}/served/2: " in run("export", tmp_path / "model.keras", "~/served").stderr


@pytest.mark.slow
@pytest.mark.tf_only
def test_commands_of_readme_run(root, tmp_path, monkeypatch):
    """A server is only started, and the label that README shows is that of the model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reviews.csv").symlink_to(root / "examples/data/reviews.csv")
    served = []
    monkeypatch.setattr(server, "serve", lambda api, listener: served.append(api.versions.name))
    page = (root / "README.md").read_text("utf-8").replace("\\\n", "")
    section = page.partition("\n## On the command line\n")[2].partition("\n## ")[0]
    results = dict(map(run_line, re.findall(r"^\$ (.*)$", section, re.MULTILINE)))
    assert [*results] == ["fit", "predict", "export", "serve"]
    shown = json.loads(re.search(r"^{.*}$", section, re.MULTILINE)[0])
    answer = json.loads(results["predict"].stdout)
    assert answer == {**shown, "score": pytest.approx(shown["score"], abs=0.2)}
    assert served == ["reviews"]
