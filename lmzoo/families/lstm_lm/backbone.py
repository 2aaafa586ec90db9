"""Recurrent language model (Mikolov et al., 2010; Zaremba et al., 2014; Merity et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from lmzoo.common.arguments import require, require_share
from lmzoo.common.tensor_types import Features, Tensor, Tensors
from lmzoo.families.input_checks import check_structure
from lmzoo.families.left_to_right import LeftToRightBackbone, LeftToRightConfig
from lmzoo.layers import Dropout, LockedDropout, RecurrentLayer
from lmzoo.layers.position_cache import check_room, read_positions, write_positions
from lmzoo.layers.recurrent import CELLS
from lmzoo.layers.rows import gather_positions


@dataclass(frozen=True, kw_only=True)
class LstmLmConfig(LeftToRightConfig):
    """Configuration of `LstmLmBackbone`.

    Example: see `LstmLmBackbone`.
    """

    num_layers: int
    cell: str = "lstm"
    word_dropout: float = 0.0
    input_dropout: float | None = None
    hidden_dropout: float | None = None
    weight_dropout: float = 0.0
    locked_dropout: bool = False

    def __post_init__(self) -> None:
        """Check all fields.

        Raises:
            ValueError: If a value is invalid; the message gives the field, its value and the allowed values.
        """
        super().__post_init__()
        require(self.cell in CELLS, "cell", " or ".join(map(repr, CELLS)), self.cell)
        for name in ("word_dropout", "input_dropout", "hidden_dropout", "weight_dropout"):
            rate = getattr(self, name)
            if rate is not None or name in ("word_dropout", "weight_dropout"):
                require_share(name, rate)

    def rate(self, name: str) -> float:
        """Return the rate in the field `name` (`input_dropout` or `hidden_dropout`), or `dropout` if it is None."""
        rate = getattr(self, name)
        return self.dropout if rate is None else rate


@keras.saving.register_keras_serializable(package="lmzoo")
class LstmLmBackbone(LeftToRightBackbone):
    """Recurrent language model with LSTM, GRU or simple RNN layers that read from left to right.

    https://arxiv.org/abs/1409.2329, https://arxiv.org/abs/1708.02182

    All layers have the width of the embeddings, so that `CausalLM` can use the token embeddings as its output weights
    (Press & Wolf, 2017; Inan et al., 2017). Dropout is applied to the input of every layer and to the output of the
    last layer, but not to the state that is carried from step to step (Zaremba et al., 2014). With `locked_dropout`,
    `word_dropout` and `weight_dropout`, the model has the regularization of AWD-LSTM (Merity et al., 2018), on which
    ULMFiT is based (Howard & Ruder, 2018).

    The inputs are a dict of int32 arrays (B, T) for B texts of T tokens: `token_ids` and `padding_mask` (1 at real
    tokens, which are on the left).

    The outputs are a dict: `sequence_output`, the last hidden states after dropout (B, T, H); `pooled_output`, the
    `sequence_output` at the last real token (B, H); and `hidden_states`, a tuple of num_layers + 1 tensors (B, T, H),
    starting with the embeddings. Values at padding are meaningless. A call starts from a state of zeros; to continue
    from an earlier call, use `call_with_state`.

    Args:
        vocabulary_size: number of token ids.
        hidden_dim: width of the embeddings and of every layer, H.
        dropout: rate in [0, 1) for the output of the last layer and, by default, the inputs of all layers.
        max_sequence_length: longest sequence that tasks create, in tokens. The layers accept any length.
        initializer_range: standard deviation of the embeddings' truncated normal initializer.
        num_layers: number of recurrent layers.
        cell: `"lstm"`, `"gru"` or `"rnn"`; see `lmzoo.layers.RecurrentLayer`.
        word_dropout: rate in [0, 1) at which rows of the table of token embeddings are dropped, so that all occurrences
            of a token in a batch are zero. AWD-LSTM uses 0.1.
        input_dropout: rate in [0, 1) for the embeddings; by default `dropout`. AWD-LSTM uses 0.4.
        hidden_dropout: rate in [0, 1) between layers; by default `dropout`. AWD-LSTM uses 0.25, and a `dropout` of 0.4.
        weight_dropout: rate in [0, 1) at which elements of the recurrent kernels are dropped (DropConnect), the same in
            all steps. AWD-LSTM uses 0.5.
        locked_dropout: whether the masks of `dropout`, `input_dropout` and `hidden_dropout` are the same in all steps
            of a sequence.
        dtype: dtype policy of all layers: a name, a `keras.DTypePolicy`, or None for Keras' global policy.
        name: name of the model.
        trainable: whether the weights are trained.
        remat: must be False, since there are no blocks to recompute in the backward pass.
        fine_tuning: recommended settings for training, by kind of head; see `Backbone`.

    Raises:
        ValueError: If an argument is out of range, or an eager call gets an id out of range. The message names the
            argument or input.

    Example:

    ```python
    import numpy as np
    import lmzoo

    backbone = lmzoo.models.LstmLmBackbone(vocabulary_size=101, num_layers=2, hidden_dim=12)
    ids = np.array([[17, 23, 5, 0]], "int32")
    backbone({"token_ids": ids, "padding_mask": ids > 0})["pooled_output"].shape  # (1, 12)
    ```
    """

    config_class = LstmLmConfig

    @classmethod
    def make_layers(cls, config: LstmLmConfig, dtype: keras.DTypePolicy) -> dict[str, Any]:
        """Return the recurrent layers and the dropout layers between them."""
        indices = range(config.num_layers)
        settings = config.cell, config.hidden_dim, config.weight_dropout
        rate = config.rate("hidden_dropout")
        return {
            "recurrent": [RecurrentLayer(*settings, dtype=dtype, name=f"recurrent_{i}") for i in indices],
            "dropouts": [cls.make_dropout(config, rate, dtype=dtype, name=f"dropout_{i}") for i in indices[:-1]],
        }

    @classmethod
    def make_dropout(cls, config: LstmLmConfig, rate: float, **arguments: Any) -> Dropout:
        return (LockedDropout if config.locked_dropout else Dropout)(rate, **arguments)

    @classmethod
    def embedding_options(cls, config: LstmLmConfig) -> dict[str, Any]:
        names = ("word_dropout", "locked_dropout")
        return {"dropout": config.rate("input_dropout"), **{name: getattr(config, name) for name in names}}

    @classmethod
    def hidden_layers(cls, config: LstmLmConfig, layers: dict[str, Any], embedded: Tensor) -> list[Tensor]:
        """Apply the recurrent layers to the embeddings, and return each layer's hidden states, float (B, T, H)."""
        return [states[-1] for states in _run_layers(layers["recurrent"], layers["dropouts"], embedded)]

    def state_spec(self, batch: int | None = None) -> Tensors:
        """Return the shapes and dtypes of the state for `batch` sequences; None for an unknown number."""
        return tuple(layer.state_spec(batch) for layer in self.recurrent)

    def call_with_state(
        self, inputs: Features, state: Tensors = None, training: bool = False
    ) -> tuple[Features, Tensors]:
        """Call the model, with recurrent layers that continue from the state of an earlier call.

        Args:
            inputs: the backbone's inputs.
            state: the state returned by an earlier call on the same number of sequences, or None for zeros.
            training: whether to apply dropout.

        Returns:
            The outputs, a dict, and the state after each sequence's last real token: for each layer, a tuple of tensors
            (B, H) with the memory and output of an LSTM, or only the output of another cell. A sequence without tokens
            keeps its state. No gradients flow through a state.

        Raises:
            ValueError: If the inputs are not valid for the backbone, or `state` has the wrong structure.

        Example:

        ```python
        import numpy as np
        import lmzoo

        backbone = lmzoo.models.LstmLmBackbone(vocabulary_size=101, num_layers=2, hidden_dim=12)
        ids = np.array([[17, 23, 5, 0]], "int32")
        inputs = {"token_ids": ids, "padding_mask": ids > 0}
        outputs, state = backbone.call_with_state(inputs)
        outputs, state = backbone.call_with_state(inputs, state)
        ```
        """
        inputs = self.check_inputs(inputs)
        token_ids = ops.convert_to_tensor(inputs["token_ids"])  # (B, T)
        if state is None:
            state_shape = ops.shape(token_ids)[0], self.config.hidden_dim
            state = keras.tree.map_structure(lambda x: ops.zeros(state_shape, x.dtype), self.state_spec())
        check_structure("state", state, self.state_spec(token_ids.shape[0]))
        embeddings = self.embeddings(token_ids, training=training)  # (B, T, H)
        layer_states = _run_layers(self.recurrent, self.dropouts, embeddings, state, training)
        lengths = ops.sum(ops.cast(inputs["padding_mask"], "int32"), axis=1, keepdims=True)  # (B, 1)
        last_positions = ops.maximum(lengths - 1, 0)  # (B, 1)

        def select_last(x: Tensor) -> Tensor:  # not a `GatherPositions` layer, which would round the memories
            return gather_positions(x, last_positions)[:, 0]  # (B, H)

        def update(new_values: Tensor, old_values: Tensor) -> Tensor:
            return ops.stop_gradient(
                ops.where(lengths > 0, select_last(new_values), ops.cast(old_values, new_values.dtype))
            )  # (B, H)

        new_state = keras.tree.map_structure(update, tuple(layer_states), keras.tree.lists_to_tuples(state))
        hidden_states = embeddings, *(states[-1] for states in layer_states)
        sequence = self.output_dropout(hidden_states[-1], training=training)
        outputs = {"sequence_output": sequence, "pooled_output": select_last(sequence), "hidden_states": hidden_states}
        return outputs, new_state

    def empty_cache(self, batch: int, length: int) -> Tensors:
        """Return an empty cache for `call_with_cache`: the states before and after each of `length` positions."""
        # One state per sequence is not enough: prompts of different lengths are read together, and each continues from
        # the state at its own end. The states of all positions take as much memory as keys and values would.
        shape = batch, length + 1, self.config.hidden_dim
        return keras.tree.map_structure(lambda x: ops.zeros(shape, x.dtype), self.state_spec())

    def call_with_cache(self, token_ids: Tensor, cache: Tensors, index: int | Tensor) -> tuple[Tensor, Tensors]:
        """Read new tokens after the tokens in the cache; see `LeftToRightBackbone.call_with_cache`."""
        room = keras.tree.flatten(cache)[0].shape[1]
        check_room(None if room is None else room - 1, token_ids.shape[1], index)
        state = keras.tree.map_structure(lambda states: read_positions(states, index, 1)[:, 0], cache)
        layer_states = _run_layers(self.recurrent, self.dropouts, self.embeddings(token_ids), state)
        cache = keras.tree.map_structure(
            lambda old, new: write_positions(old, new, index + 1), cache, tuple(layer_states)
        )
        return layer_states[-1][-1], cache


def _run_layers(
    recurrent: list[RecurrentLayer],
    dropouts: list[Dropout],
    x: Tensor,
    state: Tensors = None,
    training: bool | None = None,
) -> list[Tensors]:
    """Run the recurrent layers, and return a tuple of tensors (B, T, H) for each layer: its states after every step."""
    layer_states: list[Tensors] = []
    for k, layer in enumerate(recurrent):
        x = dropouts[k - 1](layer_states[-1][-1], training=training) if k else x
        layer_states.append(layer(x, None if state is None else state[k], training=training))
    return layer_states
