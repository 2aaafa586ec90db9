"""DeBERTa-v3 (He et al., 2021, https://arxiv.org/abs/2111.09543)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from lmzoo.common.arguments import is_integer, require
from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.families.embeddings import build_embeddings
from lmzoo.families.encoder_config import EncoderConfig
from lmzoo.families.transformer import TransformerBackbone
from lmzoo.layers import DisentangledBlock, DistanceEmbedding, TransformerEmbedding
from lmzoo.layers.adapted import Embedding
from lmzoo.layers.embeddings import check_length
from lmzoo.layers.initializers import TruncatedNormal
from lmzoo.layers.rows import gather_positions

_DECODER_STEPS = 2  # number of times that the enhanced mask decoder applies the last block


@dataclass(frozen=True, kw_only=True)
class DebertaV3Config(EncoderConfig):
    """Configuration of `DebertaV3Backbone`: an `EncoderConfig` with settings for relative distances.

    Example: see `DebertaV3Backbone`.
    """

    num_segments: int = 0
    layer_norm_epsilon: float = 1e-7
    bucket_size: int = 256
    max_relative_positions: Any = -1  # an int; -1 becomes `max_sequence_length`
    enhanced_mask_decoder: bool = False

    without_axis = ("max_sequence_length",)  # see `lmzoo.checkpoints.engine.check_axes`

    def __post_init__(self) -> None:
        """Set `max_relative_positions` if it is -1, and check all fields."""
        super().__post_init__()
        require(self.bucket_size > 1, "bucket_size", "at least 2", self.bucket_size)
        max_distance = self.max_relative_positions
        is_valid = is_integer(max_distance, 2) or max_distance == -1
        require(is_valid, "max_relative_positions", "an integer of at least 2, or -1", max_distance)
        if max_distance == -1:
            # A copy with another `max_sequence_length` keeps the scale that the weights were trained with.
            require(self.max_sequence_length > 1, "max_sequence_length", "at least 2", self.max_sequence_length)
            object.__setattr__(self, "max_relative_positions", self.max_sequence_length)


@keras.saving.register_keras_serializable(package="lmzoo")
class DebertaV3Backbone(TransformerBackbone):
    """DeBERTa-v3 encoder: BERT with disentangled attention instead of position embeddings, without a pooler.

    The inputs are a dict of int32 arrays (B, T) for B texts of T tokens: `token_ids`, `padding_mask` (1 at real tokens)
    and, if `num_segments` is above 1, `segment_ids`.

    The outputs are a dict: `sequence_output`, the last hidden states (B, T, H); `pooled_output`, the last hidden state
    of `[CLS]` (B, H); and `hidden_states`, a tuple of num_layers + 1 tensors (B, T, H), starting with the embeddings.

    Args:
        vocabulary_size: number of token ids.
        num_layers: number of blocks.
        num_heads: number of attention heads of each block; must divide `hidden_dim`.
        hidden_dim: width of the hidden states, H.
        intermediate_dim: width of the feed-forward networks' hidden layer.
        dropout: rate in [0, 1) for embeddings, vectors of distances, residual branches and attention probabilities.
        max_sequence_length: longest sequence that tasks create, in tokens. The layers accept any length.
        num_segments: number of segments; 0 for no segment table, as in the published models.
        activation: name of the feed-forward activation; see `lmzoo.layers.get_activation`.
        layer_norm_epsilon: number in (0, 1) that is added to the variance in every LayerNorm.
        initializer_range: standard deviation of the truncated normal initializer, at least 0.
        bucket_size: number of rows of the distance table in each direction. Each distance of up to half of
            `bucket_size` has its own row; longer distances share rows on a logarithmic scale.
        max_relative_positions: distance at which the logarithmic scale ends; -1 is replaced by `max_sequence_length`.
            Copies with another `max_sequence_length` keep the scale.
        enhanced_mask_decoder: whether masked tokens are also predicted from absolute positions (He et al., 2020,
            section 3.2). This adds a table of `max_sequence_length` positions, which is used for nothing else.
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

    backbone = lmzoo.models.DebertaV3Backbone(
        vocabulary_size=101, num_layers=2, num_heads=3, hidden_dim=12, intermediate_dim=24
    )
    ids = np.array([[1, 17, 23, 2, 0]], "int32")
    backbone({"token_ids": ids, "padding_mask": ids > 0})["pooled_output"].shape  # (1, 12)
    ```
    """

    config_class = DebertaV3Config
    has_pooler = False
    generator_embeddings = "disentangled"
    absolute_positions: Embedding | None = None

    @classmethod
    def make_layers(cls, config: Any, dtype: keras.DTypePolicy) -> dict[str, Any]:
        layers = super().make_layers(config, dtype)
        layers["distances"] = DistanceEmbedding(
            config.bucket_size,
            config.max_relative_positions,
            config.layer_norm_epsilon,
            config.initializer_range,
            dtype=dtype,
            name="distances",
        )
        if config.enhanced_mask_decoder:
            initializer = TruncatedNormal(stddev=config.initializer_range)
            sizes = config.max_sequence_length, config.hidden_dim
            table = Embedding(*sizes, embeddings_initializer=initializer, dtype=dtype, name="absolute_positions")
            table.build((None,))  # it is not part of the graph, which builds the other layers
            layers["absolute_positions"] = table
        return layers

    @classmethod
    def make_embeddings(
        cls, config: EncoderConfig, dtype: keras.DTypePolicy, width: int | None = None
    ) -> TransformerEmbedding:
        """Return the embedding layer, which adds no position embeddings."""
        return build_embeddings(
            config,
            dtype,
            max_sequence_length=None,
            num_segments=config.num_segments,
            layer_norm_epsilon=config.layer_norm_epsilon,
        )

    @classmethod
    def make_block(
        cls, config: EncoderConfig, dtype: keras.DTypePolicy, name: str, **options: Any
    ) -> DisentangledBlock:
        """Return a Transformer block with disentangled attention."""
        return DisentangledBlock(*config.block_arguments, dtype=dtype, name=name, **options)

    @classmethod
    def compute_states(cls, layers: dict[str, Any], x: Tensor, mask: Tensor) -> list[Tensor]:
        distance_vectors = layers["distances"](x)  # (R, H)
        states = []
        for block in layers["blocks"]:
            x = block(x, mask, distance_vectors)
            states.append(x)
        return states

    @classmethod
    def compute_pooled(cls, layers: dict[str, Any], states: list[Tensor], mask: Tensor) -> Tensor:
        block_inputs = states[-2]
        queries = block_inputs[:, :1]  # (B, 1, H)
        positions = ops.zeros_like(queries[:, :, 0], dtype="int32")  # (B, 1)
        return layers["blocks"][-1](block_inputs, mask, layers["distances"](block_inputs), queries, positions)[:, 0]

    def compute_vectors_at(self, inputs: Features, positions: Tensor, outputs: Features) -> Tensor:
        block_inputs = outputs["hidden_states"][-2]  # (B, T, H)
        mask = ops.cast(inputs["padding_mask"], "bool")  # (B, T)
        positions = ops.cast(positions, "int32")
        return self.blocks[-1](
            block_inputs, mask, self.distances(block_inputs), gather_positions(block_inputs, positions), positions
        )

    @property
    def mask_decoder_variables(self) -> list[keras.Variable]:
        """Variables of the table of absolute positions; empty without an enhanced mask decoder."""
        return [] if self.absolute_positions is None else self.absolute_positions.variables

    def compute_masked_vectors_at(self, inputs: Features, positions: Tensor, outputs: Features) -> Tensor:
        if self.absolute_positions is None:
            return self.compute_vectors_at(inputs, positions, outputs)
        layers = {"absolute_positions": self.absolute_positions, "blocks": self.blocks, "distances": self.distances}
        mask = ops.cast(inputs["padding_mask"], "bool")  # (B, T)
        return self.compute_masked_vectors(layers, outputs["hidden_states"], mask, positions)

    @classmethod
    def compute_masked_vectors(
        cls, layers: dict[str, Any], states: list[Tensor], mask: Tensor, positions: Tensor
    ) -> Tensor:
        if "absolute_positions" not in layers:
            return super().compute_masked_vectors(layers, states, mask, positions)
        block_inputs = states[-2]  # (B, T, H)
        check_length(ops.shape(block_inputs)[1], layers["absolute_positions"].input_dim)
        positions = ops.cast(positions, "int32")
        distance_vectors = layers["distances"](block_inputs)  # (R, H)
        vectors = gather_positions(block_inputs, positions) + layers["absolute_positions"](positions)  # (B, M, H)
        for _ in range(_DECODER_STEPS):
            vectors = layers["blocks"][-1](block_inputs, mask, distance_vectors, vectors, positions)
        return vectors

    def attention_scores(self, inputs: Features) -> list[Tensor]:
        """Return the attention probabilities of every block without dropout; see `TransformerBackbone`."""
        hidden_states = self(inputs)["hidden_states"]
        mask = ops.cast(inputs["padding_mask"], "bool")  # (B, T)
        distance_vectors = self.distances(hidden_states[0])  # (R, H)
        return [
            block.attention_scores(block_input, mask, distance_vectors)
            for block, block_input in zip(self.blocks, hidden_states, strict=False)
        ]
