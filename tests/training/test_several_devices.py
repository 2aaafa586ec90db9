"""Several devices compute what one computes."""

from __future__ import annotations

import keras
import pytest

from tests.virtual_devices import assert_equal_on_devices

BACKEND = keras.backend.backend()
PROBE = "tests.training.devices_probe"


@pytest.mark.skipif(BACKEND != "jax", reason=f"needs the JAX backend, this is {BACKEND}")
def test_batches_need_not_divide_by_the_devices_of_jax(root):
    assert_equal_on_devices(root, 4, PROBE, "dense_results", "task_results")


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "jax", reason=f"needs the JAX backend, this is {BACKEND}")
def test_no_batch_of_any_task_needs_to_divide_by_the_devices_of_jax(root):
    assert_equal_on_devices(root, 4, PROBE, "all_tasks_results")


@pytest.mark.tf_only
def test_fit_outside_of_the_scope_of_a_mirrored_strategy(root):
    assert_equal_on_devices(root, 4, PROBE)
