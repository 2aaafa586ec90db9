"""Matrix products in forms that are fast on CPUs: their values, and the form for which XLA has kernels."""

from __future__ import annotations

import re
from typing import Any

import keras
import numpy as np
import pytest

from lmzoo.layers import TransformerBlock, products
from lmzoo.layers.products import apply_dense, make_product, matmul, matmul_transposed

jax_only = pytest.mark.skipif(keras.backend.backend() != "jax", reason="a form for XLA")


@pytest.fixture
def bfloat16_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let any processor count as one with instructions for bfloat16."""
    monkeypatch.setattr(products, "_has_bfloat16_instructions", lambda: True)


def in_bfloat16(*shape: int) -> Any:
    values = np.random.default_rng(sum(shape)).normal(size=shape).astype("float32")
    return keras.ops.cast(keras.ops.convert_to_tensor(values), "bfloat16")


def as_array(x: Any) -> np.ndarray:
    return keras.ops.convert_to_numpy(keras.ops.cast(x, "float32"))


@pytest.mark.parametrize("columns", [511, 512])
@pytest.mark.parametrize("uses", [None, 1])
def test_products_in_a_loop_equal_numpy(columns, uses):
    rng = np.random.default_rng(0)
    x, kernel = (rng.normal(size=shape).astype("float32") for shape in ((5, 7), (7, columns)))
    product = make_product(keras.ops.convert_to_tensor(kernel), uses)(keras.ops.convert_to_tensor(x))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(product), x @ kernel, rtol=1e-5, atol=1e-5)


@pytest.mark.half_precision
@pytest.mark.usefixtures("bfloat16_processor")
@pytest.mark.parametrize("rows", [1, 5])
def test_products_of_small_integers_are_exact(rows):
    # Sums of small integers are exact, in whatever order a processor adds them.
    rng = np.random.default_rng(rows)
    arrays = [rng.integers(-3, 4, shape).astype("float32") for shape in ((rows, 7), (7, 11), (rows, 3))]
    a, b, c = (keras.ops.cast(keras.ops.convert_to_tensor(array), "bfloat16") for array in arrays)
    for product, expected in (
        (matmul(a, b), arrays[0] @ arrays[1]),
        (matmul_transposed(a, c), arrays[0].T @ arrays[2]),
        (make_product(b)(a), arrays[0] @ arrays[1]),
    ):
        assert keras.backend.standardize_dtype(product.dtype) == "bfloat16"
        np.testing.assert_array_equal(as_array(product), expected)


@jax_only
@pytest.mark.usefixtures("bfloat16_processor")
def test_products_in_bfloat16_are_rounded_once():
    a, b, c = in_bfloat16(5, 7), in_bfloat16(7, 11), in_bfloat16(5, 3)
    for product, expected in (
        (matmul(a, b), as_array(a) @ as_array(b)),
        (matmul_transposed(a, c), as_array(a).T @ as_array(c)),
        (make_product(b)(a), as_array(a) @ as_array(b)),
    ):
        np.testing.assert_allclose(as_array(product), expected, rtol=2**-8, atol=1e-5)


@jax_only
@pytest.mark.usefixtures("bfloat16_processor")
def test_gradients_in_bfloat16_equal_numpy():
    import jax

    a, b, weights = in_bfloat16(5, 7), in_bfloat16(7, 11), in_bfloat16(5, 11)
    actual = jax.grad(lambda a, b: (matmul(a, b) * weights).sum().astype("float32"), (0, 1))(a, b)
    expected = as_array(weights) @ as_array(b).T, as_array(a).T @ as_array(weights)
    for gradient, desired in zip(actual, expected, strict=True):
        assert gradient.dtype == "bfloat16"
        np.testing.assert_allclose(as_array(gradient), desired, rtol=2**-8, atol=1e-5)


def dots(function: Any, *arguments: Any) -> list[str]:
    """Return the StableHLO of a program's and its gradient's matrix products. XLA folds transpositions into them."""
    import jax

    products = []
    for part in jax.jit(jax.value_and_grad(function)).lower(*arguments).as_text().split("func.func"):  # names are local
        transposed = set(re.findall(r"(%\S+) = stablehlo.transpose", part))
        for line in part.splitlines():
            if "dot_general" in line and "batching_dims" not in line:
                folded = transposed & set(re.findall(r"%\w+", line))
                products.append(line.replace("[1] x [0]", "folded") if folded else line)
    return products


@jax_only
@pytest.mark.usefixtures("bfloat16_processor")
def test_products_have_the_form_for_which_xla_has_kernels():
    block = TransformerBlock(num_heads=3, hidden_dim=12, intermediate_dim=20, dtype="bfloat16")
    x, mask = in_bfloat16(2, 5, 12), np.ones((2, 5), bool)
    block(x, mask)
    weights = [weight.value for weight in block.trainable_variables]

    def loss(weights: Any, x: Any) -> Any:
        return block.stateless_call(weights, [], x, mask)[0].sum().astype("float32")

    lines = dots(loss, weights, x)
    # The joined projections, the attention's output projection and two dense layers have two gradients each, except
    # that the first product's inputs need none.
    assert len(lines) == 4 * 3 - 1
    for line in lines:
        assert "contracting_dims = [1] x [0]" in line
        assert re.search(r"\(tensor<\w+xbf16>, tensor<\w+xbf16>\) -> tensor<\w+xf32>", line)


@jax_only
@pytest.mark.usefixtures("bfloat16_processor")
def test_rows_and_float32_keep_their_form():
    row, wide = in_bfloat16(1, 7), keras.ops.ones((5, 7))
    assert "xf32" not in dots(lambda x: matmul(x, in_bfloat16(7, 11)).sum(), row)[0]
    assert "[1] x [1]" in dots(lambda x: matmul(x, keras.ops.ones((7, 11))).sum(), wide)[-1]  # the kernel transposed


@pytest.mark.half_precision
@pytest.mark.usefixtures("bfloat16_processor")
def test_dense_layers_with_lora_apply_themselves():
    x, dense = in_bfloat16(5, 16), keras.layers.Dense(11, activation="tanh", dtype="mixed_bfloat16")
    dense.build((None, 16))
    np.testing.assert_allclose(as_array(apply_dense(dense, x)), as_array(dense(x)), rtol=2**-7, atol=2**-8)
    dense.enable_lora(2)
    dense.lora_kernel_b.assign(np.ones((2, 11)))
    expected = as_array(dense(x))
    np.testing.assert_array_equal(as_array(apply_dense(dense, x)), expected)


@pytest.mark.parametrize(("flags", "expected"), [("fma avx2", False), ("avx512f avx512_bf16", True), (None, False)])
def test_instructions_are_read_from_the_processors_flags(monkeypatch, flags, expected):
    def read_text(*_: Any) -> str:
        if flags is None:
            raise FileNotFoundError
        return f"processor : 0\nflags : {flags}\n"

    monkeypatch.setattr(products.Path, "read_text", read_text)
    assert products._has_bfloat16_instructions.__wrapped__() is expected


@jax_only
@pytest.mark.usefixtures("bfloat16_processor")
def test_distributed_products_keep_their_form(monkeypatch):
    monkeypatch.setattr(keras.distribution, "distribution", lambda: "some")
    assert "xf32" not in dots(lambda x: matmul(x, in_bfloat16(7, 11)).sum(), in_bfloat16(5, 7))[0]
