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
from lmzoo.families.input_checks import check_like
from lmzoo.families.transformer import TransformerBackbone, inputs_of
from lmzoo.layers import Dropout, GatherPositions, RelativeBlock, RelativeEncoding
from lmzoo.layers.rows import at_positions

# Which positions of the memory hold a token, bool (B, P), and what each block read there: float (B, P, H).
Memory: TypeAlias = tuple[Tensor, tuple[Tensor, ...]]


@dataclass(frozen=True, kw_only=True)
class XlnetConfig(EncoderConfig):
    """The arguments of `XlnetBackbone`: those of `EncoderConfig`, of which two mean something else.

    Example: see `XlnetBackbone`.
    """

    num_segments: int = 3

    without_axis = ("max_sequence_length",)  # see `lmzoo.checkpoints.engine.check_axes`

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        require(self.num_segments > 1, "num_segments", "at least 2", self.num_segments)
        require(self.hidden_dim % 2 == 0, "hidden_dim", "even, for sines and cosines", self.hidden_dim)


@keras.saving.register_keras_serializable(package="lmzoo")
class XlnetBackbone(TransformerBackbone):
    """XLNet: attention by relative positions and segments, in two streams, with a memory.

    A call computes the stream of contents, in which each token sees all others: it is what fine-tuning uses. In
    pre-training, tokens are predicted in a random order by a second stream: see `query_stream` and
    `lmzoo.models.Pretrainer`. With `call_with_state` a text continues an earlier one, as in Transformer-XL.

    Inputs, a dict of int32 (B, T): `token_ids`, `padding_mask` (1 at real tokens, which are on the left),
    `segment_ids`, of which only matters whether two are equal.

    Outputs, a dict: `sequence_output` (B, T, H), `pooled_output` (B, H), the vector of the last real token, `<cls>`,
    and `hidden_states`, a tuple of num_layers + 1 tensors (B, T, H), the first of them the embedding output.

    Args:
        vocabulary_size: number of token ids, V.
        num_layers: number of blocks, L.
        num_heads: attention heads of a block; divides `hidden_dim`.
        hidden_dim: width of the hidden states, H; even.
        intermediate_dim: width of the feed-forward networks' hidden layer, I.
        dropout: rate in [0, 1) for embeddings, encodings of distances, residual branches, hidden layers of the
            feed-forward networks, attention probabilities and the last hidden state.
        max_sequence_length: tokens of the longest sequence that tasks make. The layers themselves take longer ones.
        num_segments: segment ids are below it: the two texts of a pair, and `<cls>`.
        activation: name of the feed-forward activation, see `lmzoo.layers.get_activation`.
        layer_norm_epsilon: added to the variance in every LayerNorm.
        initializer_range: standard deviation of the truncated normal initializer.
        dtype: dtype policy of all layers: a name, a `keras.DTypePolicy`, or None for Keras' global one.
        name: name of the model.
        trainable: whether the weights are trained.
        remat: whether training computes the blocks again in the backward pass, to save memory: see `Backbone`.
        fine_tuning: recommended settings for fine-tuning, by kind of head: see `Backbone`.

    Raises:
        ValueError: for a value out of range, naming the argument; in a call outside of graphs, for ids out of range.

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
        """Build the graph."""
        # === Layers ===
        layers: dict[str, Any] = {
            "embeddings": build_embeddings(config, dtype, max_sequence_length=None, **PLAIN),
            "encoding": RelativeEncoding(config.dropout, dtype=dtype, name="encoding"),
            "blocks": [cls.make_block(config, dtype, f"block_{i}") for i in range(config.num_layers)],
            "output_dropout": Dropout(config.dropout, dtype=dtype, name="output_dropout"),
            "last_token": GatherPositions(dtype=dtype, name="last_token"),
        }

        # === Functional Model ===
        inputs = inputs_of(config)
        parts = SimpleNamespace(**layers)
        return layers, inputs, _outputs(parts, inputs, _streams(parts, inputs)[0])

    @classmethod
    def make_block(cls, config: EncoderConfig, dtype: keras.DTypePolicy, name: str, **options: Any) -> RelativeBlock:
        """Return a block."""
        return RelativeBlock(*config.block_arguments, dtype=dtype, name=name, **options)

    def attention_scores(self, inputs: Features) -> list[Tensor]:
        """Return the attention probabilities of every block, outside of training: see `TransformerBackbone`."""
        hidden_states = self(inputs)["hidden_states"]
        mask, apart = _views(inputs)
        encodings = self.encoding(hidden_states[0])
        return [
            block.attention_scores(hidden, encodings, mask, apart)
            for block, hidden in zip(self.blocks, hidden_states, strict=False)
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
        """Both streams, for a prediction of some tokens in a given order (Yang et al., 2019, section 2.3).

        The content at a position is seen from those whose `order` is not lower; a query does not see contents of its
        own position or of others with the same order.

        Args:
            inputs: the backbone's inputs.
            order: int (B, T), the factorization order: see `lmzoo.text.permutation`.
            queries: float (B, M, H), what the query stream begins with: a learned vector.
            positions: int (B, M), the positions whose tokens are predicted.
            state: what an earlier call of `call_with_state` returned.
            training: whether to apply dropout.

        Returns:
            The hidden states of the contents, a tuple of num_layers + 1 tensors (B, T, H), and those of the queries,
            (B, M, H). Of the last ones, in training, the query's have dropout.
        """
        return _streams(self, inputs, order, queries, positions, state, training)

    def state_spec(self, batch: int | None = None, length: int | None = None) -> Memory:
        """Return the shapes and dtypes of a state of `batch` sequences that remembers `length` tokens."""
        held = keras.KerasTensor((batch, length, self.config.hidden_dim), self.compute_dtype)
        return keras.KerasTensor((batch, length), "bool"), (held,) * self.config.num_layers

    def call_with_state(
        self,
        inputs: Features,
        state: Memory | None = None,
        training: bool = False,
        memory_length: int | None = None,
    ) -> tuple[Features, Memory]:
        """Call the model on texts that continue those of an earlier call (Dai et al., 2019, section 3.2).

        Every token also sees the last tokens that came before, as they were then.

        Args:
            inputs: the backbone's inputs.
            state: the state that the previous call returned, of as many sequences; None for none.
            training: whether to apply dropout.
            memory_length: int, how many tokens the new state remembers, by default as many as `state`, or as the inputs
                are long.

        Returns:
            The outputs, a dict, and the state after each sequence's last real token: whether each of its positions
            holds a token, bool (B, P), and for each block what it has read there, float (B, P, H). No gradients flow
            through a state.

        Raises:
            ValueError: as for a call of the backbone, for a state of another structure, or a `memory_length` that is
                not a positive integer.

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
        batch, length = padding_mask.shape[0], ops.shape(padding_mask)[1]
        if state is not None:
            check_like("state", state, self.state_spec(batch))
        if memory_length is None:
            memory_length = length if state is None else ops.shape(state[0])[1]
        else:
            require(is_integer(memory_length, 1), "memory_length", "a positive integer", memory_length)
        hidden_states, _ = _streams(self, inputs, state=state, training=training)
        outputs = _outputs(self, inputs, hidden_states, training)
        old_mask, old = state or (padding_mask[:, :0], tuple(x[:, :0] for x in hidden_states[:-1]))
        lengths = ops.sum(ops.cast(padding_mask, "int32"), axis=1, keepdims=True)  # (B, 1)
        # The last real tokens are remembered on the right, whatever the padding after them.
        places = ops.arange(memory_length) + lengths + (ops.shape(old_mask)[1] - memory_length)  # (B, P)
        there, places = places >= 0, ops.maximum(places, 0)

        def remembered(before: Tensor, new: Tensor) -> Tensor:
            both = ops.concatenate([ops.cast(before, new.dtype), new], axis=1)  # (B, K, H)
            return ops.stop_gradient(at_positions(both, places))  # (B, P, H)

        mask = ops.take_along_axis(ops.concatenate([old_mask, padding_mask], axis=1), places, axis=1)  # (B, P)
        held = tuple(remembered(*pair) for pair in zip(old, hidden_states[:-1], strict=True))
        return outputs, (ops.logical_and(mask, there), held)


def _outputs(
    layers: Any, inputs: Features, hidden_states: tuple[Tensor, ...], training: bool | None = None
) -> Features:
    sequence = layers.output_dropout(hidden_states[-1], training=training)
    count = ops.sum(ops.cast(inputs["padding_mask"], "int32"), axis=1, keepdims=True)  # (B, 1)
    pooled = layers.last_token(sequence, ops.maximum(count - 1, 0))[:, 0]  # (B, H)
    return {"sequence_output": sequence, "pooled_output": pooled, "hidden_states": hidden_states}


def _streams(
    layers: Any,
    inputs: Features,
    order: Tensor | None = None,
    queries: Tensor | None = None,
    positions: Tensor | None = None,
    state: Memory | None = None,
    training: bool | None = None,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the hidden states of both streams, or without `queries` of one: see `XlnetBackbone.query_stream`.

    `layers` has the layers as attributes, such as the backbone.
    """
    contents = [layers.embeddings(inputs["token_ids"], training=training)]  # (B, T, H)
    mask, apart = _views(inputs, order, state=state)
    of_queries: dict[str, Tensor | None] = {}
    if queries is not None:
        queries = layers.embeddings.dropout(queries, training=training)  # (B, M, H)
        of_queries["query_mask"], of_queries["query_apart"] = _views(inputs, order, positions, state)
        of_queries["positions"] = positions
    memories: tuple[Tensor | None, ...] = (None,) * len(layers.blocks) if state is None else state[1]
    encodings = layers.encoding(contents[0], memories[0], training=training)  # (R, H)
    answers: list[Any] = [queries]
    for block, memory in zip(layers.blocks, memories, strict=True):
        found = block(
            contents[-1], encodings, mask, apart, queries=answers[-1], memory=memory, training=training, **of_queries
        )
        content, answer = (found, None) if queries is None else found
        contents.append(content)
        answers.append(answer)
    if queries is None:
        return tuple(contents), ()
    answers[-1] = layers.output_dropout(answers[-1], training=training)
    return tuple(contents), tuple(answers)


def _views(
    inputs: Features, order: Tensor | None = None, positions: Tensor | None = None, state: Memory | None = None
) -> tuple[Tensor, Tensor]:
    """Return which keys each query sees, bool (B, S or 1, K), and which of them are in another segment, bool (B, S, K).

    The queries are those of all positions or, strictly in `order`, those at `positions`.
    """
    segments, padding = inputs["segment_ids"], ops.cast(inputs["padding_mask"], "bool")  # (B, T)
    own, mask = segments, padding[:, None]  # (B, S), (B, 1, T)
    if order is not None and positions is not None:
        own = ops.take_along_axis(segments, positions, axis=1)  # (B, M)
        mask = ops.logical_and(mask, order[:, None] < ops.take_along_axis(order, positions, axis=1)[..., None])
    elif order is not None:
        mask = ops.logical_and(mask, order[:, None] <= order[..., None])  # (B, T, T)
    if state is not None:  # a token of the memory counts as one of the first segment
        held = state[0]  # (B, P)
        segments = ops.concatenate([ops.zeros_like(ops.cast(held, segments.dtype)), segments], axis=1)
        before = ops.logical_and(held[:, None], ops.ones_like(mask[..., :1]))  # (B, S or 1, P)
        mask = ops.concatenate([before, mask], axis=2)
    return mask, ops.not_equal(ops.expand_dims(own, -1), ops.expand_dims(segments, 1))
