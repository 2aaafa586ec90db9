"""Bidirectional LSTMs with an optional projection, whose two directions run in one loop.

Letters in shape comments: T steps, B sequences, P width of inputs and outputs, D width of the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from lmzoo.common.tensor_types import Shape, Tensor, Tensors
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.products import make_product, matmul, matmul_transposed
from lmzoo.layers.rows import as_rows
from lmzoo.layers.scan import scan

DIRECTIONS = ("forward", "backward")


@keras.saving.register_keras_serializable(package="lmzoo")
class BidirectionalLSTM(ConfiguredLayer):
    """Bidirectional LSTM with optional clipping and an optional projection of its output (Sak et al., 2014).

    https://arxiv.org/abs/1402.1128

    Args:
        memory_dim: int, width D of the memory.
        output_dim: int, width P of the inputs and outputs. If it equals D, the output is neither projected nor clipped.
        cell_clip: float, bound on the memory's absolute values, or None for no bound.
        projection_clip: float, bound on the projected output's absolute values, or None for no bound.

    Call arguments: `forward` and `backward`, float (T, B, P), the inputs of each direction in its reading order;
    `state`, for each direction its initial memory (B, D) and output (B, P). Returns two pairs of forward and backward
    tensors: the outputs, float (T, B, P), and the memories, float (T, B, D). No gradient flows through the memories.
    """

    def __init__(
        self,
        memory_dim: int,
        output_dim: int,
        cell_clip: float | None = None,
        projection_clip: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)  # autocasting would round the memory
        self.memory_dim = memory_dim
        self.output_dim = output_dim
        self.cell_clip = cell_clip
        self.projection_clip = projection_clip
        self.tensor_lists = True  # see `scan`

    def build(self, forward_shape: Shape, backward_shape: Shape | None = None, state_shape: Tensors = None) -> None:
        """Create the weights of each direction.

        The rows of a kernel are for the input and then the previous output; its columns are for the gates i, j (the
        candidate), f and o.
        """
        shapes = {"kernel": (2 * self.output_dim, 4 * self.memory_dim), "bias": (4 * self.memory_dim,)}
        if self.memory_dim != self.output_dim:
            shapes["projection"] = (self.memory_dim, self.output_dim)
        self.parts = [
            [
                self.add_weight(
                    shape=shape,
                    initializer="zeros" if name == "bias" else "glorot_uniform",
                    name=f"{direction}_{name}",
                )
                for name, shape in shapes.items()
            ]
            for direction in DIRECTIONS
        ]

    def call(self, forward: Tensor, backward: Tensor, state: Tensors) -> tuple[Tensors, Tensors]:
        """Run both directions over their inputs, and return the outputs and the memories."""
        arguments: list[Tensor] = []
        forget_bias = np.repeat([0.0, 0.0, 1.0, 0.0], self.memory_dim)  # not part of the bias in checkpoints
        for inputs, weights, (memory, output) in zip((forward, backward), self.parts, state, strict=True):
            kernel, bias, *projection = (ops.cast(weight, self.compute_dtype) for weight in weights)
            inputs, output = (ops.cast(x, self.compute_dtype) for x in (inputs, output))
            # The inputs' part of the gates does not depend on previous steps: one product for all steps is faster.
            bias = bias + ops.cast(forget_bias, bias.dtype)  # (4D,)
            # The gradient of `split` is a single copy, unlike the gradients of slices.
            input_kernel, output_kernel = ops.split(kernel, 2)
            gates = matmul(as_rows(inputs), input_kernel) + bias  # (T * B, 4D)
            gates = ops.reshape(gates, (*ops.shape(inputs)[:2], 4 * self.memory_dim))  # (T, B, 4D)
            arguments += [gates, output_kernel, memory, output, *projection]
        run = make_lstm_recurrence(len(DIRECTIONS), self.cell_clip, self.projection_clip, self.tensor_lists)
        outputs_and_memories = tuple(run(*arguments))
        return outputs_and_memories[:2], outputs_and_memories[2:]

    def compute_output_spec(self, forward: Tensor, backward: Tensor, state: Tensors) -> tuple[Tensors, Tensors]:
        """Return the specs of the outputs, in the compute dtype, and of the memories; see `get_memory_dtype`."""
        memory_shape = (*forward.shape[:2], self.memory_dim)
        outputs = tuple(keras.KerasTensor(forward.shape, self.compute_dtype) for _ in DIRECTIONS)
        return outputs, tuple(keras.KerasTensor(memory_shape, get_memory_dtype(self.compute_dtype)) for _ in DIRECTIONS)


def get_memory_dtype(compute_dtype: str) -> str:
    """Return the dtype of an LSTM's memory: float32 for 16-bit compute dtypes, since rounding errors accumulate."""
    return "float32" if compute_dtype in ("float16", "bfloat16") else compute_dtype


def make_lstm_recurrence(
    count: int, cell_clip: float | None = None, projection_clip: float | None = None, tensor_lists: bool = True
) -> Callable[..., tuple[Tensors, Tensors]]:
    """Return a function that runs `count` independent LSTMs over time in one loop.

    The arguments of that function are, for each LSTM: the inputs' part of the gates (T, B, 4D), in the order i, j, f,
    o; the recurrent kernel (P, 4D); the initial memory (B, D) and output (B, P); and optionally the projection (D, P).
    The function returns the outputs of all LSTMs, (T, B, P) each, and then their memories, (T, B, D) each.

    Except on torch, the function has a custom gradient, since autodiff would add to the large gradients of the kernels
    at every step. No gradient flows through the memories then.

    Args:
        count: int, number of LSTMs.
        cell_clip: float, bound on the memory's absolute values, or None for no bound.
        projection_clip: float, bound on the projected output's absolute values, or None for no bound.
        tensor_lists: bool; see `scan`.
    """

    def run(*arguments: Tensor) -> tuple[Tensors, Tensors]:
        num_arguments = len(arguments) // count
        arguments_by_lstm = tuple(arguments[k * num_arguments : (k + 1) * num_arguments] for k in range(count))
        num_steps = arguments[0].shape[0]
        product_functions = [
            [make_product(kernel, num_steps) for kernel in (lstm_arguments[1], *lstm_arguments[4:])]
            for lstm_arguments in arguments_by_lstm
        ]

        def step(carry: Tensors, gates: Tensors) -> tuple[Tensors, Tensors]:
            new_carry = []
            step_states = []
            for (memory, output), z, (to_gates, *projection) in zip(carry, gates, product_functions, strict=True):
                z = ops.cast(z + to_gates(output), memory.dtype)  # (B, 4D)
                i, j, f, o = ops.split(z, 4, axis=1)
                i, j, f, o = ops.sigmoid(i), ops.tanh(j), ops.sigmoid(f), ops.sigmoid(o)
                memory = _clip(f * memory + i * j, cell_clip)  # (B, D)
                output = ops.cast(o * ops.tanh(memory), output.dtype)
                if projection:
                    output = _clip(projection[0](output), projection_clip)  # (B, P)
                new_carry.append((memory, output))
                step_states.append((output, memory, (i, j, f, o)))
            return tuple(new_carry), tuple(step_states)

        initial_carry = tuple((memory, output) for _, _, memory, output, *_ in arguments_by_lstm)
        states_by_lstm = scan(
            step,
            initial_carry,
            tuple(lstm_arguments[0] for lstm_arguments in arguments_by_lstm),
            tensor_lists=tensor_lists,
        )[1]
        outputs, memories = ([states[k] for states in states_by_lstm] for k in (0, 1))

        def gradient(*upstream: Tensors, **_: object) -> tuple[Tensor, ...]:
            # TensorFlow passes the gradients as separate arguments, JAX as one tuple.
            upstream_all = upstream[0] if len(upstream) == 1 else upstream
            gradients_by_lstm = _compute_recurrence_gradient(
                arguments_by_lstm, states_by_lstm, upstream_all[:count], cell_clip, projection_clip
            )
            return tuple(gradient for gradients in gradients_by_lstm for gradient in gradients)

        return (*outputs, *memories), gradient

    if keras.backend.backend() == "torch":  # its autograd records the steps, and needs no second loop
        return lambda *arguments: run(*arguments)[0]
    return ops.custom_gradient(run)


def _compute_recurrence_gradient(
    arguments_by_lstm: Tensors,
    states_by_lstm: Tensors,
    upstream: Sequence[Tensor],
    cell_clip: float | None,
    projection_clip: float | None,
) -> list[list[Tensor]]:
    """Return the gradients of each LSTM's arguments, given the upstream gradients of the outputs.

    Args:
        arguments_by_lstm: the arguments of each LSTM; see `make_lstm_recurrence`.
        states_by_lstm: the outputs, memories and gates of each LSTM after every step.
        upstream: the upstream gradients of each LSTM's outputs.
        cell_clip: float, bound on the memory's absolute values, or None.
        projection_clip: float, bound on the projected output's absolute values, or None.
    """
    previous_states = []  # memory (T, B, D) and output (T, B, P) before each step
    for (_, _, memory, output, *_), (outputs, memories, _) in zip(arguments_by_lstm, states_by_lstm, strict=True):
        previous_states.append([ops.concatenate([a[None], b[:-1]]) for a, b in ((memory, memories), (output, outputs))])
    hidden_states = []
    xs = []
    # Factors that do not depend on later steps are computed for all steps at once, which is faster.
    for (outputs, memories, (i, j, f, o)), d_outputs, (previous_memories, _) in zip(
        states_by_lstm, upstream, previous_states, strict=True
    ):
        tanh_memories = ops.tanh(memories)
        hidden_states.append(o * tanh_memories)  # (T, B, D)
        gate_slopes = (j * i * (1 - i), i * (1 - j * j), previous_memories * f * (1 - f), tanh_memories * o * (1 - o))
        # (T, B, 4D), slopes of the memory with respect to i, j and f, and of the output with respect to o
        gate_slopes = ops.concatenate(gate_slopes, axis=2)
        xs.append((outputs, memories, f, o * (1 - tanh_memories * tanh_memories), gate_slopes, d_outputs))
    initial_carry = tuple(
        (ops.zeros_like(lstm_arguments[2]), ops.zeros_like(lstm_arguments[3])) for lstm_arguments in arguments_by_lstm
    )
    num_steps = arguments_by_lstm[0][0].shape[0]
    product_functions = [
        [make_product(ops.transpose(kernel), num_steps) for kernel in (lstm_arguments[1], *lstm_arguments[4:])]
        for lstm_arguments in arguments_by_lstm
    ]

    def step(carry: Tensors, xs: Tensors) -> tuple[Tensors, Tensors]:
        new_carry = []
        step_gradients = []
        for (d_memory, d_output), x, (from_gates, *projection) in zip(carry, xs, product_functions, strict=True):
            output, memory, f, memory_slope, gate_slopes, d_upstream = x
            d_output = d_output + d_upstream  # (B, P)
            d_hidden = d_output  # (B, D)
            if projection:
                d_output = _compute_clip_gradient(d_output, output, projection_clip)
                d_hidden = projection[0](d_output)
            d_hidden = ops.cast(d_hidden, memory.dtype)
            d_memory = _compute_clip_gradient(d_memory + d_hidden * memory_slope, memory, cell_clip)
            d_z = ops.concatenate([d_memory, d_memory, d_memory, d_hidden], axis=1) * gate_slopes  # (B, 4D)
            d_z = ops.cast(d_z, output.dtype)
            new_carry.append((d_memory * f, from_gates(d_z)))
            step_gradients.append((d_z, d_output))
        return tuple(new_carry), tuple(step_gradients)

    d_initial, d_steps = scan(step, initial_carry, tuple(xs), reverse=True)
    gradients = []
    for k, (_, _, _, _, *projection) in enumerate(arguments_by_lstm):
        d_gates, d_outputs = d_steps[k]
        gradients.append([d_gates, _sum_outer_products(previous_states[k][1], d_gates), *d_initial[k]])
        if projection:
            gradients[-1].append(_sum_outer_products(ops.cast(hidden_states[k], d_outputs.dtype), d_outputs))
    return gradients


def _clip(x: Tensor, limit: float | None) -> Tensor:
    return x if limit is None else ops.clip(x, -limit, limit)


def _compute_clip_gradient(gradient: Tensor, clipped_values: Tensor, limit: float | None) -> Tensor:
    """Return the gradient of `_clip`'s argument, given its result and the gradient of the result."""
    return gradient if limit is None else ops.where(ops.abs(clipped_values) < limit, gradient, 0)


def _sum_outer_products(a: Tensor, b: Tensor) -> Tensor:
    """Return the sum over T and B of the outer products of `a` (T, B, m) and `b` (T, B, n), a matrix (m, n)."""
    return matmul_transposed(as_rows(a), as_rows(b))
