"""Transformer block, with LayerNorm after the residual sums or before the sublayers."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Shape, Tensor, Tensors
from lmzoo.layers.activations import get_activation
from lmzoo.layers.adapted import Dense, make_normal_dense
from lmzoo.layers.attention import Cache, SelfAttention
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.dropout import Dropout
from lmzoo.layers.normalization import LayerNorm, RMSNorm
from lmzoo.layers.products import apply_dense
from lmzoo.layers.remat import recompute_in_backward
from lmzoo.layers.rows import as_rows

_MAX_FLOAT16_SUM = 64_504.0  # 1,000 below the largest float16, as in transformers


@keras.saving.register_keras_serializable(package="lmzoo")
class TransformerBlock(ConfiguredLayer):
    """Self-attention and a two-layer feed-forward network, each with a residual sum and LayerNorm.

    With `norm="post"`, the original order (Vaswani et al., 2017, section 3.1), for inputs `x`:
    `a = LN₁(x + dropout(attention(x)))`, and the block returns `LN₂(a + dropout(W₂·act(W₁·a)))`.

    With `norm="pre"` (Radford et al., 2019, section 2.3): `a = x + dropout(attention(LN₁(x)))`, and the block returns
    `a + dropout(W₂·act(W₁·LN₂(a)))`. A model then needs one more LayerNorm after its last block.

    LN₁ is `attention_layer_norm`, and LN₂ is `output_layer_norm`. A decoder's block that `reads_source` also attends to
    the source, before the feed-forward network: `a` becomes `LN(a + dropout(source_attention(a)))` or, with
    `norm="pre"`, `a + dropout(source_attention(LN(a)))`, where LN is `source_layer_norm`.

    Args:
        num_heads: int, number of attention heads.
        hidden_dim: int, width H of the inputs and outputs.
        intermediate_dim: int, width of the feed-forward network's hidden layer.
        activation: str, activation of the feed-forward network; see `lmzoo.layers.get_activation`.
        dropout: float, rate for the residual branches and, by default, for the attention probabilities.
        layer_norm_epsilon: float, added to the variance in LayerNorm.
        initializer_range: float, standard deviation of the truncated normal initializer.
        mask: `"padding"` or `"causal"`, see `SelfAttention`.
        norm: `"post"` or `"pre"`, the place of LayerNorm.
        attention_dropout: float, rate for the attention probabilities; by default `dropout`.
        reads_source: bool, whether the block also attends to a source.
        use_bias: bool, whether dense layers and LayerNorms have biases.
        gated: bool, whether the feed-forward network is W₂·(act(W₁·a) * V·a), a gated linear unit (Shazeer, 2020,
            https://arxiv.org/abs/2002.05202); V is `gate_dense`.
        attention_norm: bool, whether there is LN₁. LN₁ may be left out only with `norm="pre"`, in the first block of
            a model whose embeddings are normalized.
        rotary_wavelength: float, see `SelfAttention`.
        window: int, see `SelfAttention`.
        head_dim: int, see `SelfAttention`.
        attention_scale: float, `scale` of `SelfAttention`.
        rms_norm: bool, whether `RMSNorm` takes the place of LayerNorm.
        hidden_dropout: bool, whether dropout is also applied to the hidden layer of the feed-forward network.

    Call arguments and the shapes of results are the same as for `SelfAttention`. With `queries`, the last block of an
    encoder computes only the vectors of the queries. A block that `reads_source` also takes `source_mask`, bool (B, U),
    True at the real tokens of the source, and `source`: the encoder's vectors, float (B, U, H), or their keys and
    values from `source_attention.keys_and_values`. With keys and values, the batch of `inputs` may be K times the batch
    of the source, for K continuations of each source sequence.

    With `block.remat = True`, training stores only a block's inputs and outputs, and recomputes its activations in the
    backward pass; see `lmzoo.models.Backbone`.

    Raises:
        ValueError: If `norm` is unknown, or a block with `norm="post"` has no `attention_norm`.
    """

    remat = False

    def __init__(
        self,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        activation: str = "gelu",
        dropout: float = 0.0,
        layer_norm_epsilon: float = 1e-12,
        initializer_range: float = 0.02,
        mask: str = "padding",
        norm: str = "post",
        attention_dropout: float | None = None,
        reads_source: bool = False,
        use_bias: bool = True,
        gated: bool = False,
        attention_norm: bool = True,
        rotary_wavelength: float | None = None,
        window: int | None = None,
        head_dim: int | None = None,
        attention_scale: float | None = None,
        rms_norm: bool = False,
        hidden_dropout: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if norm == "post" and not attention_norm:
            raise ValueError('A block without `attention_norm` has `norm="pre"`.')
        if norm not in ("post", "pre"):
            raise ValueError(f'`norm` must be "post" or "pre", got {norm!r}.')
        self.norm, self.mask = norm, mask
        self.num_heads, self.hidden_dim, self.intermediate_dim = num_heads, hidden_dim, intermediate_dim
        self.activation = activation
        self.layer_norm_epsilon, self.initializer_range = layer_norm_epsilon, initializer_range
        self.use_bias = use_bias
        self.gated = gated
        self.attention_norm = attention_norm
        self.rotary_wavelength = rotary_wavelength
        self.window = window
        self.head_dim = head_dim
        self.attention_scale = attention_scale
        self.rms_norm = rms_norm
        self.hidden_dropout = hidden_dropout

        def make_norm(name: str) -> LayerNorm | RMSNorm:
            if rms_norm:
                return RMSNorm(layer_norm_epsilon, dtype=self.dtype_policy, name=name)
            return LayerNorm(epsilon=layer_norm_epsilon, center=use_bias, dtype=self.dtype_policy, name=name)

        def make_dense(units: int, name: str) -> Dense:
            return make_normal_dense(units, initializer_range, use_bias=use_bias, dtype=self.dtype_policy, name=name)

        self.attention_dropout, self.reads_source = attention_dropout, reads_source
        rate = dropout if attention_dropout is None else attention_dropout
        self.attention = self.make_attention(rate)
        self.attention_layer_norm = make_norm("attention_layer_norm") if attention_norm else None
        self.source_attention = self._make_self_attention(rate, "padding", "source_attention") if reads_source else None
        self.source_layer_norm = make_norm("source_layer_norm") if reads_source else None
        self.intermediate_dense = make_dense(intermediate_dim, "intermediate_dense")
        self.gate_dense = make_dense(intermediate_dim, "gate_dense") if gated else None
        self.output_dense = make_dense(hidden_dim, "output_dense")
        self.output_layer_norm = make_norm("output_layer_norm")
        self.dropout = Dropout(dropout, dtype=self.dtype_policy, name="dropout")

    def make_attention(self, dropout: float) -> keras.layers.Layer:
        """Return a new attention layer for the block."""
        return self._make_self_attention(dropout, self.mask, "attention")

    def _make_self_attention(self, dropout: float, mask: str, name: str) -> SelfAttention:
        """Return an attention layer with the block's sizes and settings."""
        return SelfAttention(
            self.num_heads,
            self.hidden_dim,
            dropout,
            self.initializer_range,
            mask,
            use_bias=self.use_bias,
            rotary_wavelength=self.rotary_wavelength,
            window=self.window,
            head_dim=self.head_dim,
            scale=self.attention_scale,
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, input_shape: Shape) -> None:
        """Create the sublayers' weights."""
        source_layers = [self.source_attention, self.source_layer_norm] if self.reads_source else []
        attention_layers = [self.attention, self.attention_layer_norm, *source_layers]
        for layer in (*attention_layers, self.intermediate_dense, self.gate_dense, self.output_layer_norm):
            if layer is not None:
                layer.build(input_shape)
        self.output_dense.build((*input_shape[:-1], self.intermediate_dim))

    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor,
        queries: Tensor | None = None,
        cache: Cache | None = None,
        index: int | Tensor | None = None,
        source: Tensor | Cache | None = None,
        source_mask: Tensor | None = None,
        positions: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
    ) -> Tensor | tuple[Tensor, Cache]:
        """Return the hidden states at every position, or for `queries`; with `cache`, also the new cache.

        Raises:
            ValueError: If `SelfAttention.call` raises one, or a block that reads a source gets no `source` or no
                `source_mask`.
        """
        # Tensors that need gradients are arguments of `apply`: captured tensors get none in `recompute_in_backward`.
        optional_tensors = {"queries": queries, "source": None if isinstance(source, tuple) else source, "bias": bias}
        extra_tensors = {name: tensor for name, tensor in optional_tensors.items() if tensor is not None}

        def apply(inputs: Tensor, *extra_values: Tensor) -> Tensors:
            arguments: dict[str, Any] = {"queries": None, "source": source, "bias": None}
            arguments |= zip(extra_tensors, extra_values, strict=True)
            queries = arguments["queries"]
            residual = inputs if queries is None else queries
            if self.norm == "pre" and self.attention_layer_norm is not None:
                inputs = self.attention_layer_norm(inputs)  # (B, T, H)
                queries = None if queries is None else self.attention_layer_norm(queries)  # (B, S, H)
            x = self.attention(
                inputs,
                padding_mask,
                queries,
                cache=cache,
                index=index,
                positions=positions,
                bias=arguments["bias"],
                training=training,
            )  # (B, S, H)
            x, new_cache = (x, None) if cache is None else x
            x = self.add_feed_forward(residual, x, training, arguments["source"], source_mask)  # (B, S, H)
            return x if cache is None else (x, new_cache)

        if self.remat and training:
            return recompute_in_backward(self, apply, inputs, *extra_tensors.values())
        return apply(inputs, *extra_tensors.values())

    def add_feed_forward(
        self,
        residual: Tensor,
        attended: Tensor,
        training: bool,
        source: Tensor | Cache | None = None,
        source_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the block's output, (B, S, H), from its input `residual` and its attention's output `attended`.

        This includes attention to the source, if the block has it, and the feed-forward network.
        """
        x = self._add(residual, self.dropout(attended, training=training))
        if self.norm == "post" and self.attention_layer_norm is not None:
            x = self.attention_layer_norm(x)
        if self.source_layer_norm is not None:
            queries = self.source_layer_norm(x) if self.norm == "pre" else x  # (B, S, H)
            y = self._attend_to_source(queries, source, source_mask, training)  # (B, S, H)
            x = self._add(x, self.dropout(y, training=training))
            x = self.source_layer_norm(x) if self.norm == "post" else x
        y = self.output_layer_norm(x) if self.norm == "pre" else x
        y = self._compute_intermediate(as_rows(y))  # (B·S, I)
        y = self.dropout(y, training=training) if self.hidden_dropout else y
        y = ops.reshape(apply_dense(self.output_dense, y), ops.shape(x))  # (B, S, H)
        x = self._add(x, self.dropout(y, training=training))
        return self.output_layer_norm(x) if self.norm == "post" else x

    def _add(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return the residual sum, clipped to finite values with RMSNorm in float16 (T5), where it can overflow."""
        total = residual + x
        if not self.rms_norm or self.compute_dtype != "float16":
            return total
        return ops.clip(total, -_MAX_FLOAT16_SUM, _MAX_FLOAT16_SUM)

    def _compute_intermediate(self, rows: Tensor) -> Tensor:
        """Return the feed-forward network's hidden layer, (B·S, `intermediate_dim`), for inputs `rows`, (B·S, H)."""
        x = get_activation(self.activation)(apply_dense(self.intermediate_dense, rows))
        return x if self.gate_dense is None else x * apply_dense(self.gate_dense, rows)

    def attend_to_itself(self, inputs: Tensor, padding_mask: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the queries of source attention, float (B, T, H), computed without dropout."""
        assert self.attention_layer_norm is not None
        assert self.source_layer_norm is not None
        if self.norm == "post":
            return self.attention_layer_norm(inputs + self.attention(inputs, padding_mask, bias=bias))
        attention_output = self.attention(self.attention_layer_norm(inputs), padding_mask, bias=bias)  # (B, T, H)
        return self.source_layer_norm(self._add(inputs, attention_output))

    def _attend_to_source(
        self, x: Tensor, source: Tensor | Cache | None, mask: Tensor | None, training: bool
    ) -> Tensor:
        """Return the output of source attention for `x`, (B, S, H); `source` is vectors or their keys and values.

        Raises:
            ValueError: If `source` or `mask` is None.
        """
        assert self.source_attention is not None
        if source is None or mask is None:
            raise ValueError("A block that reads a source needs `source` and `source_mask`.")
        if not isinstance(source, tuple):
            return self.source_attention(source, mask, x, training=training)  # (B, S, H)
        # Sequences that continue the same source are adjacent, so they can be read as the queries of one sequence.
        grouped_queries = ops.reshape(x, (ops.shape(source[0])[0], -1, self.hidden_dim))  # (B, K·S, H)
        return ops.reshape(self.source_attention.attend(grouped_queries, source, mask), ops.shape(x))

    def attention_scores(self, inputs: Tensor, padding_mask: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the attention probabilities of `call` without dropout, (B, heads, T, T)."""
        if self.norm == "pre" and self.attention_layer_norm is not None:
            inputs = self.attention_layer_norm(inputs)  # (B, T, H)
        return self.attention.scores(inputs, padding_mask, bias=bias)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output spec, which is the same as the attention layer's."""
        return self.attention.compute_output_spec(*args, **kwargs)
