"""Recurrent layers against numpy and torch, and their states."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from lmzoo.families.lstm_lm import FAMILY as LSTM_LM
from lmzoo.layers import BiLSTMEncoder, RecurrentLayer
from lmzoo.layers.recurrent import CELLS
from lmzoo.models import Backbone
from lmzoo.testing import tiny_backbone
from tests.reference import left_to_right
from tests.reference.gradients import gradients

B, T, D, H = 3, 7, 5, 11
RNG = np.random.default_rng(1811)
# The order of torch's gates, as indices of ours.
TORCH_GATES = {"rnn": [0], "gru": [0, 1, 2], "lstm": [0, 2, 1, 3]}


def layer_of(cell, **arguments):
    """Return a layer with random weights."""
    layer = RecurrentLayer(cell, H, **arguments)
    layer.build((B, T, D))
    for weight in layer.weights:
        weight.assign(RNG.normal(scale=0.5, size=weight.shape))
    return layer


def weights_of(layer):
    return {w.name: np.array(ops.convert_to_numpy(w), "float64") for w in layer.weights}


def floats(*shape):
    return RNG.normal(size=shape).astype("float32")


class VariableArguments(keras.Model):
    """A model whose layer's arguments are variables, so that they have gradients."""

    def __init__(self, layer, arguments):
        super().__init__()
        self.arguments = [self.add_weight(shape=a.shape, name=f"argument_{i}") for i, a in enumerate(arguments)]
        for variable, value in zip(self.arguments, arguments, strict=True):
            variable.assign(value)
        self.layer, self.built = layer, True

    def call(self, inputs):
        inputs, *state = map(ops.convert_to_tensor, self.arguments)
        return self.layer(inputs, tuple(state))[-1]


@pytest.mark.parametrize("cell", CELLS)
def test_cells_follow_the_formulas(cell):
    layer, x = layer_of(cell), floats(B, T, D)
    states = [ops.convert_to_numpy(s) for s in layer(ops.convert_to_tensor(x))]
    memories, outputs = left_to_right.CELLS[cell](x.astype("float64"), weights_of(layer))
    np.testing.assert_allclose(states[-1], outputs, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(states[0], memories, rtol=1e-5, atol=1e-5)
    assert len(states) == 1 + (cell == "lstm")


@pytest.mark.parametrize("cell", CELLS)
def test_a_state_continues_a_text(cell):
    layer, x = layer_of(cell), ops.convert_to_tensor(floats(B, T, D))
    whole = layer(x)
    first = layer(x[:, :4])
    second = layer(x[:, 4:], tuple(s[:, -1] for s in first))
    for expected, beginning, end in zip(whole, first, second, strict=True):
        in_parts = ops.convert_to_numpy(ops.concatenate([beginning, end], axis=1))
        np.testing.assert_allclose(in_parts, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cell", CELLS)
def test_cells_equal_torch(cell):
    """Outputs, states, and gradients of the inputs, the initial state and all weights."""
    torch = pytest.importorskip("torch")
    layer, x, output_gradient = layer_of(cell), floats(B, T, D), floats(B, T, H)
    initial_state = [floats(B, H) for _ in layer.state_spec(B)]
    peer = getattr(torch.nn, cell.upper())(D, H, batch_first=True)
    order, weights = TORCH_GATES[cell], weights_of(layer)

    def to_torch(columns):
        return np.concatenate([np.split(columns, len(order), axis=-1)[k] for k in order], axis=-1).T

    with torch.no_grad():
        peer.weight_ih_l0.copy_(torch.tensor(to_torch(weights["kernel"])))
        peer.weight_hh_l0.copy_(torch.tensor(to_torch(weights["recurrent_kernel"])))
        peer.bias_ih_l0.copy_(torch.tensor(to_torch(weights["bias"])))
        peer.bias_hh_l0.zero_()
        if cell == "gru":
            peer.bias_hh_l0[2 * H :] = torch.tensor(weights["candidate_bias"])
    peer_x = torch.tensor(x, requires_grad=True)
    peer_states = [torch.tensor(s[None], requires_grad=True) for s in initial_state]
    outputs, last = peer(peer_x, tuple(peer_states[::-1]) if cell == "lstm" else peer_states[0])
    (outputs * torch.tensor(output_gradient)).sum().backward()

    states = layer(ops.convert_to_tensor(x), tuple(map(ops.convert_to_tensor, initial_state)))
    np.testing.assert_allclose(ops.convert_to_numpy(states[-1]), outputs.detach().numpy(), rtol=1e-5, atol=1e-5)
    for value, (desired,) in zip(states, last[::-1] if cell == "lstm" else [last], strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(value)[:, -1], desired.detach().numpy(), rtol=1e-5, atol=1e-5)

    model = VariableArguments(layer, [x, *initial_state])
    by_path = gradients(model, lambda outputs: ops.sum(outputs * output_gradient), np.zeros(1))
    actual = [*by_path.values()]
    expected = [peer_x.grad.numpy(), *(s.grad[0].numpy() for s in peer_states)]
    expected += [p.grad.numpy() for p in peer.parameters()][:3]
    weight_gradients = [to_torch(gradient) for gradient in actual[len(initial_state) + 1 :][:3]]
    for value, desired in zip([*actual[: len(initial_state) + 1], *weight_gradients], expected, strict=True):
        np.testing.assert_allclose(value, desired, rtol=1e-5, atol=2e-5)
    if cell == "gru":
        np.testing.assert_allclose(actual[-1], peer.bias_hh_l0.grad.numpy()[2 * H :], rtol=1e-5, atol=2e-5)


def test_forget_gates_start_open():
    layer = RecurrentLayer("lstm", H)
    layer.build((B, T, D))
    bias = ops.convert_to_numpy(layer.bias).reshape(4, H)
    assert bias[2].tolist() == [1.0] * H
    assert not bias[[0, 1, 3]].any()


@pytest.mark.half_precision
def test_memories_are_not_rounded():
    layer = layer_of("lstm", dtype="mixed_bfloat16")
    assert [keras.backend.standardize_dtype(s.dtype) for s in layer(floats(B, T, D))] == ["float32", "bfloat16"]


def test_an_unknown_cell_is_refused():
    with pytest.raises(ValueError, match="`cell` must be 'rnn' or 'gru' or 'lstm', got 'LSTM'"):
        RecurrentLayer("LSTM", 3)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_recurrent_models_are_built_and_loaded_in_half_precision(dtype, tmp_path):
    backbone = tiny_backbone(LSTM_LM)
    backbone.save_to_preset(tmp_path)
    ids = np.array([[3, 5, 7, 11]], "int32")
    inputs = {"token_ids": ids, "padding_mask": np.ones_like(ids)}
    expected = ops.convert_to_numpy(backbone(inputs)["sequence_output"])
    half = Backbone.from_preset(tmp_path, dtype=dtype)(inputs)["sequence_output"]
    assert keras.backend.standardize_dtype(half.dtype) == dtype
    np.testing.assert_allclose(ops.convert_to_numpy(ops.cast(half, "float32")), expected, atol=0.005)
    encoder = BiLSTMEncoder(5, 3, 13, dtype=dtype)
    vectors = encoder(ops.cast(half, dtype), ops.convert_to_tensor(ids), ops.ones_like(ids))
    assert np.isfinite(ops.convert_to_numpy(ops.cast(vectors, "float32"))).all()
