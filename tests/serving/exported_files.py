"""Run exported models in their runtimes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


def outputs_of(path: Path, features: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs of an exported model by name."""
    import tensorflow as tf

    if path.suffix == ".onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
        values = session.run(None, {x.name: features[x.name] for x in session.get_inputs()})
        return dict(zip([x.name for x in session.get_outputs()], values, strict=True))
    if path.suffix == ".tflite":
        run = tf.lite.Interpreter(str(path)).get_signature_runner()
        return run(**{name: features[name] for name in run.get_input_details()})
    serve = tf.saved_model.load(str(path)).signatures["serving_default"]
    return {name: x.numpy() for name, x in serve(**{k: tf.constant(v) for k, v in features.items()}).items()}
