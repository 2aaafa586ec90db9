"""Several devices compute what one computes; virtual ones, which a process has from its start or not at all."""

from __future__ import annotations

import os
import subprocess
import sys

import keras
import pytest

BACKEND = keras.backend.backend()


def probe(root, *arguments: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.training.devices_probe", *arguments]
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"
    environment = {**os.environ, "KERAS_BACKEND": BACKEND, "XLA_FLAGS": flags}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.stdout.splitlines()[-1:] == ["equal"], done.stderr[-3000:]


@pytest.mark.skipif(BACKEND != "jax", reason=f"needs the JAX backend, this is {BACKEND}")
def test_batches_need_not_divide_by_the_devices_of_jax(root):
    probe(root, "dense_results", "task_results")


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "jax", reason=f"needs the JAX backend, this is {BACKEND}")
def test_no_batch_of_any_task_needs_to_divide_by_the_devices_of_jax(root):
    probe(root, "all_tasks_results")


@pytest.mark.tf_only
def test_fit_outside_of_the_scope_of_a_mirrored_strategy(root):
    probe(root)
