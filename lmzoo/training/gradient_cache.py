"""Gradient caching: large batches in the memory of small ones (Gao et al., 2021, https://arxiv.org/abs/2101.06983)."""

from __future__ import annotations

from collections.abc import Callable

import keras
from keras import ops

from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.layers.remat import get_seeds, recompute_in_backward
from lmzoo.layers.scan import scan


class _Uncast(keras.layers.Layer):
    """Layer in which variables have their own dtypes, although the layer around it casts them to its compute dtype.

    Args:
        function: function without arguments that reads variables.

    Call argument: a tensor, which is ignored. Returns the result of `function`.
    """

    def __init__(self, function: Callable[[], list[Tensor]]) -> None:
        super().__init__(autocast=False, name="uncast")
        self.function = function

    def call(self, inputs: Tensor) -> list[Tensor]:
        """Return the result of the function."""
        return self.function()


def compute_in_mini_batches(
    layer: keras.layers.Layer, function: Callable[[Features], Tensor], inputs: Features, size: int
) -> Tensor:
    """Return `function(inputs)`, computed in mini-batches whose activations are recomputed in the backward pass.

    A batch of at most `size` rows is computed at once. The results of all mini-batches may enter one loss. Only these
    results are stored, along with the activations of one mini-batch at a time, and the gradients are the same as for
    the whole batch: gradients of mini-batches are added in the dtype of the weights, also in mixed precision. Both
    computations of a mini-batch use the same dropout masks.

    Args:
        layer: layer whose weights and seeds `function` uses.
        function: the layer's computation in training, from inputs to one float tensor (B, ...). It computes each row
            independently, and changes only seeds.
        inputs: tensors (B, ...) by name, for a batch of B rows.
        size: int, maximum number of rows of a mini-batch. All mini-batches have the same number of rows: the last
            mini-batch is filled up with repeated rows, and the results of these rows are dropped.
    """
    batch_size = ops.shape(next(iter(inputs.values())))[0]
    if isinstance(batch_size, int) and batch_size <= size:
        return function(inputs)
    num_mini_batches = (batch_size + size - 1) // size
    rows_per_mini_batch = (batch_size + num_mini_batches - 1) // num_mini_batches
    row_indices = ops.arange(num_mini_batches * rows_per_mini_batch) % batch_size
    mini_batches = {
        name: ops.reshape(
            ops.take(values, row_indices, axis=0), (num_mini_batches, rows_per_mini_batch, *ops.shape(values)[1:])
        )
        for name, values in inputs.items()
    }
    seeds = get_seeds(layer)
    seed_ids = {id(v) for v in seeds}
    fixed_variables = [v for v in layer.variables if id(v) not in seed_ids]
    # If the loop read values of half precision, it would also add their gradients in half precision.
    values = _Uncast(lambda: [ops.copy(v.value) for v in fixed_variables])(row_indices)
    fixed_values = [*zip(fixed_variables, values, strict=True)]

    # A loop needs stateless calls, so the dropout seeds are the carry.
    def step(seed_values: list[Tensor], mini_batch: Features) -> tuple[list[Tensor], Tensor]:
        with keras.StatelessScope(state_mapping=[*fixed_values, *zip(seeds, seed_values, strict=True)]) as scope:
            result = recompute_in_backward(layer, lambda: function(mini_batch))
        return [scope.get_current_value(v) for v in seeds], result

    new_seed_values, results = scan(
        step, [ops.copy(v.value) for v in seeds], mini_batches
    )  # (num_mini_batches, rows_per_mini_batch, ...)
    for seed, value in zip(seeds, new_seed_values, strict=True):
        seed.assign(value)
    return ops.reshape(results, (-1, *results.shape[2:]))[:batch_size]
