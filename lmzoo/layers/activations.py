"""Activation functions by name."""

from __future__ import annotations

import math
from collections.abc import Callable

import keras

from lmzoo.common.tensor_types import Tensor


@keras.saving.register_keras_serializable(package="lmzoo", name="gelu")
def _gelu_erf(x: Tensor) -> Tensor:
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.custom_gradient(_gelu_and_gradient)(tf.convert_to_tensor(x))
    return keras.ops.gelu(x, approximate=False)


def _gelu_and_gradient(x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return GELU of `x` in TensorFlow ops, and a gradient function that reads memory less often than autodiff."""
    import tensorflow as tf

    twice_cdf = tf.math.erf(x * 0.5**0.5) + 1.0  # of the standard normal distribution

    def gradient(upstream: Tensor) -> Tensor:
        density = tf.exp(-0.5 * tf.square(x)) * (2 * math.pi) ** -0.5
        return upstream * (0.5 * twice_cdf + x * density)

    return x * 0.5 * twice_cdf, gradient  # the form that LiteRT's converter recognizes


@keras.saving.register_keras_serializable(package="lmzoo", name="gelu_tanh")
def _gelu_tanh(x: Tensor) -> Tensor:
    return keras.ops.gelu(x, approximate=True)


# "gelu" means the exact form, as in BERT's first release and in Hugging Face configs; the tanh form has its own name.
# They differ by up to 4.7e-4, so the form of a checkpoint is never guessed.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": _gelu_erf,
    "gelu_tanh": _gelu_tanh,
    "relu": keras.ops.relu,
    "swish": keras.ops.silu,
    "tanh": keras.ops.tanh,
}


def get_activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return the activation function with this name, which maps a float tensor to a tensor of the same shape.

    Names: `"gelu"` (exact, by erf), `"gelu_tanh"` (the tanh approximation; Hendrycks & Gimpel, 2016), `"relu"`,
    `"swish"` (also called SiLU; Ramachandran et al., 2017), `"tanh"`.

    Raises:
        ValueError: If `name` is not one of these names.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"Unknown activation {name!r}; known: {', '.join(map(repr, ACTIVATIONS))}.")
    return ACTIVATIONS[name]


# Heads may also have no activation or return a probability.
_OUTPUT_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": keras.activations.linear,
    "sigmoid": keras.ops.sigmoid,
    **ACTIVATIONS,
}


def get_output_activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return the activation function with this name, for a layer on top of a backbone.

    Names: all of `get_activation`, `"sigmoid"`, and `"linear"` for no activation.

    Raises:
        ValueError: If `name` is not one of these names.
    """
    if not isinstance(name, str) or name not in _OUTPUT_ACTIVATIONS:
        raise ValueError(f"Unknown activation {name!r:.60}; known: {', '.join(map(repr, _OUTPUT_ACTIVATIONS))}.")
    return _OUTPUT_ACTIVATIONS[name]
