"""Replaced token detection: a generator fills masks, and a backbone detects the replaced tokens.

Letters in shapes: B sequences, T tokens, M masked tokens, V vocabulary size, H width of hidden states, E width of token
embeddings.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
from keras import ops

from lmzoo.common.arguments import is_integer, require
from lmzoo.common.tensor_types import Features, Shape, Tensor
from lmzoo.families.backbone import Backbone
from lmzoo.families.encoder_config import EncoderConfig
from lmzoo.families.transformer import make_inputs
from lmzoo.layers import ReplacedTokenHead
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.heads import compute_tied_logits


def make_shallow_config(config: EncoderConfig, width: int | None = None) -> EncoderConfig:
    """Return the configuration of a generator as wide as the backbone, with half as many blocks (He et al., 2021).

    Raises:
        ValueError: If `width` is neither None nor the width of the backbone's hidden states.
    """
    is_valid = width in (None, config.hidden_dim)
    require(is_valid, "generator_width", f"{config.hidden_dim}, the width of the embeddings", width)
    return dataclasses.replace(config, num_layers=max(1, config.num_layers // 2))


def make_narrow_config(config: EncoderConfig, width: int | None = None) -> EncoderConfig:
    """Return the configuration of a generator that is narrower than the backbone (Clark et al., 2020).

    The generator can share the backbone's embeddings, because their width is a separate setting.

    Args:
        config: configuration of the backbone.
        width: int, width of the generator's hidden states; a quarter of the backbone's width by default. The number of
            heads and the width of feed-forward layers are reduced by the same factor.

    Raises:
        ValueError: If `width` is not a positive multiple of the generator's number of heads.
    """
    if width is None:
        num_heads = max(1, config.num_heads // 4)
        width = max(1, config.hidden_dim // 4 // num_heads) * num_heads
    require(is_integer(width, 1), "generator_width", "a positive integer", width)
    num_heads = max(1, config.num_heads * width // config.hidden_dim)
    require(width % num_heads == 0, "generator_width", f"a multiple of the number of heads, {num_heads}", width)
    intermediate_dim = max(1, config.intermediate_dim * width // config.hidden_dim)
    return dataclasses.replace(config, num_heads=num_heads, hidden_dim=width, intermediate_dim=intermediate_dim)


@keras.saving.register_keras_serializable(package="lmzoo")
class Generator(ConfiguredLayer):
    """A layer that predicts masked tokens with a small model, using a backbone's embeddings or its own.

    Args:
        backbone: a backbone with `generator_embeddings`. If this is "shared", the generator uses the backbone's
            embeddings; if it is "disentangled", the generator has its own, which begin as copies.
        activation: str, activation of the head.
        layer_norm_epsilon: float, epsilon of the head's LayerNorm.
        width: int, width of the hidden states; see `make_narrow_config` and `make_shallow_config`.

    Call arguments: `inputs`, the backbone's inputs, and `positions` int (B, M), the positions of the masked tokens.
    Returns the logits of these tokens, float32 (B, M, V).
    """

    def __init__(
        self,
        backbone: Backbone,
        activation: str,
        layer_norm_epsilon: float,
        width: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"dtype": backbone.dtype_policy, **kwargs})
        self.backbone = backbone
        self.activation = activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.width = width
        self.shares_embeddings = backbone.generator_embeddings == "shared"
        self.config = (make_narrow_config if self.shares_embeddings else make_shallow_config)(backbone.config, width)
        layers = type(backbone).make_layers(self.config, self.dtype_policy)
        excluded_names = ("embeddings", "pooler") if self.shares_embeddings else ("pooler",)
        self.parts = {name: layer for name, layer in layers.items() if name not in excluded_names}
        self.head = backbone.make_masked_lm_head(activation, layer_norm_epsilon, dtype=self.dtype_policy, name="head")

    def build(self, inputs_shape: dict[str, Shape], positions_shape: Shape) -> None:
        """Create the weights of the generator and its head.

        If the generator has its own token embeddings, they begin as a copy of the backbone's.
        """
        self._compute_hidden_states(make_inputs(self.config))
        if not self.shares_embeddings:
            table = self.backbone.embeddings.token_embedding.embeddings
            self.embeddings.token_embedding.embeddings.assign(ops.copy(table))  # JAX donates each array once
        self.head.build((*positions_shape, self.config.hidden_dim))
        self.built = True

    def call(self, inputs: Features, positions: Tensor) -> Tensor:
        """Compute the logits of the tokens at `positions`."""
        mask = ops.cast(inputs["padding_mask"], "bool")  # (B, T)
        states = self._compute_hidden_states(inputs)
        vectors = type(self.backbone).compute_masked_vectors(self.parts, states, mask, positions)  # (B, M, width)
        vectors, bias = self.head(vectors)  # (B, M, E), (V,)
        return compute_tied_logits(self.embeddings.token_embedding, vectors, bias)

    def _compute_hidden_states(self, inputs: Features) -> list[Tensor]:
        """Return the hidden states of all layers of the generator, each (B, T, width)."""
        mask = ops.cast(inputs["padding_mask"], "bool")  # (B, T)
        return type(self.backbone).compute_hidden_states(self._get_parts_by_name(), inputs, mask)

    @property
    def embeddings(self) -> keras.layers.Layer:
        """The embeddings: the backbone's, or the generator's own."""
        return self.parts.get("embeddings", self.backbone.embeddings)

    def _get_parts_by_name(self) -> dict[str, Any]:
        """Return the generator's layers by name, including embeddings that it shares with the backbone."""
        return {**self.parts, "embeddings": self.embeddings}

    def compute_output_spec(self, inputs: Features, positions: Tensor) -> keras.KerasTensor:
        """Return the spec of the logits, float32 (B, M, V)."""
        return keras.KerasTensor((*positions.shape, self.config.vocabulary_size), "float32")

    def make_backbone(self) -> Backbone:
        """Return a backbone with copies of the generator's weights."""
        policy = keras.dtype_policies.serialize(self.dtype_policy)
        backbone = type(self.backbone)(**dataclasses.asdict(self.config), dtype=policy)
        for name, layer in self._get_parts_by_name().items():
            copies = keras.tree.flatten(getattr(backbone, name))
            for copy, original in zip(copies, keras.tree.flatten(layer), strict=True):
                copy.set_weights(original.get_weights())
        return backbone


@keras.saving.register_keras_serializable(package="lmzoo")
class ReplacedTokens(ConfiguredLayer):
    """A layer that fills masks with tokens of a `Generator`, and predicts for each token whether it was replaced.

    This layer holds both the generator and the discriminator. If a layer were in a graph and also inside another layer
    of that graph, Keras would turn it into two layers when it copies or loads the graph.

    With disentangled embeddings (He et al., 2021, section 3.2.3), the discriminator's token table is the generator's
    table plus a difference, each trained by its own loss only. The backbone's table holds the sum at the last call of
    `merge_embeddings`; later changes of the generator's table are added to the vectors in each step.

    Args:
        generator: `Generator` whose backbone is the discriminator (Clark et al., 2020).

    Call arguments: `inputs`, the backbone's inputs with masks; `positions` int (B, M), the positions that the generator
    predicts, padded with 0; `draws` float (B, M), random numbers for `sample`. Returns a dict: `masked_lm`, the
    generator's logits, float32 (B, M, V); `corrupted_ids` int32 (B, T), the token ids after filling the masks; and
    `replaced_tokens` float32 (B, T), the logits of the probability that each token was replaced.
    """

    def __init__(self, generator: Generator, **kwargs: Any) -> None:
        # Autocasting would round the draws to half precision.
        super().__init__(autocast=False, **{"dtype": generator.dtype_policy, **kwargs})
        self.generator = generator
        self.backbone = generator.backbone
        config = self.backbone.config
        self.head = ReplacedTokenHead(config.activation, config.initializer_range, dtype=self.dtype_policy, name="head")

    def build(self, inputs_shape: dict[str, Shape], positions_shape: Shape, draws_shape: Shape) -> None:
        """Create the weights of the generator and of the discriminator's head."""
        if not self.generator.built:  # Keras does not build a nested layer that it creates from a configuration
            self.generator.build(inputs_shape, positions_shape)
        self.head.build((*inputs_shape["token_ids"], self.backbone.config.hidden_dim))
        self.restore_created_layers()
        self.merged_table = None
        if not self.generator.shares_embeddings:
            table = self.generator.embeddings.token_embedding.embeddings
            # The generator's table when it was last merged, float32 (V, H).
            self.merged_table = self.add_weight(
                shape=table.shape, initializer="zeros", trainable=False, dtype=table.dtype, name="merged_table"
            )
            self.merged_table.assign(ops.copy(table))
        self.built = True

    def call(self, inputs: Features, positions: Tensor, draws: Tensor) -> Features:
        """Compute the logits of the generator and the discriminator, and the corrupted token ids."""
        logits = self.generator(inputs, positions)  # (B, M, V)
        sampled_ids = sample(ops.stop_gradient(logits), draws)  # (B, M)
        corrupted_ids = fill(inputs["token_ids"], positions, sampled_ids)  # (B, T)
        states = self._discriminate({**inputs, "token_ids": corrupted_ids})  # (B, T, H)
        return {"masked_lm": logits, "replaced_tokens": self.head(states), "corrupted_ids": corrupted_ids}

    def _discriminate(self, inputs: Features) -> Tensor:
        """Return the discriminator's last hidden states, (B, T, H)."""
        if self.merged_table is None:
            return self.backbone(inputs)["sequence_output"]
        ids = inputs["token_ids"]
        offsets = self.generator.embeddings.token_embedding(ids) - ops.take(self.merged_table, ids, axis=0)  # (B, T, H)
        layers = {name: getattr(self.backbone, name) for name in self.generator.parts}
        mask = ops.cast(inputs["padding_mask"], "bool")  # (B, T)
        inputs = {**inputs, "offsets": ops.stop_gradient(offsets)}
        return type(self.backbone).compute_hidden_states(layers, inputs, mask)[-1]

    def merge_embeddings(self) -> None:
        """Merge into the backbone's token embeddings the changes of the generator's since the last merge.

        Shared embeddings need no merging.
        """
        if self.merged_table is not None:
            generator_table = self.generator.embeddings.token_embedding.embeddings
            table = self.backbone.embeddings.token_embedding.embeddings
            table.assign_add(generator_table - self.merged_table)
            self.merged_table.assign(ops.copy(generator_table))

    def compute_output_spec(self, inputs: Features, positions: Tensor, draws: Tensor) -> dict[str, keras.KerasTensor]:
        """Return a dict of the specs of both logits, float32, and of the corrupted token ids, int32."""
        shape = inputs["token_ids"].shape
        return {
            "masked_lm": self.generator.compute_output_spec(inputs, positions),
            "replaced_tokens": keras.KerasTensor(shape, "float32"),
            "corrupted_ids": keras.KerasTensor(shape, "int32"),
        }


def sample(logits: Tensor, draws: Tensor) -> Tensor:
    """Sample a token id from each distribution that `logits` define.

    The random numbers are arguments, so that a batch gives the same result on every backend and any number of devices.

    Args:
        logits: float32 (B, M, V), logits of the tokens at each masked position.
        draws: float (B, M), random numbers, uniform in [0, 1). The sampled id is the first at which the cumulative
            probability, in the order of the ids, exceeds the draw. A negative draw selects the most probable token.

    Returns:
        The sampled ids, int32 (B, M).
    """
    cumulative_probabilities = ops.cumsum(ops.softmax(logits), axis=-1)  # (B, M, V)
    counts_below = ops.sum(ops.cast(cumulative_probabilities <= draws[..., None], "int32"), axis=-1)  # (B, M)
    # The last cumulative sum may be rounded to less than 1.
    sampled_ids = ops.minimum(counts_below, logits.shape[-1] - 1)
    return ops.where(draws < 0, ops.cast(ops.argmax(logits, axis=-1), "int32"), sampled_ids)


def fill(ids: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Replace the token ids at `positions` with `tokens`.

    Args:
        ids: int (B, T), token ids.
        positions: int (B, M), the positions to fill; 0 is padding.
        tokens: int (B, M), the new token ids.
    """
    is_target = ops.arange(ops.shape(ids)[1], dtype=positions.dtype) == positions[..., None]  # (B, M, T)
    is_target = is_target & (positions[..., None] > 0)
    new_ids = ops.max(ops.where(is_target, ops.cast(tokens, ids.dtype)[..., None], 0), axis=1, initial=0)  # (B, T)
    return ops.where(ops.any(is_target, axis=1), new_ids, ids)
