"""The mix of layers with trainable weights."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.layers import ScalarMix

LAYERS, BATCH, LENGTH, WIDTH = 3, 2, 5, 7


def layers(seed=3):
    return list(np.random.default_rng(seed).normal(1.5, 2.0, (LAYERS, BATCH, LENGTH, WIDTH)).astype("float32"))


MASK = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]])


def to_array(x):
    return keras.ops.convert_to_numpy(x)


def test_the_mix_starts_as_the_mean():
    np.testing.assert_allclose(to_array(ScalarMix()(layers())), np.mean(layers(), axis=0), rtol=1e-5, atol=1e-6)


def test_layers_are_weighted_by_softmax_and_gamma():
    mix, values = ScalarMix(), layers()
    mix(values)
    mix.scalars.assign([0.3, -0.7, 1.1])
    mix.gamma.assign(1.7)
    weights = np.exp([0.3, -0.7, 1.1]) / np.exp([0.3, -0.7, 1.1]).sum()
    expected = 1.7 * np.tensordot(weights, np.stack(values), 1)
    np.testing.assert_allclose(to_array(mix(tuple(values))), expected, rtol=1e-5, atol=1e-5)
    assert [w.path.rsplit("/")[-1] for w in mix.trainable_weights] == ["scalars", "gamma"]


@pytest.mark.parametrize(("norm", "epsilon"), [("allennlp", 1e-13), ("bilm_tf", 1e-12)])
@pytest.mark.parametrize("scale", [1.0, 1e-6])  # at 1e-6 the variance is as small as epsilon
def test_layer_norm_is_over_real_tokens(norm, epsilon, scale):
    values = [x * np.float32(scale) for x in layers()]
    expected = 0.0
    for layer in values:
        tokens = layer[MASK == 1].astype("float64")
        assert tokens.shape == (6, WIDTH)
        expected = expected + (layer - tokens.mean()) / np.sqrt(tokens.var() + epsilon) / LAYERS
    mixed = to_array(ScalarMix(layer_norm=norm)(values, MASK))
    np.testing.assert_allclose(mixed, expected, rtol=1e-3, atol=1e-3 if scale < 1 else 1e-5)


def test_layer_norm_of_padding_is_finite():
    for values in (layers(), [np.zeros_like(x) for x in layers()]):
        assert np.isfinite(to_array(ScalarMix(layer_norm="allennlp")(values, MASK * 0))).all()


def test_one_layer_is_scaled_only():
    mix, top = ScalarMix(), layers()[-1]
    mix([top])
    mix.gamma.assign(2.5)
    np.testing.assert_allclose(to_array(mix([top])), 2.5 * top, rtol=1e-6)


def test_fixed_parameters_are_not_trained():
    mix, values = ScalarMix(parameters=[-9e10, 1, -9e10]), layers()
    np.testing.assert_allclose(to_array(mix(values)), values[1], rtol=1e-6)
    assert mix.trainable_weights == []
    with pytest.raises(ValueError, match="2 values for 3 layers"):
        ScalarMix(parameters=[1, 2])(values)


def test_the_penalty_is_on_the_scalars_before_softmax():
    mix, values = ScalarMix(l2_coefficient=0.5), layers()
    mix(values)
    mix.scalars.assign([1.0, 2.0, -3.0])
    mix(values)
    assert float(sum(to_array(loss) for loss in mix.losses)) == pytest.approx(7.0)
    assert ScalarMix().losses == []


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="'batch'"):
        ScalarMix("batch")
    with pytest.raises(ValueError, match="-1"):
        ScalarMix(l2_coefficient=-1)
    with pytest.raises(ValueError, match="padding_mask"):
        ScalarMix("allennlp")(layers())


def test_mixes_in_float32():
    values = [x.astype("float16") for x in layers()]
    mix = ScalarMix(dtype="mixed_bfloat16")
    mixed = mix(values)
    assert keras.backend.standardize_dtype(mixed.dtype) == "bfloat16"
    assert mix.scalars.dtype == "float32"
