"""Rematerialization: activations recomputed in the backward pass instead of stored (Chen et al., 2016).

https://arxiv.org/abs/1604.06174
"""

from __future__ import annotations

from collections.abc import Callable

import keras
from keras import ops

from lmzoo.common.tensor_types import Tensor, Tensors


def recompute_in_backward(layer: keras.layers.Layer, function: Callable[..., Tensors], *inputs: Tensor) -> Tensors:
    """Return `function(*inputs)`, and recompute its activations in the backward pass instead of storing them.

    `keras.remat` alone would draw different dropout masks in the second computation on TensorFlow, and fail on JAX.

    Args:
        layer: layer whose weights and seeds `function` uses.
        function: part of the layer's computation; it returns one float tensor and changes only seeds.
        *inputs: float tensors, the arguments of `function`.
    """
    weights = layer.trainable_variables
    seeds = get_seeds(layer)
    # On TensorFlow `v.value` is the variable itself, and seeds change before the second computation.
    fixed_values = [(v, ops.copy(v.value)) for v in layer.non_trainable_variables]

    new_seeds: list[Tensor] = []

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        weight_values = tensors[: len(weights)]
        arguments = tensors[len(weights) :]
        with keras.StatelessScope(state_mapping=[*zip(weights, weight_values, strict=True), *fixed_values]) as scope:
            output = function(*arguments)
        new_seeds[:] = [scope.get_current_value(v) for v in seeds]
        # On JAX, values leave this function only as results; on TensorFlow, results without a gradient break loops.
        return (output,) if keras.backend.backend() == "tensorflow" else (output, *new_seeds)

    output, *returned_seeds = keras.remat(run)(*(ops.copy(v.value) for v in weights), *inputs)
    for variable, value in zip(seeds, returned_seeds or new_seeds, strict=True):
        variable.assign(value)
    return output


def get_seeds(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return the seeds of a layer's dropout: its variables that are not weights."""
    weight_ids = {id(v) for v in layer.weights}
    return [v for v in layer.variables if id(v) not in weight_ids]
