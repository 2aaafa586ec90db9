"""Reads which data devices exchange in the program of a layer's gradient, in a separate process."""

from __future__ import annotations

import re
from typing import Any

import jax
import keras
import numpy as np

from lmzoo.common.tensor_types import Tensor
from lmzoo.layers import GatherPositions, SelfAttention

COLLECTIVE = re.compile(r"(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")
BATCH, LENGTH, HEADS, WIDTH = 6, 7, 4, 20


class Attention(keras.Model):
    """Attention, of which some positions are gathered."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = SelfAttention(HEADS, WIDTH, name="attention")
        self.gather = GatherPositions()

    def call(self, x: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        return self.gather(self.attention(x, mask), positions)  # (B, M, H)


def collectives() -> set[str]:
    """Return the operations between devices in the gradient with respect to inputs and weights."""
    rng = np.random.default_rng(3)
    inputs: Any = (
        rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32"),
        np.ones((BATCH, LENGTH), bool),
        rng.integers(0, LENGTH, (BATCH, 3)).astype("int32"),
    )
    model = Attention()
    model(*inputs)
    inputs = [keras.distribution.distribute_tensor(x, _layout(x)) for x in inputs]
    weights = [weight.value for weight in model.weights]

    def loss(weights: list[Tensor], x: Tensor) -> Tensor:
        outputs, _ = model.stateless_call(weights, [], x, *inputs[1:])
        return keras.ops.sum(outputs * outputs)

    program = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(weights, inputs[0]).compile().as_text()
    return set(COLLECTIVE.findall(program))


def _layout(x: np.ndarray) -> keras.distribution.TensorLayout:
    return keras.distribution.distribution().get_data_layout(x.shape)


if __name__ == "__main__":
    mesh = keras.distribution.DeviceMesh((2, 2), ("batch", "model"), keras.distribution.list_devices())
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*(query|key|value)/kernel"] = (None, "model")
    layouts[".*(query|key|value)/bias"] = ("model",)
    layouts[".*output_dense/kernel"] = ("model", None)
    keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch"))
    operations = collectives()
    assert operations == {"all-reduce"}, operations  # sums of partial products, and of gradients over the batch
    print("equal")
