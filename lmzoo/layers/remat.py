"""Rematerialization: computing activations again in the backward pass instead of keeping them (Chen et al., 2016).

https://arxiv.org/abs/1604.06174
"""

from __future__ import annotations

from collections.abc import Callable

import keras
from keras import ops

from lmzoo.common.tensor_types import Tensor, Tensors


def recomputed(layer: keras.layers.Layer, function: Callable[..., Tensors], *inputs: Tensor) -> Tensors:
    """`function(*inputs)`; only the inputs are kept for the backward pass, which computes the rest again.

    The function is a part of the layer's computation that returns one float tensor and changes no variables but seeds.
    With `keras.remat` alone the second computation would draw other dropout masks on TensorFlow, and fail on JAX.
    """
    weights = layer.trainable_variables
    others, seeds = layer.non_trainable_variables, seeds_of(layer)
    # On TensorFlow `v.value` is the variable itself, and seeds change before the second computation.
    fixed = [(v, ops.copy(v.value)) for v in others]

    after: list[Tensor] = []

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        values, arguments = tensors[: len(weights)], tensors[len(weights) :]
        with keras.StatelessScope(state_mapping=[*zip(weights, values, strict=True), *fixed]) as scope:
            result = function(*arguments)
        after[:] = [scope.get_current_value(v) for v in seeds]
        # On JAX only results may leave this function; on TensorFlow results without a gradient break loops.
        return (result,) if keras.backend.backend() == "tensorflow" else (result, *after)

    result, *returned = keras.remat(run)(*(ops.copy(v.value) for v in weights), *inputs)
    for variable, value in zip(seeds, returned or after, strict=True):
        variable.assign(value)
    return result


def seeds_of(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return the variables of a layer that are not weights: the seeds of its dropout."""
    weights = {id(v) for v in layer.weights}
    return [v for v in layer.variables if id(v) not in weights]
