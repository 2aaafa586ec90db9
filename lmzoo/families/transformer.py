"""Base class of Transformer families, both encoders and decoders."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import keras
from keras import ops

from lmzoo.common.arguments import as_python_values
from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.families.backbone import Backbone
from lmzoo.families.embeddings import build_embeddings
from lmzoo.families.encoder_config import EncoderConfig
from lmzoo.layers import Dense, FirstTokenPooler, GatherPositions, LayerNorm, TransformerBlock, TransformerEmbedding
from lmzoo.layers.adapted import make_normal_dense
from lmzoo.layers.attention import Cache
from lmzoo.layers.heads import MaskedLMHead
from lmzoo.layers.initializers import TruncatedNormal
from lmzoo.layers.rows import gather_positions


class TransformerBackbone(Backbone):
    """Base class of Transformer encoders and decoders (Vaswani et al., 2017; Devlin et al., 2019).

    The model consists of embeddings, blocks and, in some families, a pooler.

    A family sets `config_class` and overrides these class attributes where it differs from BERT:

    * `causal`: whether each position sees only itself and earlier positions. The `pooled_output` of a causal model is
      the vector of the last token, the only token that sees the whole text.
    * `norm`: `"post"` or `"pre"`, the place of LayerNorm in the blocks; see `lmzoo.layers.TransformerBlock`. With
      `"pre"`, a final LayerNorm follows the last block, and its output is the last hidden state.
    * `embedding_norm`: whether the embeddings have a LayerNorm.
    * `has_pooler`: whether a dense layer computes `pooled_output`. Causal models have none.
    * `use_bias`: whether dense layers and LayerNorms have biases.
    * `position_table`: whether learned position embeddings are added to the token embeddings.
    * `scales_outputs`: whether the kernels that write to the residual stream are initialized with smaller values: their
      standard deviation is divided by the square root of the number of these kernels (Radford et al., 2019, section
      2.3).

    A family with relative positions adds a layer `position_bias` in `make_layers`, such as
    `lmzoo.layers.RelativePositionBias`. The output of this layer is added to the attention scores of all blocks.
    """

    norm: ClassVar[str] = "post"
    embedding_norm: ClassVar[bool] = True
    has_pooler: ClassVar[bool] = True
    use_bias: ClassVar[bool] = True
    position_table: ClassVar[bool] = True
    scales_outputs: ClassVar[bool] = False
    position_bias: keras.layers.Layer | None = None

    @property
    def id_counts(self) -> dict[str, int]:
        """Number of valid ids, counted from 0, for each input whose values are checked."""
        num_ids = {"token_ids": self.config.vocabulary_size, "padding_mask": 2, "segment_ids": self.config.num_segments}
        return {name: num_ids[name] for name in self.input}

    @classmethod
    def assemble(cls, config: Any, dtype: keras.DTypePolicy) -> tuple[dict[str, Any], Features, Features]:
        """Build the graph, and return its layers by attribute name, its symbolic inputs and its symbolic outputs.

        A family can override the steps `make_layers`, `compute_embeddings`, `compute_states` and `compute_pooled`.
        """
        layers = cls.make_layers(config, dtype)
        inputs = make_inputs(config)
        mask = ops.cast(inputs["padding_mask"], "bool")  # (B, T)
        states = cls.compute_hidden_states(layers, inputs, mask)
        pooled_output = cls.compute_pooled(layers, states, mask)  # (B, H)
        outputs = {"sequence_output": states[-1], "pooled_output": pooled_output, "hidden_states": tuple(states)}
        return layers, inputs, outputs

    @classmethod
    def compute_hidden_states(cls, layers: dict[str, Any], inputs: Features, mask: Tensor) -> list[Tensor]:
        """Return all hidden states as float tensors (B, T, H): the embeddings and the output of each block.

        The final LayerNorm, if any, is applied to the output of the last block.
        """
        embeddings = cls.compute_embeddings(layers, inputs)
        states = [embeddings, *cls.compute_states(layers, embeddings, mask)]
        if "final_norm" in layers:
            states[-1] = layers["final_norm"](states[-1])
        return states

    # === Steps ===

    @classmethod
    def make_layers(cls, config: Any, dtype: keras.DTypePolicy) -> dict[str, Any]:
        """Return the model's layers by attribute name."""
        layers: dict[str, Any] = {"embeddings": cls.make_embeddings(config, dtype)}
        indices = range(config.num_layers)
        layers["blocks"] = [
            cls.make_block(config, dtype, f"block_{i}", **cls.block_options(config, i)) for i in indices
        ]
        if cls.norm == "pre":
            epsilon = config.layer_norm_epsilon
            layers["final_norm"] = LayerNorm(epsilon=epsilon, center=cls.use_bias, dtype=dtype, name="final_norm")
        if cls.has_pooler and not cls.causal:
            layers["pooler"] = FirstTokenPooler(config.hidden_dim, config.initializer_range, dtype=dtype, name="pooler")
        return layers

    @classmethod
    def compute_embeddings(cls, layers: dict[str, Any], inputs: Features) -> Tensor:
        """Return the first hidden states, float (B, T, H): the embeddings, projected to width H if narrower."""
        x = layers["embeddings"](**inputs)  # (B, T, E)
        return layers["embedding_projection"](x) if "embedding_projection" in layers else x  # (B, T, H)

    @classmethod
    def compute_states(cls, layers: dict[str, Any], x: Tensor, mask: Tensor) -> list[Tensor]:
        """Apply the blocks to the first hidden states, and return the output of each block, float (B, T, H)."""
        bias = compute_position_bias(layers.get("position_bias"), x)
        states = []
        for block in layers["blocks"]:
            x = block(x, mask, bias=bias)
            states.append(x)
        return states

    @classmethod
    def compute_pooled(cls, layers: dict[str, Any], states: list[Tensor], mask: Tensor) -> Tensor:
        """Return one vector per text, float (B, H), given all hidden states and the mask of real tokens."""
        if cls.causal:
            last_positions = ops.maximum(ops.sum(ops.cast(mask, "int32"), axis=1, keepdims=True) - 1, 0)  # (B, 1)
            gather = GatherPositions(dtype=layers["embeddings"].dtype_policy, name="last_token")
            return gather(states[-1], last_positions)[:, 0]
        # The last block is applied again, only to the first position: compiled code leaves out the outputs that a task
        # does not use, such as the last block's output at all positions.
        bias = compute_position_bias(layers.get("position_bias"), states[-2])
        bias = None if bias is None else bias[:, :, :1]  # (1, N, 1, T)
        pooled_output = layers["blocks"][-1](states[-2], mask, states[-2][:, :1], bias=bias)  # (B, 1, H)
        pooled_output = layers["final_norm"](pooled_output) if "final_norm" in layers else pooled_output
        return layers["pooler"](pooled_output) if "pooler" in layers else pooled_output[:, 0]

    @classmethod
    def compute_masked_vectors(
        cls, layers: dict[str, Any], states: list[Tensor], mask: Tensor, positions: Tensor
    ) -> Tensor:
        """Return the vectors, float (B, M, H), from which a head predicts the tokens at masked `positions`."""
        return gather_positions(states[-1], positions)

    @classmethod
    def make_embeddings(
        cls, config: EncoderConfig, dtype: keras.DTypePolicy, width: int | None = None
    ) -> TransformerEmbedding:
        """Return the embedding layer, whose vectors have the width `width`, by default `config.hidden_dim`."""
        return build_embeddings(
            config,
            dtype,
            hidden_dim=width or config.hidden_dim,
            num_segments=config.num_segments,
            layer_norm_epsilon=config.layer_norm_epsilon,
            first_position=config.first_position,
            normalize=cls.embedding_norm,
            position_table=cls.position_table,
            use_bias=cls.use_bias,
        )

    @classmethod
    def make_embedding_projection(cls, config: EncoderConfig, dtype: keras.DTypePolicy) -> Dense:
        """Return the layer that projects narrower embeddings to the width of the hidden states."""
        return make_normal_dense(config.hidden_dim, config.initializer_range, dtype=dtype, name="embedding_projection")

    @classmethod
    def make_block(cls, config: EncoderConfig, dtype: keras.DTypePolicy, name: str, **options: Any) -> TransformerBlock:
        """Return a Transformer block; `options` are the arguments from `block_options`."""
        block = TransformerBlock(
            *config.block_arguments,
            mask="causal" if cls.causal else "padding",
            norm=cls.norm,
            use_bias=cls.use_bias,
            dtype=dtype,
            name=name,
            **options,
        )
        if cls.scales_outputs:
            deviation = config.initializer_range / math.sqrt(2 * config.num_layers)
            for dense in (block.attention.output_dense, block.output_dense):
                dense.kernel_initializer = TruncatedNormal(stddev=deviation)
        return block

    @classmethod
    def block_options(cls, config: Any, index: int) -> dict[str, Any]:
        """Return the arguments of `make_block` that differ between blocks, for the block at `index`, counted from 0."""
        return {}

    def make_masked_lm_head(self, activation: str, layer_norm_epsilon: float, **settings: Any) -> MaskedLMHead:
        return super().make_masked_lm_head(activation, layer_norm_epsilon, **{"use_bias": self.use_bias, **settings})

    def attention_scores(self, inputs: Features) -> list[Tensor]:
        """Return the attention probabilities of every block, without dropout.

        Args:
            inputs: the backbone's inputs, a dict of (B, T) tensors.

        Returns:
            One tensor per block, float (B, heads, T, T). For each token, the probabilities sum to 1 over the real
            tokens or, in causal models, over the token itself and earlier tokens.

        Raises:
            ValueError: If the inputs are not valid for the backbone.

        Example:

        ```python
        import lmzoo

        embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased")
        scores = embedder.backbone.attention_scores(embedder.preprocessor(["A quiet film."]))
        scores[0]  # (1, 4, 6, 6)
        ```
        """
        hidden_states = self(inputs)["hidden_states"]
        mask = ops.cast(inputs["padding_mask"], "bool")  # (B, T)
        bias = compute_position_bias(self.position_bias, hidden_states[0])
        return [
            block.attention_scores(block_input, mask, bias)
            for block, block_input in zip(self.blocks, hidden_states, strict=False)
        ]

    def empty_cache(self, batch: int, length: int) -> list[Cache]:
        """Return an empty cache for `call_with_cache`, with room for `length` positions of `batch` sequences."""
        return [block.attention.empty_cache(batch, length) for block in self.blocks]

    def call_with_cache(self, token_ids: Tensor, cache: list[Cache], index: int | Tensor) -> tuple[Tensor, list[Cache]]:
        """Read new tokens after the tokens in the cache, and return their last hidden states and the new cache.

        Args:
            token_ids: int (B, S), ids of S new tokens per sequence.
            cache: cache returned by `empty_cache` or by an earlier call; its tensors have the batch as their first
                axis.
            index: int or scalar int tensor, position of the first new token.

        Returns:
            The `sequence_output` at the new tokens, float (B, S, H), and the cache with the new tokens.

        Raises:
            ValueError: If the model is not causal, or the cache is too short for the new tokens. (If `index` is a
                tensor, only the shapes are checked.)
        """
        if not self.causal:
            raise ValueError(f"This {type(self).__name__} is not causal: what a token means depends on later ones.")
        index = as_python_values(index)  # Keras turns NumPy integers into tensors, which the layers do not check
        x = self.embeddings(token_ids, index=index)  # (B, S, H)
        mask = ops.ones((1, ops.shape(cache[0][0])[2]), "bool")  # (1, T); the causal mask hides empty positions
        new_cache = []
        for block, block_cache in zip(self.blocks, cache, strict=True):
            x, new_block_cache = block(x, mask, cache=block_cache, index=index)  # (B, S, H)
            new_cache.append(new_block_cache)
        return self.final_norm(x) if self.norm == "pre" else x, new_cache

    def vectors_at(self, inputs: Features, positions: Tensor, outputs: Features | None = None) -> Tensor:
        """Return the last hidden states at chosen positions; see `Backbone.vectors_at`.

        Compiled code computes the last block only for these positions.

        Raises:
            ValueError: If the model is causal.
        """
        if self.causal:
            raise ValueError(
                f"`vectors_at` lets chosen positions attend to all others, but this {type(self).__name__} is causal: "
                "each position sees only itself and earlier ones. Take `sequence_output` at the positions instead."
            )
        return super().vectors_at(inputs, positions, outputs)

    def compute_vectors_at(self, inputs: Features, positions: Tensor, outputs: Features) -> Tensor:
        block_inputs = outputs["hidden_states"][-2]  # (B, T, H)
        mask = ops.cast(inputs["padding_mask"], "bool")  # (B, T)
        bias = compute_position_bias(self.position_bias, block_inputs, positions)
        queries = gather_positions(block_inputs, positions)  # (B, M, H)
        vectors = self.blocks[-1](block_inputs, mask, queries, positions=positions, bias=bias)  # (B, M, H)
        return self.final_norm(vectors) if self.norm == "pre" else vectors


def compute_position_bias(
    layer: keras.layers.Layer | None, x: Tensor, positions: Tensor | None = None
) -> Tensor | None:
    """Return the position bias on attention scores, or None if `layer` is None.

    Args:
        layer: the family's `position_bias`, or None.
        x: float (B, T, H), inputs of the attention.
        positions: int (B, M), positions of the queries, or None if all T positions are queries.

    Returns:
        Float (1, N, T, T) for N heads or, with `positions`, float (B, N, M, T).
    """
    return None if layer is None else layer(x, positions)


def make_inputs(config: EncoderConfig) -> Features:
    """Return the symbolic inputs `token_ids`, `padding_mask` and, with several segments, `segment_ids`."""
    names = ("token_ids", "padding_mask", "segment_ids")[: 3 if config.num_segments > 1 else 2]
    return {name: keras.Input((None,), dtype="int32", name=name) for name in names}
