"""Products of matrices, in the forms that are fast on CPUs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Tensor

_ALIASED = 512  # columns, 2 kB of float32
_APART = 16  # rows or columns
_INSTRUCTIONS = {"avx512_bf16", "amx_bf16"}


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return `a @ b` for matrices (n, k) and (k, m), as `keras.ops.matmul`.

    XLA uses a CPU's instructions for bfloat16 only if the result is float32 and neither matrix is transposed. On such
    CPUs, products in bfloat16 and their gradients are computed in that form with JAX, and rounded afterwards as XLA
    would do: a train step of BERT-base takes 0.6 of the time. They have derivatives in reverse mode only.
    """
    return _in_bfloat16()(a, b) if _uses_instructions(a, b.dtype) else ops.matmul(a, b)


def matmul_transposed(a: Tensor, b: Tensor) -> Tensor:
    """`aᵀ @ b` for matrices (k, n) and (k, m), as `matmul`."""
    if _uses_instructions(a, b.dtype):
        return _in_bfloat16()(_transposed(a, rows=_APART), b)[: a.shape[1]]
    return ops.matmul(ops.transpose(a), b)


def apply_dense(layer: keras.layers.Dense, x: Tensor) -> Tensor:
    """`layer(x)` for a matrix `x` (n, k), by `matmul` or, if the layer has a bias, with its `longer_kernel`."""
    if (longer := getattr(layer, "longer_kernel", None)) is not None:
        # The slice comes last: TensorFlow computes a product and a bias as one operation.
        x = ops.add(ops.matmul(x, longer), ops.pad(layer.bias, ((0, _APART),)))
        return layer.activation(x[:, : layer.units])
    if not is_plain(layer) or not _uses_instructions(x, layer.compute_dtype):
        return layer(x)
    x = matmul(x, ops.cast(layer.kernel, x.dtype))
    return layer.activation(x if layer.bias is None else x + ops.cast(layer.bias, x.dtype))


def is_aliased(kernel: Tensor) -> bool:
    """Return whether the rows of a kernel are a multiple of 2 kB long (in float32).

    To multiply few rows, CPUs read down the columns of a kernel. In such a kernel, the entries of a column share a few
    places in the cache.
    """
    return kernel.shape[1] % _ALIASED == 0


def with_longer_rows(kernel: Tensor) -> Tensor:
    """Return a copy of a kernel with some columns of zeros, to be used many times in place of one that `is_aliased`."""
    return ops.pad(kernel, ((0, 0), (0, _APART)))


def is_plain(layer: keras.layers.Dense) -> bool:
    """Return whether the output of a layer is that of its kernel and bias alone."""
    return not layer.lora_enabled and layer.quantization_mode is None


def product_with(kernel: Tensor, uses: int | None = None) -> Callable[[Tensor], Tensor]:
    """`x @ kernel` as a function of `x` (n, rows of the kernel), for a loop that calls it in every step.

    With longer rows, where they help, a product with 32 rows takes as little as 0.4 of the time. `uses` is the number
    of calls, if it is known: for a single one a copy is not worth it.
    """
    if uses == 1 or not is_aliased(kernel):
        return lambda x: matmul(x, kernel)
    longer = with_longer_rows(kernel)
    return lambda x: matmul(x, longer)[:, : kernel.shape[1]]


def _uses_instructions(a: Tensor, dtype: Any) -> bool:
    """Whether the product of `a` and a matrix of `dtype` is one for `_in_bfloat16`. Single rows are faster without."""
    if keras.backend.backend() != "jax" or a.shape[0] == 1 or not (str(a.dtype) == str(dtype) == "bfloat16"):
        return False
    import jax

    return jax.default_backend() == "cpu" and keras.distribution.distribution() is None and _has_instructions()


@functools.cache
def _has_instructions() -> bool:
    """Return whether the processor is known to have instructions for bfloat16."""
    try:
        return bool(_INSTRUCTIONS & set(Path("/proc/cpuinfo").read_text("utf-8").split()))
    except OSError:  # not Linux
        return False


def _transposed(x: Tensor, rows: int = 0, columns: int = 0) -> Tensor:
    """Return `x` transposed, with zeros below or to the right: without them XLA would make it part of the product."""
    import jax.numpy as jnp

    return jnp.pad(jnp.transpose(x), ((0, rows), (0, columns)))


@functools.cache
def _in_bfloat16() -> Callable[[Tensor, Tensor], Tensor]:
    """Return the product of two bfloat16 matrices as a function, in the form that XLA has kernels for (YNNPACK's)."""
    import jax
    import jax.numpy as jnp

    def product(a: Tensor, b: Tensor) -> Tensor:
        return jnp.matmul(a, b, preferred_element_type=jnp.float32).astype(a.dtype)

    def forward(a: Tensor, b: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return product(a, b), (a, b)

    def backward(operands: tuple[Tensor, Tensor], upstream: Tensor) -> tuple[Tensor, Tensor]:
        a, b = operands
        da = product(upstream, _transposed(b, columns=_APART))[:, : b.shape[0]]
        return da, product(_transposed(a, rows=_APART), upstream)[: a.shape[1]]

    with_gradient = jax.custom_vjp(product)
    with_gradient.defvjp(forward, backward)
    return with_gradient
