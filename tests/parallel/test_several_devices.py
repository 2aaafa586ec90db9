"""Batches on several devices; `tests/parallel/test_meshes.py` tests the computations on them."""

from __future__ import annotations

import keras
import pytest

from tests.virtual_devices import assert_equal_on_devices

BACKEND = keras.backend.backend()
PROBE = "tests.parallel.devices_probe"


@pytest.mark.skipif(BACKEND != "jax", reason=f"needs the JAX backend, this is {BACKEND}")
@pytest.mark.quick_cases("4")
@pytest.mark.parametrize("devices", [2, 3, 4])
def test_batches_need_not_be_divisible_by_the_devices(root, devices):
    assert_equal_on_devices(root, devices, PROBE, "dense_results", "task_results", "together_results")


@pytest.mark.slow
@pytest.mark.tf_only
def test_a_strategy_of_tensorflow_trains_and_predicts(root):
    assert_equal_on_devices(root, 1, "tests.parallel.strategy_probe")
