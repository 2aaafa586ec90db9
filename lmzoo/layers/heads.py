"""Task heads: the layers between a backbone's vectors and a task's logits.

Letters in shape comments: B sequences, T positions, M chosen positions, H width of a backbone's vector.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Shape, Tensor
from lmzoo.layers.activations import get_activation
from lmzoo.layers.adapted import Dense, make_normal_dense
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.dropout import Dropout
from lmzoo.layers.initializers import TruncatedNormal
from lmzoo.layers.normalization import LayerNorm
from lmzoo.layers.rows import as_rows, gather_positions, get_width


@keras.saving.register_keras_serializable(package="lmzoo")
class OutputBias(ConfiguredLayer):
    """Layer that adds a bias to token logits, float (..., V), in the dtype of the logits.

    Args:
        vocabulary_size: int, number of tokens in the vocabulary, V.
    """

    def __init__(self, vocabulary_size: int, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)  # autocasting would round float32 logits
        self.vocabulary_size = vocabulary_size

    def build(self, input_shape: Shape) -> None:
        """Create the bias."""
        self.bias = self.add_weight(shape=(self.vocabulary_size,), initializer="zeros", name="bias")

    def call(self, inputs: Tensor) -> Tensor:
        """Add the bias to `inputs`."""
        return inputs + ops.cast(self.bias, inputs.dtype)

    def compute_output_spec(self, inputs: Tensor) -> keras.KerasTensor:
        """Return the spec of `inputs`: same shape and dtype."""
        return keras.KerasTensor(inputs.shape, inputs.dtype)


class TransformingHead(ConfiguredLayer):
    """Base class of heads with an optional transform (dense layer, activation, LayerNorm) before a linear layer.

    Args:
        initializer_range: float, standard deviation of the truncated normal initializer.
        activation: str, activation of the dense layer; see `lmzoo.layers.get_activation`. None for no transform.
        use_bias: bool, whether the dense layer and the LayerNorm have biases.
        layer_norm_epsilon: float, added to the variance in the LayerNorm; None for no LayerNorm.
    """

    def __init__(
        self,
        initializer_range: float = 0.02,
        activation: str | None = None,
        use_bias: bool = True,
        layer_norm_epsilon: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.initializer_range = initializer_range
        self.activation = activation
        self.use_bias = use_bias
        self.layer_norm_epsilon = layer_norm_epsilon

    def build_transform(self, input_shape: Shape) -> None:
        """Create the dense layer and the LayerNorm, if the head has them."""
        if not self.activation:
            return
        width, policy = get_width(input_shape), self.dtype_policy
        self.dense = make_normal_dense(
            width, self.initializer_range, use_bias=self.use_bias, dtype=policy, name="dense"
        )
        self.dense.build(input_shape)
        if self.layer_norm_epsilon is not None:
            epsilon = self.layer_norm_epsilon
            self.layer_norm = LayerNorm(epsilon=epsilon, center=self.use_bias, dtype=policy, name="layer_norm")
            self.layer_norm.build(input_shape)
        self.restore_created_layers()

    def transform(self, vectors: Tensor) -> Tensor:
        """Return the vectors, float (..., H), after the transform, if the head has one."""
        if not self.activation:
            return vectors
        x = get_activation(self.activation)(self.dense(vectors))  # (..., H)
        return x if self.layer_norm_epsilon is None else self.layer_norm(x)


@keras.saving.register_keras_serializable(package="lmzoo")
class ClassificationHead(TransformingHead):
    """Classification head on a pooled vector: dropout and a linear layer (Devlin et al., 2019, section 4.1).

    With an activation: dropout, dense layer, activation, dropout, linear layer (Liu et al., 2019). The dense layer
    takes the place of the pooler that RoBERTa and DistilBERT lack.

    Args:
        num_classes: int, number of classes, C.
        dropout: float, dropout rate before each dense layer in training.
        initializer_range: float, standard deviation of the truncated normal initializer.
        activation: str, activation of the dense layer; see `lmzoo.layers.get_activation`. None for no dense layer.
        input_dropout: bool, whether dropout is also applied to the pooled vector (not in DistilBERT).
        use_bias: bool, whether the dense layer and LayerNorm have biases.
        layer_norm_epsilon: float, added to the variance in a LayerNorm after the activation; None for no LayerNorm.
        bias_trainable: bool, whether the bias of the logits is trained. It cancels out in a softmax over choices.

    Call argument: `pooled` float (B, H). Returns float32 logits (B, C).
    """

    def __init__(
        self,
        num_classes: int,
        dropout: float = 0.1,
        initializer_range: float = 0.02,
        activation: str | None = None,
        input_dropout: bool = True,
        use_bias: bool = True,
        layer_norm_epsilon: float | None = None,
        bias_trainable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(initializer_range, activation, use_bias, layer_norm_epsilon, **kwargs)
        self.bias_trainable = bias_trainable
        self.num_classes = num_classes
        self.input_dropout = input_dropout
        self.dropout = Dropout(dropout, dtype=self.dtype_policy, name="dropout")
        self.logits = make_normal_dense(num_classes, initializer_range, dtype=self.dtype_policy, name="logits")

    def build(self, input_shape: Shape) -> None:
        """Create the dense layers."""
        self.build_transform(input_shape)
        self.logits.build(input_shape)
        if not self.bias_trainable:
            self.logits.bias.trainable = False

    def call(self, pooled: Tensor, training: bool = False) -> Tensor:
        """Compute the logits."""
        x = self.dropout(pooled, training=training) if self.input_dropout else pooled  # (B, H)
        if self.activation:
            x = self.dropout(self.transform(x), training=training)  # (B, H)
        return ops.cast(self.logits(x), "float32")

    def compute_output_spec(self, pooled: Tensor, training: bool = False) -> keras.KerasTensor:
        """Return the output spec, which is float32 under every dtype policy."""
        return keras.KerasTensor((*pooled.shape[:-1], self.num_classes), "float32")


@keras.saving.register_keras_serializable(package="lmzoo")
class MaskedLMHead(ConfiguredLayer):
    """Masked-LM head: dense layer, activation, LayerNorm, product with token embeddings, bias (Devlin et al., 2019).

    Without `transform`, there are only the product and the bias (Yang et al., 2019). Without `tie_embeddings`, vectors
    are multiplied by a kernel of the head instead of the token embeddings.

    Args:
        token_embedding: `keras.layers.ReversibleEmbedding` with V rows of width E, shared with the backbone; None to
            leave the product to `compute_tied_logits`, or if `tie_embeddings` is False.
        activation: str, activation after the dense layer; see `lmzoo.layers.get_activation`.
        layer_norm_epsilon: float, added to the variance in LayerNorm.
        initializer_range: float, standard deviation of the truncated normal initializer.
        transform: bool, whether the dense layer, the activation and LayerNorm come before the product.
        table_shape: pair of ints, shape (V, E) of the token embeddings; required without `token_embedding`.
        use_bias: bool, whether the dense layer and LayerNorm have biases; the logits always have one.
        tie_embeddings: bool, whether logits are products with the token embeddings. If False, the head has a kernel
            `output_projection` (E, V) in their place.

    Call argument: `vectors` float (B, M, H), hidden states at M masked positions. Returns float32 logits (B, M, V).
    With `tie_embeddings` but no `token_embedding`, returns the arguments of `compute_tied_logits`: the transformed
    vectors, float (B, M, E), and the bias, (V,).
    """

    def __init__(
        self,
        token_embedding: keras.layers.ReversibleEmbedding | None = None,
        activation: str = "gelu",
        layer_norm_epsilon: float = 1e-12,
        initializer_range: float = 0.02,
        transform: bool = True,
        table_shape: tuple[int, int] | None = None,
        use_bias: bool = True,
        tie_embeddings: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if token_embedding is not None:
            table_shape = token_embedding.input_dim, token_embedding.output_dim
        if table_shape is None:
            raise ValueError("Pass `token_embedding` or the shape of the table, `table_shape`.")
        self.token_embedding = token_embedding
        self.table_shape = (table_shape[0], table_shape[1])
        self.transform = transform
        self.activation = activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.initializer_range = initializer_range
        self.use_bias = use_bias
        self.tie_embeddings = tie_embeddings
        width, policy = self.table_shape[1], self.dtype_policy
        if not tie_embeddings:
            settings = {"use_bias": False, "dtype": policy, "name": "output_projection"}
            self.output_projection = make_normal_dense(self.table_shape[0], initializer_range, **settings)
        if not transform:
            return
        self.dense = make_normal_dense(width, initializer_range, use_bias=use_bias, dtype=policy, name="dense")
        self.layer_norm = LayerNorm(epsilon=layer_norm_epsilon, center=use_bias, dtype=policy, name="layer_norm")

    def build(self, input_shape: Shape) -> None:
        """Create the weights of the transform, the output bias and, without tied embeddings, the output projection."""
        vocabulary_size, width = self.table_shape
        if self.transform:
            self.dense.build(input_shape)
            self.layer_norm.build((*input_shape[:-1], width))
        if not self.tie_embeddings:
            self.output_projection.build((None, width))
        # Without autocasting, since the bias is added to float32 logits.
        self.output_bias = self.add_weight(
            shape=(vocabulary_size,), initializer="zeros", autocast=False, name="output_bias"
        )

    def call(self, vectors: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return the logits or, if the head lacks its tied embeddings, the arguments of `compute_tied_logits`."""
        x = vectors
        if self.transform:
            x = as_rows(x)  # (B·M, H)
            x = self.layer_norm(get_activation(self.activation)(self.dense(x)))  # (B·M, E)
            x = ops.reshape(x, (*ops.shape(vectors)[:-1], self.table_shape[1]))  # (B, M, E)
        bias = ops.convert_to_tensor(self.output_bias)  # (V,)
        if not self.tie_embeddings:
            logits = ops.cast(self.output_projection(as_rows(x)), "float32") + ops.cast(bias, "float32")  # (B·M, V)
            return ops.reshape(logits, (*ops.shape(vectors)[:-1], self.table_shape[0]))  # (B, M, V)
        return (x, bias) if self.token_embedding is None else compute_tied_logits(self.token_embedding, x, bias)

    def compute_output_spec(self, vectors: Tensor) -> keras.KerasTensor | tuple[keras.KerasTensor, keras.KerasTensor]:
        """Return the spec of float32 logits or of the arguments of `compute_tied_logits`; see `call`."""
        vocabulary_size, width = self.table_shape
        if self.token_embedding is not None or not self.tie_embeddings:
            return keras.KerasTensor((*vectors.shape[:-1], vocabulary_size), "float32")
        transformed_spec = keras.KerasTensor((*vectors.shape[:-1], width), self.compute_dtype)
        return transformed_spec, keras.KerasTensor((vocabulary_size,), self.variable_dtype)


def compute_tied_logits(table: keras.layers.ReversibleEmbedding, vectors: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return token logits, float32 (..., V): the product of vectors and token embeddings, plus a bias.

    Args:
        table: token embedding layer with V rows of width E.
        vectors: float (..., E), the vectors that predict tokens.
        bias: float (V,), or None for no bias.
    """
    if bias is None:
        return ops.cast(table(vectors, reverse=True), "float32")
    logits = ops.cast(table(as_rows(vectors), reverse=True), "float32")  # (n, V)
    logits = logits + ops.cast(bias, "float32")
    return ops.reshape(logits, (*ops.shape(vectors)[:-1], table.input_dim))  # (..., V)


@keras.saving.register_keras_serializable(package="lmzoo")
class ReplacedTokenHead(ConfiguredLayer):
    """Replaced-token detection head: dense layer, activation, linear layer with one output (Clark et al., 2020).

    Args:
        activation: str, activation after the dense layer; see `lmzoo.layers.get_activation`.
        initializer_range: float, standard deviation of the truncated normal initializer.

    Call argument: `sequence` float (B, T, H). Returns float32 logits (B, T).
    """

    def __init__(self, activation: str = "gelu", initializer_range: float = 0.02, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.activation = activation
        self.initializer_range = initializer_range

    def build(self, input_shape: Shape) -> None:
        """Create the dense and the linear layer."""
        width = get_width(input_shape)
        initializer = TruncatedNormal(stddev=self.initializer_range)
        for name, units in (("dense", width), ("logits", 1)):
            layer = Dense(units, kernel_initializer=initializer, dtype=self.dtype_policy, name=name)
            layer.build((None, width))
            setattr(self, name, layer)
        self.restore_created_layers()

    def call(self, sequence: Tensor) -> Tensor:
        """Compute the logits."""
        x = get_activation(self.activation)(self.dense(as_rows(sequence)))  # (B·T, H)
        return ops.reshape(ops.cast(self.logits(x), "float32"), ops.shape(sequence)[:2])

    def compute_output_spec(self, sequence: Tensor) -> keras.KerasTensor:
        """Return the output spec, which is float32 under every dtype policy."""
        return keras.KerasTensor(sequence.shape[:-1], "float32")


@keras.saving.register_keras_serializable(package="lmzoo")
class SpanBoundaries(TransformingHead):
    """Head that computes vectors of a span's tokens from the span's boundaries (Joshi et al., 2020, section 3.2).

    A span is a run of consecutive positions. For each of its tokens, the vectors just before and after the span are
    concatenated with an embedding of the token's offset in the span, and transformed by a dense layer, an activation
    and LayerNorm. The vectors inside the span are not read.

    Args:
        max_span_length: int, number of rows of the offset table; all later tokens of a span share the last row.
        activation: str, activation after the dense layer; see `lmzoo.layers.get_activation`.
        layer_norm_epsilon: float, added to the variance in LayerNorm.
        initializer_range: float, standard deviation of the truncated normal initializer.
        use_bias: bool, whether the dense layer and LayerNorm have biases.

    Call arguments: `sequence` float (B, T, H), the hidden states; `positions` int (B, M), the positions of the tokens
    of all spans in increasing order, padded with 0. Returns float (B, M, H).
    """

    def __init__(
        self,
        max_span_length: int = 20,
        activation: str = "gelu",
        layer_norm_epsilon: float = 1e-12,
        initializer_range: float = 0.02,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            initializer_range=initializer_range, activation=activation, layer_norm_epsilon=layer_norm_epsilon, **kwargs
        )
        self.max_span_length = max_span_length

    def build(self, sequence_shape: Shape, positions_shape: Shape) -> None:
        """Create the offset table, the dense layer and LayerNorm."""
        width = get_width(sequence_shape)
        initializer = TruncatedNormal(stddev=self.initializer_range)
        shape = (self.max_span_length, width)
        self.offset_embeddings = self.add_weight(shape=shape, initializer=initializer, name="offset_embeddings")
        policy = self.dtype_policy
        self.dense = make_normal_dense(
            width, self.initializer_range, use_bias=self.use_bias, dtype=policy, name="dense"
        )
        self.dense.build((None, 3 * width))
        epsilon = self.layer_norm_epsilon
        self.layer_norm = LayerNorm(epsilon=epsilon, center=self.use_bias, dtype=policy, name="layer_norm")
        self.layer_norm.build((None, width))
        self.restore_created_layers()

    def call(self, sequence: Tensor, positions: Tensor) -> Tensor:
        """Compute the vectors of the tokens at `positions`, (B, M, H)."""
        previous_positions = ops.pad(positions[:, :-1], ((0, 0), (1, 0)), constant_values=-1)  # (B, M)
        span_numbers = ops.cumsum(ops.cast(positions != previous_positions + 1, "int32"), axis=1)  # (B, M)
        is_same_span = ops.expand_dims(span_numbers, 2) == ops.expand_dims(span_numbers, 1)  # (B, M, M)
        column_positions = ops.expand_dims(positions, 1)  # (B, 1, M)
        row_positions = ops.expand_dims(positions, 2)  # (B, M, 1)
        num_before = ops.sum(ops.cast(is_same_span & (column_positions < row_positions), "int32"), axis=2)  # (B, M)
        num_after = ops.sum(ops.cast(is_same_span & (column_positions > row_positions), "int32"), axis=2)  # (B, M)
        last_position = ops.shape(sequence)[1] - 1
        left_vectors = gather_positions(sequence, ops.maximum(positions - num_before - 1, 0))  # (B, M, H)
        right_vectors = gather_positions(sequence, ops.minimum(positions + num_after + 1, last_position))  # (B, M, H)
        offsets = ops.minimum(num_before, self.max_span_length - 1)  # (B, M)
        offset_vectors = ops.take(ops.convert_to_tensor(self.offset_embeddings), offsets, axis=0)  # (B, M, H)
        joined_vectors = as_rows(ops.concatenate([left_vectors, right_vectors, offset_vectors], axis=-1))  # (B·M, 3·H)
        return ops.reshape(self.transform(joined_vectors), ops.shape(left_vectors))

    def compute_output_shape(self, sequence_shape: Shape, positions_shape: Shape) -> Shape:
        """Return the output shape (B, M, H)."""
        return (*positions_shape, sequence_shape[-1])


@keras.saving.register_keras_serializable(package="lmzoo")
class SpanHead(TransformingHead):
    """Extractive question-answering head: a linear layer at every position (Devlin et al., 2019, section 4.2).

    Args:
        initializer_range: float, standard deviation of the truncated normal initializer.
        activation: str, activation of a dense layer before the linear layer; see `lmzoo.layers.get_activation`. None
            for no dense layer.
        use_bias: bool, whether the dense layer and LayerNorm have biases.
        layer_norm_epsilon: float, added to the variance in a LayerNorm after the activation; None for no LayerNorm.

    Call arguments: `sequence` float (B, T, H), `padding_mask` int or bool (B, T). Returns float32 logits (B, T, 2)
    of the answer's start and end. They are -1e9 at padding, so that a softmax over the positions does not depend on the
    amount of padding.
    """

    def __init__(
        self,
        initializer_range: float = 0.02,
        activation: str | None = None,
        use_bias: bool = True,
        layer_norm_epsilon: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(initializer_range, activation, use_bias, layer_norm_epsilon, **kwargs)
        self.logits = make_normal_dense(2, initializer_range, dtype=self.dtype_policy, name="logits")

    def build(self, sequence_shape: Shape, padding_mask_shape: Shape | None = None) -> None:
        """Create the weights of the dense layers and LayerNorm."""
        self.build_transform((None, sequence_shape[-1]))
        self.logits.build((None, sequence_shape[-1]))

    def call(self, sequence: Tensor, padding_mask: Tensor) -> Tensor:
        """Compute the logits."""
        logits = ops.cast(self.logits(self.transform(as_rows(sequence))), "float32")  # (B·T, 2)
        logits = ops.reshape(logits, (*ops.shape(sequence)[:2], 2))  # (B, T, 2)
        return ops.where(ops.expand_dims(ops.cast(padding_mask, "bool"), -1), logits, -1e9)

    def compute_output_spec(self, sequence: Tensor, padding_mask: Tensor) -> keras.KerasTensor:
        """Return the output spec, which is float32 under every dtype policy."""
        return keras.KerasTensor((*sequence.shape[:-1], 2), "float32")
