"""Matrix products in forms that are fast on CPUs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Tensor

_ALIASED_COLUMNS = 512  # 2 kB of float32
_PADDING = 16  # rows or columns of zeros
_BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16"}  # in /proc/cpuinfo


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return `a @ b` for matrices (n, k) and (k, m), on JAX with a CPU's bfloat16 instructions if possible.

    XLA uses a CPU's bfloat16 instructions only if the result is float32 and neither matrix is transposed. On CPUs with
    these instructions, JAX computes bfloat16 products and their gradients in that form and rounds the results as XLA
    would: a training step of BERT-base takes 0.6 of the time. Such products have derivatives in reverse mode only.
    """
    return _make_bfloat16_product()(a, b) if _is_faster_in_bfloat16(a, b.dtype) else ops.matmul(a, b)


def matmul_transposed(a: Tensor, b: Tensor) -> Tensor:
    """Return `aᵀ @ b` for matrices (k, n) and (k, m), on JAX with a CPU's bfloat16 instructions if possible."""
    if _is_faster_in_bfloat16(a, b.dtype):
        return _make_bfloat16_product()(_transpose_with_zeros(a, rows=_PADDING), b)[: a.shape[1]]
    return ops.matmul(ops.transpose(a), b)


def apply_dense(layer: keras.layers.Dense, x: Tensor) -> Tensor:
    """Return `layer(x)` for a matrix `x` (n, k), with the product in a form that is fast on CPUs."""
    if (longer_kernel := getattr(layer, "longer_kernel", None)) is not None:
        # The slice comes last, since TensorFlow fuses a product with the addition of a bias.
        x = ops.add(ops.matmul(x, longer_kernel), ops.pad(layer.bias, ((0, _PADDING),)))
        return layer.activation(x[:, : layer.units])
    if not is_plain(layer) or not _is_faster_in_bfloat16(x, layer.compute_dtype):
        return layer(x)
    x = matmul(x, ops.cast(layer.kernel, x.dtype))
    return layer.activation(x if layer.bias is None else x + ops.cast(layer.bias, x.dtype))


def is_aliased(kernel: Tensor) -> bool:
    """Return whether a kernel's rows are a multiple of 2 kB long in float32.

    To multiply few rows, CPUs read a kernel column by column. In such a kernel, the entries of a column compete for a
    few cache lines.
    """
    return kernel.shape[1] % _ALIASED_COLUMNS == 0


def lengthen_rows(kernel: Tensor) -> Tensor:
    """Return a copy of an aliased kernel with extra columns of zeros, which speeds up repeated products."""
    return ops.pad(kernel, ((0, 0), (0, _PADDING)))


def is_plain(layer: keras.layers.Dense) -> bool:
    """Return whether a layer's output depends only on its kernel and bias: it has no LoRA and is not quantized."""
    return not layer.lora_enabled and layer.quantization_mode is None


def make_product(kernel: Tensor, uses: int | None = None) -> Callable[[Tensor], Tensor]:
    """Return a function that computes `x @ kernel` for `x` (n, k), for loops that call it in every step.

    If the kernel is aliased, the function uses a copy with longer rows: a product of 32 rows takes as little as 0.4 of
    the time.

    Args:
        kernel: float (k, m), the right factor of the product.
        uses: int, number of calls, or None if unknown. For a single call, the kernel is not copied.
    """
    if uses == 1 or not is_aliased(kernel):
        return lambda x: matmul(x, kernel)
    longer_kernel = lengthen_rows(kernel)
    return lambda x: matmul(x, longer_kernel)[:, : kernel.shape[1]]


def _is_faster_in_bfloat16(a: Tensor, dtype: Any) -> bool:
    """Return whether `_make_bfloat16_product` is faster for `a` and a matrix of `dtype`; False if `a` has one row."""
    if keras.backend.backend() != "jax" or a.shape[0] == 1 or not (str(a.dtype) == str(dtype) == "bfloat16"):
        return False
    import jax

    return jax.default_backend() == "cpu" and keras.distribution.distribution() is None and _has_bfloat16_instructions()


@functools.cache
def _has_bfloat16_instructions() -> bool:
    """Return whether the processor has bfloat16 instructions; False if unknown."""
    try:
        return bool(_BFLOAT16_FLAGS & set(Path("/proc/cpuinfo").read_text("utf-8").split()))
    except OSError:  # not Linux
        return False


def _transpose_with_zeros(x: Tensor, rows: int = 0, columns: int = 0) -> Tensor:
    """Return the transpose of a matrix with additional rows and columns of zeros.

    The zeros keep XLA from fusing the transpose into a product.
    """
    import jax.numpy as jnp

    return jnp.pad(jnp.transpose(x), ((0, rows), (0, columns)))


@functools.cache
def _make_bfloat16_product() -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function that multiplies bfloat16 matrices in the form for which XLA uses YNNPACK's kernels."""
    import jax
    import jax.numpy as jnp

    def product(a: Tensor, b: Tensor) -> Tensor:
        return jnp.matmul(a, b, preferred_element_type=jnp.float32).astype(a.dtype)

    def forward(a: Tensor, b: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return product(a, b), (a, b)

    def backward(operands: tuple[Tensor, Tensor], upstream: Tensor) -> tuple[Tensor, Tensor]:
        a, b = operands
        da = product(upstream, _transpose_with_zeros(b, columns=_PADDING))[:, : b.shape[0]]
        return da, product(_transpose_with_zeros(a, rows=_PADDING), upstream)[: a.shape[1]]

    product_with_gradient = jax.custom_vjp(product)
    product_with_gradient.defvjp(forward, backward)
    return product_with_gradient
