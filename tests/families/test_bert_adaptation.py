"""Frozen backbones, LoRA and int8 weights."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest

from lmzoo.models import Backbone, TextClassifier
from lmzoo.training import AdamW
from tests.families.comparing import cosines
from tests.reference.weights import (
    difference,
    padded_batch,
    projections,
    relative_difference,
    run,
    tiny_backbone,
    to_numpy,
)

pytestmark = pytest.mark.usefixtures("eager")
LABELS = np.array([0, 1, 2])
# Keras warns about each layer without an int8 form.
quantizes = pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method implemented:UserWarning")


def classifier(backbone):
    model = TextClassifier(backbone, num_classes=3, dropout=0.0)
    model.compile(AdamW(0.01))
    return model


def values(weights):
    return {weight.path: to_numpy(weight.value) for weight in weights}


def step(model):
    """Train for one step and return the paths of the weights that changed."""
    before = values(model.weights)
    model.train_on_batch(padded_batch(), LABELS)
    return {path for path, value in values(model.weights).items() if not np.array_equal(value, before[path])}


def test_a_frozen_backbone_keeps_its_weights():
    backbone = tiny_backbone()
    backbone.trainable = False
    model = classifier(backbone)
    assert {w.path for w in model.trainable_weights} == {"classifier/logits/kernel", "classifier/logits/bias"}
    assert step(model) == {"classifier/logits/kernel", "classifier/logits/bias"}


@pytest.mark.parametrize("kind", ["freeze", "lora"])
def test_changed_trainable_weights_need_compile(kind):
    """On TensorFlow, the compiled step would continue to train the previous weights."""
    model, batch = classifier(tiny_backbone(num_layers=1)), padded_batch()
    assert any(path.startswith("block") for path in step(model))
    if kind == "freeze":
        model.backbone.trainable = False
    else:
        model.backbone.enable_lora(2)
    for train in (model.train_on_batch, model.fit):
        with pytest.raises(ValueError, match=r"weights have changed .* Pass a new optimizer to `compile`, or none"):
            train(batch, LABELS)
    model.compile(AdamW(0.01))
    assert all("classifier" in path or "lora" in path for path in step(model))


@pytest.mark.parametrize("kind", [AdamW, keras.optimizers.Adam])
def test_an_optimizer_is_for_one_set_of_weights(kind):
    """Otherwise, errors come from Keras in the first step, and differ between backends."""
    backbone, batch = tiny_backbone(num_layers=1), padded_batch()
    backbone.trainable = False
    model, optimizer = classifier(backbone), kind(0.01)
    for _ in range(2):
        model.compile(optimizer)
        assert step(model) == {"classifier/logits/kernel", "classifier/logits/bias"}
    backbone.trainable = True
    model.compile(optimizer)
    for train in (model.train_on_batch, model.fit):
        with pytest.raises(ValueError, match=r"weights have changed .* optimizer was built for the earlier ones\. "):
            train(batch, LABELS)
    model.compile(kind(0.01))
    assert any(path.startswith("block") for path in step(model))


def test_trainable_is_a_constructor_argument():
    assert not tiny_backbone(trainable=False).trainable_weights


def test_lora_trains_the_low_rank_updates_and_nothing_else():
    backbone, batch = tiny_backbone(), padded_batch()
    before = run(backbone, batch)
    kernels = projections(backbone)
    backbone.enable_lora(2)
    assert all(map(np.array_equal, kernels, projections(backbone)))  # the updates start at 0
    # Adapted projections are no longer fused into one product, which processors sum in another order.
    assert relative_difference(run(backbone, batch), before) <= 1e-6
    adapted = {
        f"block_{i}/attention/{name}/lora_kernel_{part}"
        for i in range(3)
        for name in ("query", "value")
        for part in "ab"
    }
    assert {w.path for w in backbone.trainable_weights} == adapted
    model = classifier(backbone)
    changed = step(model) | step(model)  # in the first step, one of the factors still has a gradient of 0
    assert changed == adapted | {"classifier/logits/kernel", "classifier/logits/bias"}
    assert difference(run(backbone, batch), before) > 1e-3


def test_lora_adapts_the_given_layers():
    backbone = tiny_backbone(num_layers=1)
    backbone.enable_lora(3, target_layer_names=("intermediate_dense",))
    assert {w.path: w.shape for w in backbone.trainable_weights} == {
        "block_0/intermediate_dense/lora_kernel_a": (35, 3),
        "block_0/intermediate_dense/lora_kernel_b": (3, 53),
    }


@pytest.mark.slow
@quantizes
def test_int8_backbone_is_saved_and_loaded(tmp_path):
    backbone, batch = tiny_backbone(num_layers=1), padded_batch()
    float_outputs = run(backbone, batch)
    backbone.quantize("int8")
    outputs = run(backbone, batch)
    kernels = [w for w in backbone.weights if w.path.endswith(("/kernel", "/embeddings"))]
    assert len(kernels) == 10
    assert {w.dtype for w in kernels} == {"int8"}
    assert 0.98 <= cosines(float_outputs["sequence_output"], outputs["sequence_output"]).min() < 1
    backbone.save(tmp_path / "int8.keras")
    loaded = keras.saving.load_model(tmp_path / "int8.keras")
    assert difference(run(loaded, batch), outputs) == 0.0
    assert loaded.get_config() == backbone.get_config()
    loaded.save(tmp_path / "again.keras")
    assert difference(run(keras.saving.load_model(tmp_path / "again.keras"), batch), outputs) == 0.0


@pytest.mark.quick_cases("True")
@quantizes
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=[pytest.mark.compiled, pytest.mark.slow])])
def test_int8_task_is_saved_and_loaded(tmp_path, compiled):
    model, batch = classifier(tiny_backbone(num_layers=1)), padded_batch()
    assert model.run_eagerly == (not compiled and keras.backend.backend() == "tensorflow")
    step(model)  # makes functions and an optimizer for the weights that quantization replaces
    float_logits = model.predict(batch, verbose=0)
    model.quantize("int8")
    logits = model.predict(batch, verbose=0)
    assert 1e-6 < difference(logits, float_logits) < 0.05
    model.save(tmp_path / "int8.keras")
    loaded = keras.saving.load_model(tmp_path / "int8.keras")
    np.testing.assert_array_equal(loaded.predict(batch, verbose=0), logits)
    np.testing.assert_array_equal(model.copy_with(dropout=0.3).predict(batch, verbose=0), logits)
    with pytest.raises(ValueError, match="Quantized weights cannot be cast to another dtype"):
        model.copy_with(dtype="bfloat16")


def test_lora_task_is_saved_with_its_updates_merged(tmp_path):
    backbone, batch = tiny_backbone(num_layers=1), padded_batch()
    backbone.enable_lora(2)
    model = classifier(backbone)
    step(model)
    step(model)
    with pytest.warns(UserWarning, match="with LoRA's updates added"):
        model.save(tmp_path / "lora.keras", include_optimizer=False)
    loaded = keras.saving.load_model(tmp_path / "lora.keras", compile=False)
    assert difference(loaded.predict(batch, verbose=0), model.predict(batch, verbose=0)) <= 1e-6
    assert not [w.path for w in loaded.weights if "lora" in w.path]
    for train in (loaded.train_on_batch, loaded.fit):
        with pytest.raises(ValueError, match=r"^This model was loaded without its optimizer\. Call `compile` before "):
            train(batch, LABELS)


@pytest.mark.slow
@quantizes
@pytest.mark.parametrize("int8_first", [True, False])
def test_int8_task_with_lora_is_saved_with_its_updates(tmp_path, int8_first):
    backbone, batch = tiny_backbone(num_layers=1), padded_batch()
    for quantize in (int8_first, not int8_first):
        backbone.quantize("int8") if quantize else backbone.enable_lora(2)
    model = classifier(backbone)
    changed = step(model) | step(model)
    adapted = {path for path in changed if "lora" in path}
    assert len(adapted) == 4
    logits = model.predict(batch, verbose=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "The file holds the weights with LoRA")
        model.save(tmp_path / "lora.keras")
        model.save_to_preset(tmp_path / "preset")
    restored_models = {
        "keras": keras.saving.load_model(tmp_path / "lora.keras"),
        "copy_with": model.copy_with(dropout=0.1),
    }
    for name, restored in restored_models.items():
        np.testing.assert_array_equal(restored.predict(batch, verbose=0), logits, err_msg=name)
        assert {w.path for w in restored.trainable_weights} == {w.path for w in model.trainable_weights}
        assert restored.backbone.lora_rank == 2
    assert difference(run(Backbone.from_preset(tmp_path / "preset"), batch), run(backbone, batch)) == 0.0
    loaded = restored_models["keras"]
    assert loaded.backbone.get_config() == backbone.get_config()
    assert step(loaded) == step(model)  # the optimizer's state is restored
    np.testing.assert_allclose(loaded.predict(batch, verbose=0), model.predict(batch, verbose=0), atol=1e-6)


@pytest.mark.slow
@quantizes
def test_a_file_of_merged_int8_weights_is_read(tmp_path):
    """Earlier versions wrote such files. Without LoRA, weights that int8 leaves in float are trained."""
    backbone, batch = tiny_backbone(num_layers=1), padded_batch()
    backbone.quantize("int8")
    model = classifier(backbone)
    assert {"classifier/logits/kernel", "block_0/attention/value/bias"} <= step(model)
    model.save(tmp_path / "merged.keras")
    logits = model.predict(batch, verbose=0)
    loaded = keras.saving.load_model(tmp_path / "merged.keras")
    loaded.backbone.enable_lora(2)
    loaded.backbone.get_layer("block_0").attention.query.lora_kernel_b.assign(np.ones((2, 35)))
    loaded.load_weights(tmp_path / "merged.keras")
    np.testing.assert_array_equal(loaded.predict(batch, verbose=0), logits)
