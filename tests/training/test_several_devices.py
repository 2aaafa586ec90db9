"""Batches on several devices; `tests/distribution/test_meshes.py` tests what is done with them."""

from __future__ import annotations

import keras
import pytest

from tests.virtual_devices import assert_equal_on_devices

BACKEND = keras.backend.backend()
PROBE = "tests.training.devices_probe"


@pytest.mark.skipif(BACKEND != "jax", reason=f"needs the JAX backend, this is {BACKEND}")
def test_batches_need_not_divide_by_the_devices_of_jax(root):
    assert_equal_on_devices(root, 4, PROBE, "dense_results", "task_results")
