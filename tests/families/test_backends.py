"""The backends compute the same: each other one in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from tests.families.backend_probe import LEARNING_RATE, probe, weights_of
from tests.reference.weights import tiny_masked_lm

TOLERANCE = 1e-5
OTHERS = [name for name in ("tensorflow", "jax") if name != keras.backend.backend()]


@pytest.mark.slow
@pytest.mark.parametrize("other", [*OTHERS, "torch"])
def test_equals_another_backend(other, tmp_path, root):
    if importlib.util.find_spec(other) is None:
        pytest.skip(f"{other} is not installed")
    weights = weights_of(tiny_masked_lm())
    np.savez(tmp_path / "weights.npz", **weights)
    subprocess.run(
        [sys.executable, "-m", "tests.families.backend_probe", tmp_path / "weights.npz", tmp_path / "outputs.npz"],
        env={**os.environ, "KERAS_BACKEND": other},
        cwd=root,
        check=True,
        timeout=300,
    )
    theirs, ours = dict(np.load(tmp_path / "outputs.npz")), probe(weights)
    assert theirs.pop("backend") == other
    assert sorted(theirs) == sorted(ours)
    for name, value in ours.items():
        np.testing.assert_allclose(theirs[name], value, atol=TOLERANCE, rtol=0, err_msg=name)
    moved = {path: np.abs(ours[f"updated/{path}"] - before).max() for path, before in weights.items()}
    # All but the pooler, which the loss does not reach, and key biases, which change no probability.
    still = sorted(path for path, change in moved.items() if change < LEARNING_RATE / 100)
    assert still == sorted(path for path in weights if path.startswith("pooler/") or path.endswith("key/bias"))
