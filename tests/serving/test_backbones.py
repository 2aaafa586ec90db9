"""Backbones as SavedModels, ONNX and LiteRT files give the same outputs by name."""

from __future__ import annotations

import numpy as np
import pytest

import lmzoo.models  # noqa: F401 - registers the families
from lmzoo.layers.sublayers import sublayers
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_texts
from tests.serving.exported_files import outputs_of

pytestmark = pytest.mark.tf_only

SETTINGS = ("dedupe", "unroll", "tensor_lists")  # attributes of layers that an export changes
FORMATS = "saved", "model.onnx", "model.tflite"


def parameters():
    """Yield every family in every format; a family that computes the same as another is in one format."""
    for number, family in enumerate(families().values()):
        for name in FORMATS if not family.like else [FORMATS[number % 3]]:
            yield pytest.param(family, name, id=f"{family.name}-{name}")


def features_of(family):
    features = tiny_preprocessor(family)(tiny_texts())
    if family.backbone.reads_source:
        features |= {f"decoder_{name}": np.roll(values, 1, axis=0) for name, values in features.items()}
    return features


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
@pytest.mark.parametrize(("family", "name"), list(parameters()))
def test_every_output_is_exported_by_its_name(family, name, tmp_path):
    if name.endswith("onnx"):
        pytest.importorskip("tf2onnx")
    backbone, path = tiny_backbone(family), tmp_path / name
    settings = [(layer, *map(vars(layer).get, SETTINGS)) for layer in sublayers(backbone)]
    backbone.export(path, verbose=False)
    assert settings == [(layer, *map(vars(layer).get, SETTINGS)) for layer in sublayers(backbone)]
    features = features_of(family)
    outputs = backbone.predict_on_batch({name: features[name] for name in backbone.input})
    expected = {name: x for name, x in outputs.items() if not isinstance(x, (list, tuple))}
    for name, states in outputs.items():
        if isinstance(states, (list, tuple)):
            expected |= {f"{name}_{i}": x for i, x in enumerate(states)}
    exported = outputs_of(path, features)
    assert exported.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(exported[name], array, rtol=1e-4, atol=1e-4, err_msg=name)


def test_a_format_must_fit_the_path(tmp_path):
    backbone = tiny_backbone(families()["ffnn_lm"])
    with pytest.raises(ValueError, match=r"`format` must be 'onnx' for the path .*model\.onnx', got 'litert'"):
        backbone.export(tmp_path / "model.onnx", format="litert")
    with pytest.raises(ValueError, match=r"a file must end in \.onnx or \.tflite"):
        backbone.export(tmp_path / "model.keras")


def test_only_float32_is_written_for_other_runtimes(tmp_path):
    with pytest.raises(ValueError, match=r"Only models in float32 can be written as \.tflite"):
        tiny_backbone(families()["ffnn_lm"], dtype="mixed_bfloat16").export(tmp_path / "model.tflite")
