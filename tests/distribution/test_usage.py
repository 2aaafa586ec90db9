"""All ways to use a model, on several devices: the results are those of one device."""

from __future__ import annotations

import keras
import pytest

from tests.virtual_devices import assert_equal_on_devices

BACKEND = keras.backend.backend()
USES = ("token_features", "dataset", "accumulation", "lora", "mixed_precision", "resumed")


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "jax", reason=f"needs the JAX backend, this is {BACKEND}")
@pytest.mark.parametrize("use", USES)
def test_results_equal_those_of_one_device(root, use):
    assert_equal_on_devices(root, 4, "tests.distribution.usage_probe", use)
