"""Heads that transform vectors before their linear layer, against numpy."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.layers import ClassificationHead, MaskedLMHead, SpanHead
from tests.reference.weights import difference, to_numpy

B, T, H, C, V = 3, 5, 7, 2, 11
HEADS = {
    "classes": lambda **arguments: ClassificationHead(C, input_dropout=False, **arguments),
    "spans": SpanHead,
    "tokens": lambda activation, **arguments: MaskedLMHead(None, activation, table_shape=(V, H), **arguments),
}
MASK = np.arange(T) < np.array([5, 3, 1])[:, None]


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("name", HEADS)
def test_heads_equal_numpy(name, use_bias):
    head = HEADS[name](activation="gelu", use_bias=use_bias, layer_norm_epsilon=1e-3)
    x = np.random.default_rng(3).normal(size=(B, T, H)).astype("float32")
    masks = [MASK] if name == "spans" else []
    head(x, *masks)
    rng = np.random.default_rng(5)
    for weight in head.weights:
        weight.assign(rng.normal(0.3, 0.5, weight.shape).astype("float32"))
    weights = {weight.path.split("/", 1)[1]: to_numpy(weight) for weight in head.weights}
    assert ("dense/bias" in weights, "layer_norm/beta" in weights) == (use_bias, use_bias)
    y = to_numpy(keras.ops.gelu(x @ weights["dense/kernel"] + weights.get("dense/bias", 0), approximate=False))
    y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-3)
    y = y * weights["layer_norm/gamma"] + weights.get("layer_norm/beta", 0)
    if name == "tokens":
        logits, _ = head(x)
    else:
        logits, y = head(x, *masks), y @ weights["logits/kernel"] + weights["logits/bias"]
    assert difference(to_numpy(logits)[MASK], y[MASK]) <= 1e-5
    config = head.get_config()
    assert type(head).from_config(config).get_config() == config
