"""`lmzoo fit` and `lmzoo pretrain` in several processes on Ray compute the same as one, also when one is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
from typer.testing import CliRunner

from lmzoo import models
from lmzoo.families.bert import FAMILY
from lmzoo.parallel.process_group import run_together
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_texts
from lmzoo_cli.joining import train_together
from lmzoo_cli.main import app
from lmzoo_cli.options import TrainingWorkerOptions
from tests.parallel import gradient_probe
from tests.parallel.killing import is_second, kill_a_worker
from tests.parallel.processes_probe import LINES
from tests.processes import copy_vocabulary
from tests.tensorflow_lines import without_tensorflow_lines

BACKEND = keras.backend.backend()
jax_only = pytest.mark.skipif(BACKEND != "jax", reason=f"needs the JAX backend, this is {BACKEND}")


def run(*arguments, code=0):
    """Run a command in this process."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def start(root, *arguments):
    """Start a command in a separate process."""
    return subprocess.Popen(
        [sys.executable, "-m", "lmzoo_cli", *map(str, arguments)],
        env={**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(running, code=0):
    with running:
        stdout, stderr = running.communicate(timeout=1800)
    assert running.returncode == code, stderr
    assert "Traceback" not in stderr
    return stdout, stderr


@pytest.fixture
def fit(tmp_path):
    """Return a command that fits 10 texts; the last batch cannot be split."""
    backbone = tiny_backbone(FAMILY, num_layers=1)
    models.MaskedLM(backbone, tiny_preprocessor(FAMILY)).save_to_preset(tmp_path / "preset")
    lines = [f"{text}\t{'good' if i % 3 else 'bad'}\n" for i, text in enumerate(tiny_texts(10))]
    (tmp_path / "texts.tsv").write_text("text\tlabel\n" + "".join(lines))
    data = tmp_path / "texts.tsv"
    model = ["--preset", tmp_path / "preset", "--sequence-length", 16]
    return ["fit", data, "--task", "classifier", *model, "--batch-size", 4, "--output"]


def weights(path):
    return keras.saving.load_model(path).get_weights()


def assert_same(actual, expected):
    for weight, desired in zip(actual, expected, strict=True):
        np.testing.assert_allclose(weight, desired, atol=1e-5)


@jax_only
@pytest.mark.slow
def test_two_workers_fit_like_one_process(fit, root, tmp_path):
    options = ["--epochs", 2]
    running = start(root, *fit, tmp_path / "two.keras", *options, "--workers", 2)
    try:
        expected = run(*fit, tmp_path / "one.keras", *options)
        stdout, stderr = finish(running)
    finally:
        running.kill()
    assert "Starting 2 workers on Ray..." in stderr
    assert f"Wrote {tmp_path / 'two.keras'}." in stderr
    without_times = [re.sub(r" - \d+m?s.*/step", "", text) for text in (stdout, expected.stdout)]
    assert without_times[0] == without_times[1]
    assert_same(weights(tmp_path / "two.keras"), weights(tmp_path / "one.keras"))


@jax_only
@pytest.mark.slow
def test_two_workers_share_one_gradient(root, tmp_path, monkeypatch):
    """Each computes two of four rows; another label of any row changes the weights of both equally."""
    monkeypatch.setenv("PYTHONPATH", str(root), os.pathsep)
    monkeypatch.chdir(root)
    assert run_together("tests.parallel.gradient_probe", [str(tmp_path)], 2) == 0

    def weights_of(row, index):
        with np.load(tmp_path / f"{row} {index}.npz") as file:
            return list(file.values())

    assert_same(weights_of(None, 0), gradient_probe.train_on(gradient_probe.LABELS))
    for row in range(4):
        assert_same(weights_of(row, 1), weights_of(row, 0))
        changes = [np.abs(a - b).max() for a, b in zip(weights_of(row, 0), weights_of(None, 0), strict=True)]
        assert max(changes) > 1e-3


def test_wrong_options_are_refused(fit, tmp_path, monkeypatch):
    command = [*fit, tmp_path / "model.keras"]
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    pretrain = ["pretrain", tmp_path, "--output", tmp_path / "new"]
    for arguments in (command, pretrain):
        assert "on the JAX backend: set KERAS_BACKEND=jax" in run(*arguments, "--workers", 2, code=1).stderr
        assert "--ray needs the number of workers" in run(*arguments, "--ray", "auto", code=1).stderr
        error = run(*arguments, "--workers", 2, "--min-workers", 3, code=1).stderr
        assert "--min-workers must not be more than --workers" in error
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    monkeypatch.setitem(sys.modules, "ray", None)
    for arguments in (command, pretrain):
        assert "pip install 'lmzoo[scale]'" in run(*arguments, "--workers", 2, code=1).stderr
    monkeypatch.delenv("KERAS_DISTRIBUTION_NUM_PROCESSES", raising=False)
    with train_together(TrainingWorkerOptions()):  # a run in one process does not need Ray
        pass


@jax_only
@pytest.mark.slow
def test_an_error_of_all_workers_is_printed_once(fit, root, tmp_path):
    (tmp_path / "texts.tsv").unlink()
    _, stderr = finish(start(root, *fit, tmp_path / "no.keras", "--workers", 2), code=1)
    lines = [line for line in without_tensorflow_lines(stderr).splitlines() if not line.endswith("...")]
    assert lines == [f"Error: There is no {tmp_path / 'texts.tsv'}."]


@jax_only
@pytest.mark.slow
def test_a_killed_and_stopped_run_continues(fit, root, tmp_path):
    options = ["--epochs", 60, "--workers", 2, "--checkpoint"]
    finish(start(root, *fit, tmp_path / "whole.keras", *options, tmp_path / "whole"))
    states = tmp_path / "states"
    command = [*fit, tmp_path / "parts.keras", *options, states]

    def newest():
        return max((path.name for path in states.glob("step-*")), default="")

    running = start(root, *command)
    while not newest():
        time.sleep(0.01)
    kill_a_worker(running, wanted=is_second)
    at_kill = newest()
    time.sleep(10)  # until the processes of the first attempt have ended
    at_restart = newest()
    while newest() == at_restart:
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    _, stderr = finish(running, code=130)
    assert "restart 1 of at most 3" in stderr
    (step,) = re.findall(r"Stopped by Ctrl-C after step (\d+): the same `fit` continues from there", stderr)
    assert f"step-{int(step):012d}" == newest() > at_kill
    assert not (tmp_path / "parts.keras").exists()
    finish(start(root, *command))
    for weight, desired in zip(weights(tmp_path / "parts.keras"), weights(tmp_path / "whole.keras"), strict=True):
        np.testing.assert_array_equal(weight, desired)


@jax_only
@pytest.mark.slow
def test_two_workers_pretrain_like_one_process(root, tmp_path):
    """A worker is killed as soon as it trains. (test_processes.py covers ELMo's streams.)"""
    sea = [" ".join(LINES[(i + j) % 4] for j in range(4)) for i in range(103)]
    (tmp_path / "sea.txt").write_text("\n\n".join(sea))
    command = ["pretrain", tmp_path / "sea.txt", "--family", "bert", "--tokens", 2000, "--vocabulary-size", 61]
    command += ["--sequence-length", 16, "--batch-size", 8, "--weights-dtype", "float32", "--output"]
    one_output, _ = finish(start(root, *command, tmp_path / "one"))
    copy_vocabulary(tmp_path / "one.work", tmp_path / "two.work")
    running = start(root, *command, tmp_path / "two", "--workers", 2)
    while not (tmp_path / "two.work" / "log.csv").exists():
        time.sleep(0.01)
    kill_a_worker(running, wanted=is_second)
    two_output, stderr = finish(running)
    assert "restart 1 of at most 3" in stderr
    scores = [dict(re.findall(r"(.+)\t(.+)\n", text)) for text in (one_output, two_output)]
    assert len(scores[1]) == two_output.count("\n"), two_output
    assert scores[0].keys() == scores[1].keys()
    for name, value in scores[0].items():
        np.testing.assert_allclose(float(scores[1][name]), float(value), rtol=2e-5, err_msg=name)
    folders = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("one", "two")]
    assert folders[0] == folders[1]
    backbones = [models.Backbone.from_preset(tmp_path / name).get_weights() for name in ("one", "two")]
    assert_same(backbones[1], backbones[0])
