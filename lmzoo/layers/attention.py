"""Multi-head self-attention over right-padded batches: bidirectional, local or causal, optionally with a cache.

Letters in shape comments: B sequences, T positions of the keys, S positions of the queries, N heads, D width of a
head, H = N·D hidden width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from lmzoo.common.tensor_types import Shape, Tensor
from lmzoo.layers.adapted import make_normal_dense
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.dropout import Dropout
from lmzoo.layers.local_attention import attention_in_blocks, prefers_blocks
from lmzoo.layers.mask_values import MASKED, OUT_OF_SIGHT
from lmzoo.layers.position_cache import check_room, write_positions
from lmzoo.layers.products import apply_dense, is_plain, matmul
from lmzoo.layers.rotary import rotate
from lmzoo.layers.rows import as_rows
from lmzoo.layers.temporary import set_temporary_attributes

MAX_JOINED_WIDTH = 1024  # widest projection whose kernels are joined into one
_PROJECTIONS = ("query", "key", "value")

# Keys and values of sequences: two float tensors (B, N, T, D).
Cache: TypeAlias = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class JoinedKernels:
    """Kernels and biases that were joined for an export; see `join_projections`.

    Attributes:
        by_layers: dict from a tuple of layers that are computed together to a list of their joined kernel and, if they
            have biases, their joined bias.
    """

    by_layers: dict[tuple[keras.layers.Dense, ...], list[Tensor]]


def _uses_fused_kernel(query: Tensor, key: Tensor) -> bool:
    """Return whether JAX can use a fused cuDNN kernel for queries (B, N, S, D) and keys (B, N, T, D)."""
    if keras.backend.backend() != "jax" or query.dtype not in ("bfloat16", "float16"):
        return False
    import jax

    return jax.default_backend() == "gpu" and _has_kernel(query, key)


def _has_kernel(query: Tensor, key: Tensor) -> bool:
    """Return whether cuDNN has forward and backward kernels for queries (B, N, S, D) and keys (B, N, T, D)."""
    (num_queries, width), num_keys = query.shape[2:], key.shape[2]
    return width % 8 == 0 and width <= 128 and num_queries % 2 == 0 and num_keys % 2 == 0


def attention_by_length(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    padding_mask: Tensor,
    causal: bool = False,
    implementation: str | None = None,
    scale: float | None = None,
) -> Tensor:
    """Compute `jax.nn.dot_product_attention` from sequence lengths, without a bias tensor (JAX backend only).

    Lengths describe a mask only if all padding is on the right. Other masks are detected at run time and handled by
    `attention_probabilities`, so the result is correct for every mask.

    Args:
        query: float (B, N, S, D), the queries. S is at most T, or exactly T if `causal`.
        key: float (B, N, T, D), the keys.
        value: float (B, N, T, D), the values.
        padding_mask: bool (B, T), True at real tokens.
        causal: bool, whether later keys are hidden from each query.
        implementation: str, name of JAX's implementation; None to let JAX choose.
        scale: float, factor of Q·Kᵀ; 1/√D by default.

    Returns:
        The attention output, float (B, N, S, D).
    """
    import jax
    import jax.numpy as jnp

    lengths = jnp.sum(padding_mask, axis=1, dtype=jnp.int32)  # (B,)
    is_right_padded = jnp.all(padding_mask == (jnp.arange(padding_mask.shape[1]) < lengths[:, None]))
    is_right_padded &= jnp.all(lengths > 0)  # kernels may return NaN for a sequence without keys

    def attend_by_length(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))  # (B, T, N, D)
        context = jax.nn.dot_product_attention(
            q, k, v, scale=scale, is_causal=causal, key_value_seq_lengths=lengths, implementation=implementation
        )
        return jnp.swapaxes(context, 1, 2)

    def attend_by_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return attention_probabilities(q, k, mask, jnp.arange(q.shape[2]) if causal else None, scale=scale) @ v

    # Even the branch that is not taken allocates what its gradient needs, so the probabilities are recomputed instead.
    return jax.lax.cond(
        is_right_padded, attend_by_length, jax.checkpoint(attend_by_mask), query, key, value, padding_mask
    )


def attention_probabilities(
    query: Tensor,
    key: Tensor,
    padding_mask: Tensor,
    positions: Tensor | None = None,
    reach: int | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Return softmax(Q·Kᵀ/√D) over the visible keys, computed in float32 (Vaswani et al., 2017, eq. 1).

    A (B, 1, 1, T) bias hides padding, and an (S, T) bias hides the other invisible keys. A mask of shape (B, S, T) is
    created only if `positions` differ between sequences.

    Args:
        query: float tensor (B, N, S, D), the queries Q.
        key: float tensor (B, N, T, D), the keys K.
        padding_mask: bool tensor (B, T), True at real tokens.
        positions: int tensor (S,), the position of each query among the T keys, or (B, S) if the sequences differ.
            Required for causal attention, where a query does not see later keys, and for local attention. None for
            attention to all keys.
        reach: int, for local attention: the largest distance, in either direction, at which a query sees a key. With
            `positions` but without `reach`, attention is causal.
        bias: float tensor (B, N, S, T) or (1, N, S, T), added to the scores Q·Kᵀ/√D, or None.
        scale: float, factor of Q·Kᵀ; 1/√D by default.

    Returns:
        The probabilities, (B, N, S, T), in the dtype of `query`.
    """
    if scale != 1:
        query = query * ops.cast(query.shape[-1] ** -0.5 if scale is None else scale, query.dtype)
    scores = ops.cast(ops.matmul(query, ops.swapaxes(key, 2, 3)), "float32")  # (B, N, S, T)
    if bias is not None:
        scores = scores + ops.cast(bias, "float32")
    padding = ops.expand_dims(ops.where(padding_mask, 0.0, MASKED), (1, 2))  # (B, 1, 1, T)
    scores = scores + ops.cast(padding, "float32")
    if positions is not None:
        key_positions = ops.arange(ops.shape(key)[2])  # (T,)
        query_positions = ops.expand_dims(positions, -1)  # (S, 1) or (B, S, 1)
        is_hidden = (
            key_positions > query_positions if reach is None else ops.abs(key_positions - query_positions) > reach
        )  # (S, T) or (B, S, T)
        visibility_bias = ops.cast(ops.where(is_hidden, OUT_OF_SIGHT, 0.0), "float32")
        scores = scores + (visibility_bias if len(visibility_bias.shape) == 2 else ops.expand_dims(visibility_bias, 1))
    return ops.cast(softmax_over_keys(scores), query.dtype)


def softmax_over_keys(scores: Tensor) -> Tensor:
    """Return the softmax of scores over their last axis, without Keras' warning about an axis of length 1."""
    return ops.softmax(scores) if scores.shape[-1] != 1 else ops.exp(ops.log_softmax(scores))


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the softmax of scores over the entries of their last axis where `mask` is true, and zeros elsewhere.

    Args:
        scores: float (..., n), rows of n scores.
        mask: bool, True at the entries to include; its shape broadcasts to the shape of `scores`.

    Returns:
        float32, of the shape of `scores`. A row without true entries is zeros.
    """
    scores = ops.where(mask, ops.cast(scores, "float32"), MASKED)
    return ops.where(mask, softmax_over_keys(scores), 0.0)


@keras.saving.register_keras_serializable(package="lmzoo")
class SelfAttention(ConfiguredLayer):
    """Multi-head self-attention with an output projection (Vaswani et al., 2017).

    Args:
        num_heads: int, number of heads, N.
        hidden_dim: int, width H of the inputs and outputs; a multiple of `num_heads` unless `head_dim` is given.
        dropout: float, rate for the attention probabilities in training.
        initializer_range: float, standard deviation of the kernels' truncated normal initializer.
        mask: `"padding"` to hide only padding from each position, as in an encoder; `"causal"` to hide padding and all
            later positions, as in a decoder (Radford et al., 2018).
        use_bias: bool, whether the projections have biases.
        rotary_wavelength: float, longest wavelength of rotary positions, which need an even width D; None for no rotary
            positions. See `lmzoo.layers.rotary`.
        window: int of at least 2, for local attention: each position sees itself and half of this number of positions
            on either side. Time and memory then grow linearly with the sequence length, not quadratically. It takes no
            causal mask and no `scale`. None to see all positions.
        head_dim: int, width D of a head; by default H / N.
        scale: float, factor of the scores Q·Kᵀ; 1/√D by default.

    Call arguments:
        inputs: float (B, T, H), the vectors to attend to.
        padding_mask: bool (B, T), True at real tokens.
        queries: optional float (B, S, H), the vectors to attend from, by default `inputs`; not in causal attention.
        positions: int (B, S), positions of the queries, by default the first S positions. They matter only for rotary
            positions and local attention. Local attention takes them only with `queries`.
        cache: in causal attention, keys and values of T positions; see `empty_cache`. `inputs` is then float (B, S, H),
            for S new positions. Their keys and values are written into the cache, and they also attend to the earlier
            positions in the cache.
        index: with `cache`, int or int tensor (), the first of the new positions.
        bias: optional float (B, N, S, T) or (1, N, S, T), added to the scores before the softmax; see
            `RelativePositionBias`. Local attention with a bias takes time and memory for all pairs of positions.

    With `queries` from another sequence, the layer computes a decoder's attention to its source. For a source that is
    read once and attended to many times, call `keys_and_values` once and `attend` each time.

    Returns float (B, T, H), or (B, S, H) with `queries`; with `cache`, float (B, S, H) and the new cache.

    Raises:
        ValueError: If `mask` is unknown, `hidden_dim` is not a multiple of `num_heads`, or `rotary_wavelength` or
            `window` does not go with the other arguments.

    Example:

    ```python
    import numpy as np
    from lmzoo.layers import SelfAttention

    attention = SelfAttention(num_heads=3, hidden_dim=12, mask="causal")
    x, mask = np.ones((1, 5, 12), "float32"), np.ones((1, 5), bool)
    cache = attention.empty_cache(batch=1, length=5)
    first, cache = attention(x[:, :3], mask, cache=cache, index=0)  # the same as attention(x, mask)[:, :3]
    fourth, cache = attention(x[:, 3:4], mask, cache=cache, index=3)
    ```
    """

    def __init__(
        self,
        num_heads: int,
        hidden_dim: int,
        dropout: float = 0.0,
        initializer_range: float = 0.02,
        mask: str = "padding",
        use_bias: bool = True,
        rotary_wavelength: float | None = None,
        window: int | None = None,
        head_dim: int | None = None,
        scale: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if mask not in ("padding", "causal"):
            raise ValueError(f'`mask` must be "padding" or "causal", got {mask!r}.')
        if head_dim is None and hidden_dim % num_heads:
            raise ValueError(f"`hidden_dim` ({hidden_dim}) must be a multiple of `num_heads` ({num_heads}).")
        if window is not None and scale is not None:
            raise ValueError(f"Local attention (`window`) scales scores by 1/√D: leave out `scale`, got {scale!r}.")
        self.head_dim = head_dim
        self.head_width = hidden_dim // num_heads if head_dim is None else head_dim
        if rotary_wavelength is not None and self.head_width % 2:
            raise ValueError(f"Rotary positions need heads of an even width, got {self.head_width}.")
        if window is not None and (mask != "padding" or window < 2):
            raise ValueError(f'`window` must be at least 2, and `mask` then "padding", got {window!r} and {mask!r}.')
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.initializer_range = initializer_range
        self.mask = mask
        self.use_bias = use_bias
        self.rotary_wavelength = rotary_wavelength
        self.window = window
        self.reach = None if window is None else window // 2
        self.scale = scale
        self.query, self.key, self.value, self.output_dense = (
            make_normal_dense(units, initializer_range, use_bias=use_bias, dtype=self.dtype_policy, name=name)
            for name, units in (*((name, self.heads_width) for name in _PROJECTIONS), ("output_dense", hidden_dim))
        )
        self.dropout = Dropout(dropout, dtype=self.dtype_policy, name="dropout")
        self.joined_kernels: JoinedKernels | None = None

    @property
    def heads_width(self) -> int:
        """The total width of all heads, N·D."""
        return self.num_heads * self.head_width

    def build(self, input_shape: Shape) -> None:
        """Create the four projections."""
        for dense in (self.query, self.key, self.value):
            dense.build(input_shape)
        self.output_dense.build((*input_shape[:-1], self.heads_width))

    def _project_to_heads(self, x: Tensor, *layers: keras.layers.Dense, join: bool = True) -> list[Tensor]:
        """Return the outputs of `layers` for `x` (B, T, H), each split into heads: (B, N, T, D).

        With `join`, the kernels are concatenated, for a single product. Pass False to read one token at a time, since
        copying the kernels would take longer than the products.
        """
        rows = as_rows(x)  # (B·T, H)
        head_shape = self.num_heads, self.head_width
        joined_weights = self.joined_kernels.by_layers.get(layers) if self.joined_kernels else None
        if joined_weights:
            projections = matmul(rows, joined_weights[0])  # (B·T, layers·H)
            projections = projections + joined_weights[1] if self.use_bias else projections
        elif not join or self.heads_width > MAX_JOINED_WIDTH or not all(map(is_plain, layers)):
            shape = (*ops.shape(x)[:2], *head_shape)
            return [self._transpose(ops.reshape(apply_dense(layer, rows), shape), (0, 2, 1, 3)) for layer in layers]
        elif isinstance(keras.distribution.distribution(), keras.distribution.ModelParallel):
            # Kernels are sharded along their last axis. If they were joined along it, devices would exchange shards.
            kernel = ops.stack([layer.kernel for layer in layers], axis=1)  # (H, layers, H)
            projections = ops.tensordot(rows, kernel, 1)  # (B·T, layers, H)
            projections = projections + ops.stack([layer.bias for layer in layers]) if self.use_bias else projections
        else:
            # One wide product is faster than several narrow ones, until copying the kernels costs more than it saves.
            kernel = ops.concatenate([layer.kernel for layer in layers], axis=1)  # (H, layers·H)
            projections = matmul(rows, kernel)
            if self.use_bias:
                projections = projections + ops.concatenate([layer.bias for layer in layers], axis=0)
        shape = (*ops.shape(x)[:2], len(layers), *head_shape)
        outputs = self._transpose(ops.reshape(projections, shape), (2, 0, 3, 1, 4))  # (layers, B, N, T, D)
        return ops.unstack(outputs, len(layers), axis=0)

    def _transpose(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        """Return `x` with its axes in the order `axes`.

        Exported graphs transpose its bits as integers, since oneDNN takes at least 0.1 ms to transpose floats.
        """
        if self.joined_kernels is None:
            return ops.transpose(x, axes)
        import tensorflow as tf

        return tf.bitcast(tf.transpose(tf.bitcast(x, f"int{8 * x.dtype.size}"), axes), x.dtype)

    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor,
        queries: Tensor | None = None,
        cache: Cache | None = None,
        index: int | Tensor | None = None,
        positions: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
    ) -> Tensor | tuple[Tensor, Cache]:
        """Return the attention output at every position, or for `queries`; with `cache`, also the new cache.

        Raises:
            ValueError: If causal attention gets `queries`, if local attention gets `positions` without `queries`, if
                attention that is not causal gets a `cache`, or if a `cache` comes without `index` or is too short for
                the new positions. (If `index` is a tensor, only the shapes are checked.)
        """
        if cache is not None:
            self._check_cache(inputs, cache, index)
        if self.mask == "causal" and queries is not None:
            raise ValueError("Causal attention takes no `queries`: it would not know which positions follow them.")
        positions = self._get_query_positions(inputs, queries, positions, index)  # (S,) or (B, S)
        query, key, value = self._project(inputs, queries, positions, join=cache is None)
        if cache is not None:
            assert index is not None  # `_check_cache` raises an error
            key = write_positions(cache[0], key, index, axis=2)  # (B, N, T, D)
            value = write_positions(cache[1], value, index, axis=2)  # (B, N, T, D)
            cache = key, value
        has_dropout = bool(training and self.dropout.rate)
        block_reach = self.reach if queries is None and bias is None else None
        if block_reach is not None and prefers_blocks(ops.shape(inputs)[1], block_reach):
            context = attention_in_blocks(
                query, key, value, padding_mask, block_reach, lambda x: self.dropout(x, training=training)
            )
        elif (
            cache is None and self.reach is None and bias is None and not has_dropout and _uses_fused_kernel(query, key)
        ):
            context = attention_by_length(query, key, value, padding_mask, self.mask == "causal", "cudnn", self.scale)
        else:
            probabilities = self._compute_visible_probabilities(
                query, key, padding_mask, positions, bias
            )  # (B, N, S, T)
            probabilities = self.dropout(probabilities, training=training)
            context = ops.matmul(probabilities, value)  # (B, N, S, D)
        output = self._join_and_project_heads(context, ops.shape(inputs if queries is None else queries))  # (B, S, H)
        return output if cache is None else (output, cache)

    def _get_query_positions(
        self, inputs: Tensor, queries: Tensor | None, positions: Tensor | None, index: int | Tensor | None
    ) -> Tensor | None:
        """Return the positions of the queries, int (S,) or (B, S), or None if attention ignores positions.

        Raises:
            ValueError: If local attention gets `positions` without `queries`.
        """
        if self.window is not None and positions is not None and queries is None:
            raise ValueError(
                "Local attention (`window`) counts the positions of its inputs from 0. Pass `positions` only with "
                "`queries`."
            )
        if self.mask != "causal" and self.rotary_wavelength is None and self.reach is None:
            return None
        if positions is not None:
            return ops.cast(positions, "int32")
        offsets = ops.arange(ops.shape(inputs if queries is None else queries)[1])  # (S,)
        return offsets if index is None else offsets + index

    def _project(
        self, inputs: Tensor, queries: Tensor | None, positions: Tensor | None, join: bool = True
    ) -> list[Tensor]:
        """Return queries (B, N, S, D), keys and values (B, N, T, D), with any rotary positions applied."""
        if queries is None:
            query, key, value = self._project_to_heads(inputs, self.query, self.key, self.value, join=join)
        else:
            (query,) = self._project_to_heads(queries, self.query)  # (B, N, S, D)
            key, value = self._project_to_heads(inputs, self.key, self.value)  # (B, N, T, D)
        return [*self._rotate(query, key, positions, queries is None), value]

    def _rotate(
        self, query: Tensor, key: Tensor, positions: Tensor | None, same_positions: bool
    ) -> tuple[Tensor, Tensor]:
        """Apply rotary position embeddings to queries at `positions` and to keys.

        Return both unchanged if the layer has no rotary embeddings or `positions` is None. With `same_positions`, the
        keys are also at `positions`; otherwise they are at all positions of the inputs.
        """
        if self.rotary_wavelength is None or positions is None:
            return query, key
        key_positions = positions if same_positions else ops.arange(ops.shape(key)[2])  # (T,)
        return rotate(query, positions, self.rotary_wavelength), rotate(key, key_positions, self.rotary_wavelength)

    def _compute_visible_probabilities(
        self, query: Tensor, key: Tensor, padding_mask: Tensor, positions: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        """Return the attention probabilities of queries at `positions` over the keys they see, float (B, N, S, T)."""
        hides_keys = self.mask == "causal" or self.reach is not None
        positions = positions if hides_keys else None
        return attention_probabilities(query, key, padding_mask, positions, self.reach, bias, self.scale)

    def _join_and_project_heads(self, context: Tensor, shape: Shape) -> Tensor:
        """Concatenate the outputs of the heads, (B, N, S, D), and project them to vectors with `shape`, (B, S, H)."""
        context = ops.reshape(self._transpose(context, (0, 2, 1, 3)), (-1, self.heads_width))  # (B·S, N·D)
        return ops.reshape(apply_dense(self.output_dense, context), shape)

    def keys_and_values(self, inputs: Tensor) -> Cache:
        """Return the keys and values of `inputs`, float (B, T, H), for `attend`; each is float (B, N, T, D)."""
        key, value = self._project_to_heads(inputs, self.key, self.value)
        return key, value

    def attend(self, queries: Tensor, keys_and_values: Cache, padding_mask: Tensor) -> Tensor:
        """Return the attention output for `queries`, (B, S, H), without dropout, given keys and values of the inputs.

        Args:
            queries: float (B, S, H), the vectors to attend from.
            keys_and_values: keys and values of the inputs, returned by the method `keys_and_values`.
            padding_mask: bool (B, T), True at the inputs' real tokens.
        """
        (query,) = self._project_to_heads(queries, self.query)  # (B, N, S, D)
        probabilities = attention_probabilities(
            query, keys_and_values[0], padding_mask, scale=self.scale
        )  # (B, N, S, T)
        context = ops.matmul(probabilities, keys_and_values[1])  # (B, N, S, D)
        return self._join_and_project_heads(context, ops.shape(queries))

    def _check_cache(self, inputs: Tensor, cache: Cache, index: int | Tensor | None) -> None:
        """Check that attention is causal and `index` is given, and that the inputs fit into the cache from there on."""
        if self.mask != "causal" or index is None:
            raise ValueError("`cache` is for causal attention, and needs `index`, the position of the first input.")
        check_room(cache[0].shape[2], inputs.shape[1], index)

    def empty_cache(self, batch: int, length: int) -> Cache:
        """Return an empty cache for `call`: zeros (B, N, T, D) for keys and for values of T = `length` positions."""
        shape = batch, self.num_heads, length, self.head_width
        return ops.zeros(shape, self.compute_dtype), ops.zeros(shape, self.compute_dtype)

    def scores(
        self,
        inputs: Tensor,
        padding_mask: Tensor,
        queries: Tensor | None = None,
        positions: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Return the attention probabilities of `call` before dropout: (B, N, T, T), or (B, N, S, T) with `queries`."""
        if queries is None:
            query, key = self._project_to_heads(inputs, self.query, self.key)  # (B, N, T, D)
        else:
            (query,), (key,) = self._project_to_heads(queries, self.query), self._project_to_heads(inputs, self.key)
        positions = self._get_query_positions(inputs, queries, positions, None)  # (S,) or (B, S)
        query, key = self._rotate(query, key, positions, queries is None)
        return self._compute_visible_probabilities(query, key, padding_mask, positions, bias)

    def compute_output_spec(
        self, inputs: Tensor, padding_mask: Tensor, queries: Any = None, cache: Any = None, *_: Any, **__: Any
    ) -> Any:
        """Return the spec of the output, which is shaped like the queries, and of the cache if there is one."""

        def make_spec(x: Tensor) -> keras.KerasTensor:
            return keras.KerasTensor(x.shape, self.compute_dtype)

        output = make_spec(inputs if queries is None else queries)
        return output if cache is None else (output, keras.tree.map_structure(make_spec, cache))


@contextlib.contextmanager
def join_projections(layers: Iterable[SelfAttention]) -> Iterator[list[Tensor]]:
    """Join kernels once, rather than in every call, for functions that are traced in the block (TensorFlow only).

    These functions read copies of the current weights. The kernels of quantized layers are not joined.

    Yields:
        The copies, `tf.Variable`s, which must live as long as the functions.
    """
    attributes = [(layer, "joined_kernels", _join_kernels(layer)) for layer in layers]
    with set_temporary_attributes(attributes):
        yield [copy for _, _, kernels in attributes for weights in kernels.by_layers.values() for copy in weights]


def _join_kernels(layer: SelfAttention) -> JoinedKernels:
    """Return the joined kernels and joined biases of projections that are computed together, as new variables."""
    import tensorflow as tf

    by_layers = {}
    for projections in ((layer.query, layer.key, layer.value), (layer.key, layer.value)):
        if all(dense.quantization_mode is None for dense in projections):
            weights = [
                [ops.convert_to_numpy(w) for w in (dense.kernel, dense.bias) if w is not None] for dense in projections
            ]
            by_layers[projections] = [
                tf.Variable(np.concatenate(kernels_or_biases, axis=-1), trainable=False, dtype=layer.compute_dtype)
                for kernels_or_biases in zip(*weights, strict=True)
            ]
    return JoinedKernels(by_layers)
