"""Recurrent layers that read from left to right: simple RNNs, GRUs and LSTMs.

Letters in shape comments: B sequences, T steps, D width of the inputs, H width of the state, G gates.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from lmzoo.common.arguments import require
from lmzoo.common.tensor_types import Shape, Tensor, Tensors
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.dropout import Dropout
from lmzoo.layers.initializers import Orthogonal
from lmzoo.layers.lstm import get_memory_dtype, make_lstm_recurrence
from lmzoo.layers.products import matmul
from lmzoo.layers.rows import as_rows, get_width
from lmzoo.layers.scan import scan

CELLS = {"rnn": 1, "gru": 3, "lstm": 4}  # G, the number of gates, for each cell


@keras.saving.register_keras_serializable(package="lmzoo")
class RecurrentLayer(ConfiguredLayer):
    """Recurrent layer (RNN, GRU or LSTM) that returns its state after every step.

    With inputs x and outputs h, where ⊙ multiplies elements:

    * `"rnn"` (Elman, 1990): h' = tanh(W x + U h + b).
    * `"gru"` (Cho et al., 2014), with the reset gate applied to the product, as in cuDNN and torch: with the gates
      r, u = σ(W x + U h + b), the candidate n = tanh(W x + b + r ⊙ (U h + c)), and h' = (1 - u) ⊙ n + u ⊙ h.
    * `"lstm"` (Hochreiter & Schmidhuber, 1997; Gers et al., 2000): with i, f, o = σ(W x + U h + b) and
      j = tanh(W x + U h + b), the memory is m' = f ⊙ m + i ⊙ j, and h' = o ⊙ tanh(m'). The bias of f starts at 1.

    Args:
        cell: `"rnn"`, `"gru"` or `"lstm"`.
        hidden_dim: int, width H of the state.
        weight_dropout: float in [0, 1), fraction of the elements of the recurrent kernel U that training drops. The
            dropped elements are the same in all steps and sequences of a call (DropConnect; Merity et al., 2018).

    Call arguments: `inputs` float (B, T, D); `state`, the initial state, a tuple of float (B, H), or None for zeros.
    Returns the state after every step, a tuple of float (B, T, H): the outputs, preceded in an LSTM by the memories,
    through which no gradient flows.

    Raises:
        ValueError: If `cell` is unknown, or `weight_dropout` is out of range.

    Example:

    ```python
    import numpy as np
    from lmzoo.layers import RecurrentLayer

    layer, x = RecurrentLayer("gru", hidden_dim=5), np.ones((2, 7, 3), "float32")
    (outputs,) = layer(x)  # (2, 7, 5)
    (rest,) = layer(x[:, 4:], (outputs[:, 3],))  # equal to outputs[:, 4:]
    ```
    """

    def __init__(self, cell: str, hidden_dim: int, weight_dropout: float = 0.0, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)  # autocasting would round the memory
        require(cell in CELLS, "cell", " or ".join(map(repr, CELLS)), cell)
        self.cell = cell
        self.hidden_dim = hidden_dim
        self.weight_dropout = Dropout(weight_dropout, dtype=self.dtype_policy, name="weight_dropout")
        self.tensor_lists = True  # see `scan`

    def build(self, inputs_shape: Shape, state_shape: Tensors = None) -> None:
        """Create the weights.

        The columns of kernels are for the gates r, u and n of a GRU, or i, j, f and o of an LSTM.
        """
        width = self.hidden_dim
        num_columns = CELLS[self.cell] * width
        self.kernel = self.add_weight((get_width(inputs_shape), num_columns), "glorot_uniform", name="kernel")
        self.recurrent_kernel = self.add_weight((width, num_columns), Orthogonal(), name="recurrent_kernel")
        self.bias = self.add_weight((num_columns,), _make_lstm_bias if self.cell == "lstm" else "zeros", name="bias")
        if self.cell == "gru":
            self.candidate_bias = self.add_weight((width,), "zeros", name="candidate_bias")

    def state_spec(self, *shape: int | None) -> tuple[keras.KerasTensor, ...]:
        """Return the specs of states with leading axes `shape`: (B,) for one step, (B, T) for all steps."""
        dtypes = [get_memory_dtype(self.compute_dtype)] * (self.cell == "lstm") + [self.compute_dtype]
        return tuple(keras.KerasTensor((*shape, self.hidden_dim), dtype) for dtype in dtypes)

    def call(self, inputs: Tensor, state: Tensors = None, training: bool = False) -> Tensors:
        """Return the state after every step of `inputs`."""
        batch, num_steps = ops.shape(inputs)[:2]
        specs = self.state_spec(None)
        if state is None:
            state = tuple(ops.zeros((batch, self.hidden_dim), spec.dtype) for spec in specs)
        state = tuple(ops.cast(x, spec.dtype) for x, spec in zip(state, specs, strict=True))
        x = ops.transpose(ops.cast(inputs, self.compute_dtype), (1, 0, 2))  # (T, B, D)
        kernel, recurrent_kernel, bias = (
            ops.cast(weight, self.compute_dtype) for weight in (self.kernel, self.recurrent_kernel, self.bias)
        )
        recurrent_kernel = self.weight_dropout(recurrent_kernel, training=training)
        # The inputs' part of the gates does not depend on previous steps: one product for all steps is faster.
        z = matmul(as_rows(x), kernel) + bias  # (T * B, G * H)
        z = ops.reshape(z, (num_steps, batch, bias.shape[0]))  # (T, B, G * H)
        states: Tensors
        if self.cell == "lstm":
            outputs, memories = make_lstm_recurrence(1, tensor_lists=self.tensor_lists)(z, recurrent_kernel, *state)
            states = memories, outputs
        elif self.cell == "gru":
            candidate_bias = ops.cast(self.candidate_bias, self.compute_dtype)
            states = (_run_gru(z, recurrent_kernel, candidate_bias, *state, tensor_lists=self.tensor_lists),)
        else:
            states = (_run_rnn(z, recurrent_kernel, *state, tensor_lists=self.tensor_lists),)
        return tuple(ops.transpose(x, (1, 0, 2)) for x in states)

    def compute_output_spec(
        self, inputs: Tensor, state: Tensors = None, training: bool = False
    ) -> tuple[keras.KerasTensor, ...]:
        """Return the specs of the state after every step."""
        return self.state_spec(*inputs.shape[:2])


def _run_rnn(z: Tensor, kernel: Tensor, initial_output: Tensor, *, tensor_lists: bool) -> Tensor:
    """Return a simple RNN's outputs (T, B, H), given `z` (T, B, H), the inputs multiplied by W plus the bias."""

    def step(h: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        h = ops.tanh(z + ops.matmul(h, kernel))  # (B, H)
        return h, h

    return scan(step, initial_output, z, tensor_lists=tensor_lists)[1]


def _run_gru(
    z: Tensor, kernel: Tensor, candidate_bias: Tensor, initial_output: Tensor, *, tensor_lists: bool
) -> Tensor:
    """Return the outputs of a GRU, (T, B, H).

    Args:
        z: float (T, B, G * H), the inputs' part of the gates.
        kernel: float (H, G * H), the recurrent kernel.
        candidate_bias: float (H,), bias of the candidate's recurrent part.
        initial_output: float (B, H), the output before the first step.
        tensor_lists: bool; see `scan`.
    """

    def step(h: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        (r, u, n), (h_r, h_u, h_n) = (ops.split(x, 3, axis=1) for x in (z, ops.matmul(h, kernel)))  # (B, H)
        r, u = ops.sigmoid(r + h_r), ops.sigmoid(u + h_u)
        n = ops.tanh(n + r * (h_n + candidate_bias))
        h = (1 - u) * n + u * h
        return h, h

    return scan(step, initial_output, z, tensor_lists=tensor_lists)[1]


def _make_lstm_bias(shape: tuple[int], dtype: str | None = None) -> Tensor:
    """Return the initial bias of an LSTM: zeros, and ones for the forget gate (Jozefowicz et al., 2015)."""
    zeros, ones = (make((shape[0] // 4,), dtype) for make in (ops.zeros, ops.ones))
    return ops.concatenate([zeros, zeros, ones, zeros])
