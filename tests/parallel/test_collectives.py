"""Communication between devices that split weights and batches."""

from __future__ import annotations

import keras
import pytest

from tests.virtual_devices import assert_equal_on_devices

BACKEND = keras.backend.backend()


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "jax", reason=f"needs the JAX backend, this is {BACKEND}")
def test_devices_exchange_only_sums(root):
    assert_equal_on_devices(root, 4, "tests.parallel.collectives_probe")
