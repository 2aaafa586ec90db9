"""What tests of several commands need."""

from __future__ import annotations

import keras
import pytest


@pytest.fixture(scope="module")
def eager_functions():
    """Runs functions eagerly: tracing and compiling take most of the time of such small models."""
    if keras.backend.backend() != "tensorflow":
        yield
        return
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)
