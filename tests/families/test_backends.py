"""Torch computes what this backend computes. (`check_task_backends` compares TensorFlow and JAX.)"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.families.backend_probe import LEARNING_RATE, probe, weights_of
from tests.reference.weights import tiny_masked_lm

TOLERANCE = 1e-5


@pytest.mark.slow
def test_torch_computes_the_same(tmp_path, root):
    pytest.importorskip("torch")
    weights = weights_of(tiny_masked_lm())
    np.savez(tmp_path / "weights.npz", **weights)
    subprocess.run(
        [sys.executable, "-m", "tests.families.backend_probe", tmp_path / "weights.npz", tmp_path / "outputs.npz"],
        env={**os.environ, "KERAS_BACKEND": "torch"},
        cwd=root,
        check=True,
        timeout=300,
    )
    torch_results = dict(np.load(tmp_path / "outputs.npz"))
    results = probe(weights)
    assert torch_results.pop("backend") == "torch"
    assert sorted(torch_results) == sorted(results)
    for name, value in results.items():
        np.testing.assert_allclose(torch_results[name], value, atol=TOLERANCE, rtol=0, err_msg=name)
    changes = {path: np.abs(results[f"updated/{path}"] - before).max() for path, before in weights.items()}
    # The loss does not reach the pooler, and key biases change no probability.
    unchanged = sorted(path for path, change in changes.items() if change < LEARNING_RATE / 100)
    assert unchanged == sorted(path for path in weights if path.startswith("pooler/") or path.endswith("key/bias"))
