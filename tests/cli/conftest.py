"""Fixtures of the tests of commands."""

from __future__ import annotations

import keras
import pytest

from lmzoo_cli import output


@pytest.fixture(scope="module", autouse=True)
def _no_status():
    """Show no status on a busy machine, where work is slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "_STATUS_DELAY_SECONDS", 600.0)
        yield


@pytest.fixture(scope="module")
def eager_functions():
    """Run functions of TensorFlow eagerly, without tracing and compiling them."""
    if keras.backend.backend() != "tensorflow":
        yield
        return
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)
