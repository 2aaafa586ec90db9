"""XLNet (Yang et al., 2019, https://arxiv.org/abs/1906.08237)."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeAlias

import keras
from keras import ops

from lmzoo.common.arguments import is_integer, require
from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.families.backbone import Backbone
from lmzoo.families.embeddings import PLAIN, build_embeddings
from lmzoo.families.encoder_config import EncoderConfig
from lmzoo.families.input_checks import check_structure
from lmzoo.families.transformer import TransformerBackbone, make_inputs
from lmzoo.layers import Dropout, GatherPositions, RelativeBlock, RelativeEncoding
from lmzoo.layers.rows import gather_positions

# The mask of positions in the memory that hold a token, bool (B, P), and each block's inputs there, float (B, P, H).
Memory: TypeAlias = tuple[Tensor, tuple[Tensor, ...]]


@dataclass(frozen=True, kw_only=True)
class XlnetConfig(EncoderConfig):
    """Configuration of `XlnetBackbone`: an `EncoderConfig` with at least two segments and an even `hidden_dim`.

    Example: see `XlnetBackbone`.
    """

    num_segments: int = 3

    without_axis = ("max_sequence_length",)  # see `lmzoo.checkpoints.engine.check_axes`

    def __post_init__(self) -> None:
        """Check all fields.

        Raises:
            ValueError: If a value is invalid; the message gives the field, its value and the allowed values.
        """
        super().__post_init__()
        require(self.num_segments > 1, "num_segments", "at least 2", self.num_segments)
        require(self.hidden_dim % 2 == 0, "hidden_dim", "even, for sines and cosines", self.hidden_dim)


@keras.saving.register_keras_serializable(package="lmzoo")
class XlnetBackbone(TransformerBackbone):
    """XLNet: a Transformer with relative positions and segments, two attention streams, and a memory.

    A call computes the content stream, in which each token sees all tokens; fine-tuning uses only this stream. In
    pre-training, a second stream predicts tokens in a random order; see `query_stream` and `lmzoo.models.Pretrainer`.
    With `call_with_state`, a text continues an earlier text, as in Transformer-XL.

    The inputs are a dict of int32 arrays (B, T) for B texts of T tokens: `token_ids`, `padding_mask` (1 at real tokens,
    which are on the left), and `segment_ids`, which are only compared for equality.

    The outputs are a dict: `sequence_output`, the last hidden states after dropout (B, T, H); `pooled_output`, the
    `sequence_output` at `<cls>`, the last real token (B, H); and `hidden_states`, a tuple of num_layers + 1 tensors
    (B, T, H), starting with the embeddings.

    Args:
        vocabulary_size: number of token ids.
        num_layers: number of blocks.
        num_heads: number of attention heads of each block; must divide `hidden_dim`.
        hidden_dim: width of the hidden states, H; must be even.
        intermediate_dim: width of the feed-forward networks' hidden layer.
        dropout: rate in [0, 1) for embeddings, encodings of distances, residual branches, hidden layers of the
            feed-forward networks, attention probabilities and the last hidden state.
        max_sequence_length: longest sequence that tasks create, in tokens. The layers accept any length.
        num_segments: number of segment ids, by default 3: the two texts of a pair, and `<cls>`.
        activation: name of the feed-forward activation; see `lmzoo.layers.get_activation`.
        layer_norm_epsilon: number in (0, 1) that is added to the variance in every LayerNorm.
        initializer_range: standard deviation of the truncated normal initializer.
        dtype: dtype policy of all layers: a name, a `keras.DTypePolicy`, or None for Keras' global policy.
        name: name of the model.
        trainable: whether the weights are trained.
        remat: whether training recomputes the blocks in the backward pass to save memory; see `Backbone`.
        fine_tuning: recommended settings for fine-tuning, by kind of head; see `Backbone`.

    Raises:
        ValueError: If an argument is out of range, or an eager call gets an id out of range. The message names the
            argument or input.

    Example:

    ```python
    import numpy as np
    import lmzoo

    backbone = lmzoo.models.XlnetBackbone(
        vocabulary_size=101, num_layers=2, num_heads=3, hidden_dim=12, intermediate_dim=24
    )
    ids = np.array([[17, 23, 4, 3, 5]], "int32")
    inputs = {"token_ids": ids, "padding_mask": ids != 5, "segment_ids": np.array([[0, 0, 0, 2, 0]])}
    backbone(inputs)["pooled_output"].shape  # (1, 12)
    ```
    """

    config_class = XlnetConfig
    has_pooler = False

    compute_vectors_at = Backbone.compute_vectors_at

    @classmethod
    def assemble(cls, config: Any, dtype: keras.DTypePolicy) -> tuple[dict[str, Any], Features, Features]:
        """Build the graph, and return its layers by attribute name, its symbolic inputs and its symbolic outputs."""
        # === Layers ===
        layers: dict[str, Any] = {
            "embeddings": build_embeddings(config, dtype, max_sequence_length=None, **PLAIN),
            "encoding": RelativeEncoding(config.dropout, dtype=dtype, name="encoding"),
            "blocks": [cls.make_block(config, dtype, f"block_{i}") for i in range(config.num_layers)],
            "output_dropout": Dropout(config.dropout, dtype=dtype, name="output_dropout"),
            "last_token": GatherPositions(dtype=dtype, name="last_token"),
        }

        # === Functional Model ===
        inputs = make_inputs(config)
        layer_namespace = SimpleNamespace(**layers)
        return layers, inputs, _make_outputs(layer_namespace, inputs, _run_streams(layer_namespace, inputs)[0])

    @classmethod
    def make_block(cls, config: EncoderConfig, dtype: keras.DTypePolicy, name: str, **options: Any) -> RelativeBlock:
        """Return a Transformer block with relative attention."""
        return RelativeBlock(*config.block_arguments, dtype=dtype, name=name, **options)

    def attention_scores(self, inputs: Features) -> list[Tensor]:
        """Return the attention probabilities of every block without dropout; see `TransformerBackbone`."""
        hidden_states = self(inputs)["hidden_states"]
        mask, segments_differ = _make_masks(inputs)
        encodings = self.encoding(hidden_states[0])
        return [
            block.attention_scores(block_input, encodings, mask, segments_differ)
            for block, block_input in zip(self.blocks, hidden_states, strict=False)
        ]

    def query_stream(
        self,
        inputs: Features,
        order: Tensor,
        queries: Tensor,
        positions: Tensor,
        state: Memory | None = None,
        training: bool | None = None,
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the hidden states of both streams, to predict tokens in `order` (Yang et al., 2019, section 2.3).

        In the content stream, a token sees itself and tokens of lower or equal `order`. In the query stream, it sees
        only tokens of lower `order`, so not itself.

        Args:
            inputs: the backbone's inputs.
            order: int (B, T), factorization order; see `lmzoo.text.permutation`.
            queries: float (B, M, H), initial query vectors: copies of a learned vector.
            positions: int (B, M), positions of the M tokens to predict in each sequence.
            state: state returned by an earlier call of `call_with_state`, or None.
            training: whether to apply dropout.

        Returns:
            The hidden states of the content stream, a tuple of num_layers + 1 tensors (B, T, H), and of the query
            stream, a tuple of num_layers + 1 tensors (B, M, H). In training, the last hidden state of the query stream
            has dropout.
        """
        return _run_streams(self, inputs, order, queries, positions, state, training)

    def state_spec(self, batch: int | None = None, length: int | None = None) -> Memory:
        """Return the shapes and dtypes of a state that remembers `length` tokens of each of `batch` sequences."""
        memory = keras.KerasTensor((batch, length, self.config.hidden_dim), self.compute_dtype)
        return keras.KerasTensor((batch, length), "bool"), (memory,) * self.config.num_layers

    def call_with_state(
        self,
        inputs: Features,
        state: Memory | None = None,
        training: bool = False,
        memory_length: int | None = None,
    ) -> tuple[Features, Memory]:
        """Call the model on texts that continue the texts of an earlier call (Dai et al., 2019, section 3.2).

        Every token also attends to the hidden states in `state`, which belong to the last tokens before the text.

        Args:
            inputs: the backbone's inputs.
            state: the state returned by an earlier call on the same number of sequences, or None.
            training: whether to apply dropout.
            memory_length: int, number P of tokens that the new state remembers; by default as many as `state` remembers
                or, without `state`, the length of the inputs.

        Returns:
            The outputs, a dict, and the state after each sequence's last real token: a mask of remembered positions
            that hold a token, bool (B, P), and a tuple of each block's inputs there, float (B, P, H). No gradients flow
            through a state.

        Raises:
            ValueError: If the inputs are not valid for the backbone, `state` has the wrong structure, or
                `memory_length` is not a positive integer.

        Example:

        ```python
        import numpy as np
        import lmzoo

        backbone = lmzoo.models.XlnetBackbone(
            vocabulary_size=101, num_layers=2, num_heads=3, hidden_dim=12, intermediate_dim=24
        )
        ids = np.array([[17, 23, 5, 7]], "int32")
        inputs = {"token_ids": ids, "padding_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
        outputs, state = backbone.call_with_state(inputs, memory_length=6)
        outputs, state = backbone.call_with_state(inputs, state)  # sees the four tokens, and remembers six
        ```
        """
        inputs = self.check_inputs(inputs)
        padding_mask = ops.cast(inputs["padding_mask"], "bool")  # (B, T)
        batch = padding_mask.shape[0]
        length = ops.shape(padding_mask)[1]
        if state is not None:
            check_structure("state", state, self.state_spec(batch))
        if memory_length is None:
            memory_length = length if state is None else ops.shape(state[0])[1]
        else:
            require(is_integer(memory_length, 1), "memory_length", "a positive integer", memory_length)
        hidden_states, _ = _run_streams(self, inputs, state=state, training=training)
        outputs = _make_outputs(self, inputs, hidden_states, training)
        old_mask, old_memories = state or (padding_mask[:, :0], tuple(x[:, :0] for x in hidden_states[:-1]))
        lengths = ops.sum(ops.cast(padding_mask, "int32"), axis=1, keepdims=True)  # (B, 1)
        # The memory ends with the last real tokens, whatever the padding after them.
        positions = ops.arange(memory_length) + lengths + (ops.shape(old_mask)[1] - memory_length)  # (B, P)
        is_valid = positions >= 0
        positions = ops.maximum(positions, 0)

        def update(old_states: Tensor, new_states: Tensor) -> Tensor:
            states = ops.concatenate([ops.cast(old_states, new_states.dtype), new_states], axis=1)  # (B, K, H)
            return ops.stop_gradient(gather_positions(states, positions))  # (B, P, H)

        new_mask = ops.take_along_axis(ops.concatenate([old_mask, padding_mask], axis=1), positions, axis=1)  # (B, P)
        memories = tuple(update(*pair) for pair in zip(old_memories, hidden_states[:-1], strict=True))
        return outputs, (ops.logical_and(new_mask, is_valid), memories)


def _make_outputs(
    layers: Any, inputs: Features, hidden_states: tuple[Tensor, ...], training: bool | None = None
) -> Features:
    """Compute the backbone's outputs from the hidden states of the content stream.

    `layers` is an object with the layers as attributes, such as the backbone.
    """
    sequence = layers.output_dropout(hidden_states[-1], training=training)
    lengths = ops.sum(ops.cast(inputs["padding_mask"], "int32"), axis=1, keepdims=True)  # (B, 1)
    pooled_output = layers.last_token(sequence, ops.maximum(lengths - 1, 0))[:, 0]  # (B, H)
    return {"sequence_output": sequence, "pooled_output": pooled_output, "hidden_states": hidden_states}


def _run_streams(
    layers: Any,
    inputs: Features,
    order: Tensor | None = None,
    queries: Tensor | None = None,
    positions: Tensor | None = None,
    state: Memory | None = None,
    training: bool | None = None,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the hidden states of both streams, with an empty tuple for the query stream if `queries` is None.

    `layers` is an object with the layers as attributes, such as the backbone. The other arguments are the same as for
    `XlnetBackbone.query_stream`.
    """
    content_states = [layers.embeddings(inputs["token_ids"], training=training)]  # (B, T, H)
    mask, segments_differ = _make_masks(inputs, order, state=state)
    query_args: dict[str, Tensor | None] = {}
    if queries is not None:
        queries = layers.embeddings.dropout(queries, training=training)  # (B, M, H)
        query_args["query_mask"], query_args["query_apart"] = _make_masks(inputs, order, positions, state)
        query_args["positions"] = positions
    memories: tuple[Tensor | None, ...] = (None,) * len(layers.blocks) if state is None else state[1]
    encodings = layers.encoding(content_states[0], memories[0], training=training)  # (R, H)
    query_state: Any = queries
    query_states: list[Any] = [queries]
    for block, memory in zip(layers.blocks, memories, strict=True):
        block_args = {"queries": query_state, "memory": memory, "training": training, **query_args}
        outputs = block(content_states[-1], encodings, mask, segments_differ, **block_args)
        content_state, query_state = (outputs, None) if queries is None else outputs
        content_states.append(content_state)
        query_states.append(query_state)
    if queries is None:
        return tuple(content_states), ()
    query_states[-1] = layers.output_dropout(query_states[-1], training=training)
    return tuple(content_states), tuple(query_states)


def _make_masks(
    inputs: Features, order: Tensor | None = None, positions: Tensor | None = None, state: Memory | None = None
) -> tuple[Tensor, Tensor]:
    """Return the attention mask, and whether the segments of a query and a key differ.

    Without `positions`, there is a query for the content of each position. It sees keys of lower or equal `order`, or
    all keys if `order` is None. Otherwise the queries predict the tokens at `positions`, and see only keys of lower
    `order`. All queries see the memory.

    Returns:
        For S queries and K keys (memory included): the mask, True if the query sees the key, bool (B, S, K) or
        (B, 1, K); and whether the segments differ, bool (B, S, K).
    """
    segments = inputs["segment_ids"]  # (B, T)
    query_segments = segments  # (B, S)
    mask = ops.cast(inputs["padding_mask"], "bool")[:, None]  # (B, 1, T)
    if order is not None and positions is not None:
        query_segments = ops.take_along_axis(segments, positions, axis=1)  # (B, M)
        mask = ops.logical_and(mask, order[:, None] < ops.take_along_axis(order, positions, axis=1)[..., None])
    elif order is not None:
        mask = ops.logical_and(mask, order[:, None] <= order[..., None])  # (B, T, T)
    if state is not None:  # tokens in the memory belong to the first segment
        memory_mask = state[0]  # (B, P)
        segments = ops.concatenate([ops.zeros_like(ops.cast(memory_mask, segments.dtype)), segments], axis=1)
        memory_mask = ops.logical_and(memory_mask[:, None], ops.ones_like(mask[..., :1]))  # (B, S or 1, P)
        mask = ops.concatenate([memory_mask, mask], axis=2)
    return mask, ops.not_equal(ops.expand_dims(query_segments, -1), ops.expand_dims(segments, 1))
