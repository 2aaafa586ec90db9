"""T5 and its encoder (Raffel et al., 2020, https://arxiv.org/abs/1910.10683)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import keras
from keras import ops

from lmzoo.common.arguments import is_integer, require
from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.families.embeddings import PLAIN, build_embeddings
from lmzoo.families.encoder_config import EncoderConfig, require_multiple, require_positive
from lmzoo.families.encoder_decoder import EncoderDecoderBackbone, compute_states
from lmzoo.families.transformer import TransformerBackbone
from lmzoo.layers import Dropout, MeanPooler, RelativePositionBias, RMSNorm, TransformerBlock, TransformerEmbedding
from lmzoo.layers.adapted import Dense, make_normal_dense
from lmzoo.layers.initializers import TruncatedNormal
from lmzoo.training import FineTuningRecipe

_MAX_HEADS_RATIO = 64  # maximum total width of the heads, as a multiple of `hidden_dim`; 16 in a published model


@dataclass(frozen=True, kw_only=True)
class T5EncoderConfig(EncoderConfig):
    """Configuration of `T5EncoderBackbone`: an `EncoderConfig` with buckets of relative positions.

    Example: see `T5EncoderBackbone`.
    """

    num_segments: int = 0
    activation: str = "relu"
    layer_norm_epsilon: float = 1e-6
    initializer_range: Any = None  # a float; None becomes hidden_dim ** -0.5
    head_dim: Any = None  # an int; None becomes hidden_dim / num_heads
    gated: bool = False
    num_buckets: int = 32
    max_distance: int = 128

    has_segments = False
    without_axis = ("max_sequence_length",)  # see `lmzoo.checkpoints.engine.check_axes`

    def __post_init__(self) -> None:
        """Set missing fields to their defaults, and check all fields.

        Raises:
            ValueError: If a value is invalid; the message gives the field, its value and the allowed values.
        """
        require_positive(self, "hidden_dim")
        if self.initializer_range is None:
            object.__setattr__(self, "initializer_range", self.hidden_dim**-0.5)
        super().__post_init__()
        require(isinstance(self.gated, bool), "gated", "True or False", self.gated)
        is_valid = self.num_buckets >= 4 and self.num_buckets % 2 == 0
        require(is_valid, "num_buckets", "an even integer of at least 4", self.num_buckets)
        minimum = self.num_buckets // 2 + 1
        require(self.max_distance >= minimum, "max_distance", f"an integer of at least {minimum}", self.max_distance)

    def check_heads(self) -> None:
        """Set `head_dim` to its default if it is None, and check it.

        Raises:
            ValueError: If `head_dim` is invalid, or is None and `hidden_dim` is not a multiple of `num_heads`.
        """
        if self.head_dim is None:
            require_multiple(self, "hidden_dim", "num_heads")
            object.__setattr__(self, "head_dim", self.hidden_dim // self.num_heads)
        max_width = _MAX_HEADS_RATIO * self.hidden_dim // self.num_heads
        require(is_integer(self.head_dim, 1, max_width), "head_dim", f"an integer from 1 to {max_width}", self.head_dim)

    @property
    def initializer_factor(self) -> float:
        """Initial standard deviation of the token embeddings; the deviations of kernels are proportional to it."""
        return float(self.initializer_range * self.hidden_dim**0.5)


@dataclass(frozen=True, kw_only=True)
class T5Config(T5EncoderConfig):
    """Configuration of `T5Backbone`: a `T5EncoderConfig` with a decoder.

    Example: see `T5Backbone`.
    """

    numbered: ClassVar[Mapping[str, str]] = {"i": "num_layers", "j": "decoder_layers"}

    decoder_layers: Any = None  # an int; None becomes num_layers
    tie_embeddings: bool = True

    def __post_init__(self) -> None:
        """Set missing fields to their defaults, and check all fields.

        Raises:
            ValueError: If a value is invalid; the message gives the field, its value and the allowed values.
        """
        if self.decoder_layers is None:
            object.__setattr__(self, "decoder_layers", self.num_layers)
        super().__post_init__()
        require_positive(self, "decoder_layers")
        require(isinstance(self.tie_embeddings, bool), "tie_embeddings", "True or False", self.tie_embeddings)


def make_block(config: T5EncoderConfig, dtype: keras.DTypePolicy, name: str, **options: Any) -> TransformerBlock:
    """Return a block of the encoder or decoder, without biases, with the initialization of Raffel et al. (2020)."""
    block = TransformerBlock(
        *config.block_arguments,
        norm="pre",
        use_bias=False,
        rms_norm=True,
        gated=config.gated,
        head_dim=config.head_dim,
        attention_scale=1.0,
        hidden_dropout=True,
        dtype=dtype,
        name=name,
        **options,
    )
    factor = config.initializer_factor
    # Attention scores are not scaled: instead, the query kernel has smaller initial values.
    query_deviation = config.initializer_range * config.head_dim**-0.5
    for attention in filter(None, (block.attention, block.source_attention)):
        attention.query.kernel_initializer = TruncatedNormal(stddev=query_deviation)
        attention.output_dense.kernel_initializer = TruncatedNormal(stddev=factor * attention.heads_width**-0.5)
    block.output_dense.kernel_initializer = TruncatedNormal(stddev=factor * config.intermediate_dim**-0.5)
    return block


def make_embeddings(config: T5EncoderConfig, dtype: keras.DTypePolicy) -> TransformerEmbedding:
    """Return the embedding layer, without position embeddings."""
    deviation = config.initializer_factor
    return build_embeddings(config, dtype, position_table=False, **{**PLAIN, "initializer_range": deviation})


def make_bias(config: T5EncoderConfig, dtype: keras.DTypePolicy, name: str, causal: bool) -> RelativePositionBias:
    """Return the layer that computes the position bias of the encoder or, if `causal`, of the decoder."""
    sizes = config.num_heads, config.num_buckets, config.max_distance
    return RelativePositionBias(*sizes, config.initializer_range, causal, dtype=dtype, name=name)


@keras.saving.register_keras_serializable(package="lmzoo")
class T5EncoderBackbone(TransformerBackbone):
    """Encoder of T5: relative position biases, RMSNorm before the sublayers, and no bias vectors in dense layers.

    `T5Backbone.make_encoder` returns the encoder of a trained model.

    The inputs are a dict of int32 arrays (B, T) for B texts of T tokens: `token_ids` and `padding_mask` (1 at real
    tokens).

    The outputs are a dict: `sequence_output`, the last hidden states (B, T, H); `pooled_output`, the mean of the
    `sequence_output` over real tokens (B, H); and `hidden_states`, a tuple of num_layers + 1 tensors (B, T, H), from
    the embeddings to the output of the final RMSNorm.

    Args:
        vocabulary_size: number of token ids.
        num_layers: number of blocks.
        num_heads: number of attention heads of each block.
        hidden_dim: width of the hidden states, H.
        intermediate_dim: width of the feed-forward networks' hidden layer.
        dropout: rate in [0, 1) for embeddings, residual branches, hidden layers, attention probabilities and outputs.
        max_sequence_length: longest input in tokens. No weights depend on it.
        num_segments: 0, since T5 has no segments.
        activation: name of the feed-forward activation; see `lmzoo.layers.get_activation`.
        layer_norm_epsilon: number in (0, 1) that is added to the mean square in every RMSNorm.
        initializer_range: standard deviation of the truncated normal initializer of most kernels; by default
            `hidden_dim ** -0.5`. The standard deviations of other weights are multiples of it.
        head_dim: width of an attention head; by default `hidden_dim / num_heads`.
        gated: whether the feed-forward networks are gated linear units, as in T5 1.1.
        num_buckets: number of rows of the bias table, even, at least 4; see `lmzoo.layers.RelativePositionBias`.
        max_distance: distance from which all positions share a bucket.
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

    backbone = lmzoo.models.T5EncoderBackbone(
        vocabulary_size=101, num_layers=2, num_heads=3, hidden_dim=12, intermediate_dim=24
    )
    ids = np.array([[17, 23, 1, 0]], "int32")
    backbone({"token_ids": ids, "padding_mask": ids > 0})["pooled_output"].shape  # (1, 12)
    ```
    """

    config_class = T5EncoderConfig
    # Adam's steps do not depend on the scale of the weights, and T5's are initialized with larger values than BERT's.
    learning_rate_factor = 3.0
    norm = "pre"
    has_pooler = False
    use_bias = False

    @classmethod
    def make_layers(cls, config: Any, dtype: keras.DTypePolicy) -> dict[str, Any]:
        return {
            **super().make_layers(config, dtype),
            "embeddings": make_embeddings(config, dtype),
            "position_bias": make_bias(config, dtype, "position_bias", causal=False),
            "final_norm": RMSNorm(config.layer_norm_epsilon, dtype=dtype, name="final_norm"),
            "output_dropout": Dropout(config.dropout, dtype=dtype, name="output_dropout"),
        }

    @classmethod
    def make_block(cls, config: Any, dtype: keras.DTypePolicy, name: str, **options: Any) -> TransformerBlock:
        return make_block(config, dtype, name, **options)

    @classmethod
    def compute_hidden_states(cls, layers: dict[str, Any], inputs: Features, mask: Tensor) -> list[Tensor]:
        stack_layers = (layers[name] for name in ("blocks", "position_bias", "final_norm", "output_dropout"))
        return compute_states(layers["embeddings"](**inputs), mask, *stack_layers)

    @classmethod
    def compute_pooled(cls, layers: dict[str, Any], states: list[Tensor], mask: Tensor) -> Tensor:
        return MeanPooler(dtype=layers["embeddings"].dtype_policy, name="mean_pooler")(states[-1], mask)


@keras.saving.register_keras_serializable(package="lmzoo")
class T5Backbone(EncoderDecoderBackbone):
    """T5, an encoder-decoder Transformer that reads a text with a task prefix and generates a text.

    The arguments cover T5 (https://arxiv.org/abs/1910.10683), T5 1.1 (`gated=True`, `activation="gelu_tanh"`,
    `tie_embeddings=False`) and Flan-T5 (https://arxiv.org/abs/2210.11416), which is a fine-tuned T5 1.1.

    The inputs are a dict of int32 arrays: `token_ids` and `padding_mask` (B, T) hold the source, `decoder_token_ids`
    and `decoder_padding_mask` (B, S) the target so far, which starts with the padding token. The masks are 1 at real
    tokens, which are on the left.

    The outputs are a dict. The decoder computes `sequence_output`, its last hidden states (B, S, H); `pooled_output`,
    the last hidden state of the last real token (B, H); and `hidden_states`, a tuple of decoder_layers + 1 tensors
    (B, S, H). The encoder computes `encoder_output`, its last hidden states (B, T, H), and `encoder_hidden_states`, a
    tuple of num_layers + 1 tensors (B, T, H). Both tuples start with the embeddings.

    Args:
        vocabulary_size: number of token ids in the vocabulary that source and target share.
        num_layers: number of encoder blocks.
        num_heads: number of attention heads of each block.
        hidden_dim: width of the hidden states, H.
        intermediate_dim: width of the feed-forward networks' hidden layer.
        dropout: rate in [0, 1) for embeddings, residual branches, hidden layers, attention probabilities and outputs.
        max_sequence_length: longest source or target in tokens. No weights depend on it.
        num_segments: 0, since T5 has no segments.
        activation: name of the feed-forward activation; see `lmzoo.layers.get_activation`.
        layer_norm_epsilon: number in (0, 1) that is added to the mean square in every RMSNorm.
        initializer_range: standard deviation of the truncated normal initializer of most kernels; by default
            `hidden_dim ** -0.5`. The standard deviations of other weights are multiples of it.
        head_dim: width of an attention head; by default `hidden_dim / num_heads`.
        gated: whether the feed-forward networks are gated linear units.
        num_buckets: number of rows of the bias tables, even, at least 4; see `lmzoo.layers.RelativePositionBias`.
        max_distance: distance from which all positions share a bucket.
        decoder_layers: number of decoder blocks; by default `num_layers`.
        tie_embeddings: whether the logits are products of the token embeddings and the last hidden states, which are
            first divided by the square root of H. If False, the logits have a kernel of their own.
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

    backbone = lmzoo.models.T5Backbone(
        vocabulary_size=101, num_layers=2, num_heads=3, hidden_dim=12, intermediate_dim=24
    )
    source, target = np.array([[17, 23, 1, 0]], "int32"), np.array([[0, 41, 7]], "int32")
    inputs = {"token_ids": source, "padding_mask": source > 0}
    inputs |= {"decoder_token_ids": target, "decoder_padding_mask": np.ones_like(target)}
    backbone(inputs)["sequence_output"].shape  # (1, 3, 12)
    ```
    """

    config_class = T5Config
    encoder_class = T5EncoderBackbone
    has_output_bias = False
    # The paper's constant learning rate for fine-tuning (section 3.1.2).
    usual_recipes: ClassVar[Mapping[str, FineTuningRecipe]] = {"seq2seq_lm": FineTuningRecipe(1e-3)}
    output_projection: Dense | None = None  # computes logits if they are not tied to the embeddings

    @classmethod
    def make_layers(cls, config: T5Config, dtype: keras.DTypePolicy) -> dict[str, Any]:
        decoder_options = {"mask": "causal", "reads_source": True}
        layers: dict[str, Any] = {
            "embeddings": make_embeddings(config, dtype),
            "encoder_bias": make_bias(config, dtype, "encoder_bias", causal=False),
            "encoder_blocks": [make_block(config, dtype, f"encoder_block_{i}") for i in range(config.num_layers)],
            "decoder_bias": make_bias(config, dtype, "decoder_bias", causal=True),
            "decoder_blocks": [
                make_block(config, dtype, f"decoder_block_{i}", **decoder_options) for i in range(config.decoder_layers)
            ],
            "encoder_norm": RMSNorm(config.layer_norm_epsilon, dtype=dtype, name="encoder_norm"),
            "decoder_norm": RMSNorm(config.layer_norm_epsilon, dtype=dtype, name="decoder_norm"),
            "output_dropout": Dropout(config.dropout, dtype=dtype, name="output_dropout"),
        }
        if not config.tie_embeddings:
            arguments = {"use_bias": False, "dtype": dtype, "name": "output_projection"}
            projection = make_normal_dense(config.vocabulary_size, config.initializer_range, **arguments)
            projection.build((None, config.hidden_dim))  # it is not part of the graph, which builds the other layers
            layers["output_projection"] = projection
        return layers

    def token_logits(self, vectors: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.output_projection is None:
            vectors = vectors * ops.cast(self.config.hidden_dim**-0.5, vectors.dtype)
            return super().token_logits(vectors, bias)
        logits = ops.cast(self.output_projection(vectors), "float32")  # (..., V)
        return logits if bias is None else logits + ops.cast(bias, "float32")
