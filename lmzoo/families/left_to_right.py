"""Base classes of left-to-right language models without attention."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import keras
from keras import ops

from lmzoo.common.arguments import require
from lmzoo.common.tensor_types import Features, Tensor, Tensors
from lmzoo.families.backbone import Backbone
from lmzoo.families.embeddings import PLAIN, build_embeddings
from lmzoo.families.encoder_config import check_rates, require_positive
from lmzoo.layers import Dropout, GatherPositions
from lmzoo.training import FineTuningRecipe


@dataclass(frozen=True, kw_only=True)
class LeftToRightConfig:
    """Base configuration of left-to-right language models, which defines defaults and checks values."""

    vocabulary_size: int
    hidden_dim: int
    dropout: float = 0.1
    max_sequence_length: int = 512
    initializer_range: float = 0.1

    without_axis = ("max_sequence_length",)  # see `lmzoo.checkpoints.engine.check_axes`

    def __post_init__(self) -> None:
        """Check all fields.

        All integers must be positive, since they are sizes.

        Raises:
            ValueError: If a value is invalid; the message gives the field, its value and the allowed values.
        """
        field_types = {field.name: field.type for field in fields(self)}
        require_positive(self, *(name for name, field_type in field_types.items() if field_type == "int"))
        for name in (name for name, field_type in field_types.items() if field_type == "bool"):
            require(isinstance(getattr(self, name), bool), name, "True or False", getattr(self, name))
        check_rates(self)


class LeftToRightBackbone(Backbone):
    """Base class of left-to-right language models: embeddings without positions, then the family's layers.

    A family defines its layers in `make_layers` and applies them in `hidden_layers`. `sequence_output` is the last
    hidden state after dropout, and `pooled_output` is the `sequence_output` at the last real token.
    """

    causal = True
    # For training from scratch: see "Training settings" in docs/guides/language_models.md.
    usual_recipes: ClassVar[Mapping[str, FineTuningRecipe]] = {"causal_lm": FineTuningRecipe(1e-2)}

    @property
    def id_counts(self) -> dict[str, int]:
        """Number of valid ids, counted from 0, for each input whose values are checked."""
        return {"token_ids": self.config.vocabulary_size, "padding_mask": 2}

    @classmethod
    def embedding_options(cls, config: Any) -> dict[str, Any]:
        """Return the arguments of `lmzoo.layers.TransformerEmbedding` that only this family sets."""
        return {}

    @classmethod
    def make_dropout(cls, config: Any, rate: float, **arguments: Any) -> Dropout:
        """Return a dropout layer with the given rate; `arguments` are `dtype` and `name`."""
        return Dropout(rate, **arguments)

    @classmethod
    @abstractmethod
    def make_layers(cls, config: Any, dtype: keras.DTypePolicy) -> dict[str, Any]:
        """Return the family's layers after the embeddings, by attribute name."""

    @classmethod
    @abstractmethod
    def hidden_layers(cls, config: Any, layers: dict[str, Any], embedded: Tensor) -> list[Tensor]:
        """Apply the family's layers to the embeddings, and return each layer's hidden states, float (B, T, H)."""

    @classmethod
    def assemble(cls, config: Any, dtype: keras.DTypePolicy) -> tuple[dict[str, Any], Features, Features]:
        """Build the graph, and return its layers by attribute name, its symbolic inputs and its symbolic outputs."""
        # === Layers ===
        layers: dict[str, Any] = {
            "embeddings": build_embeddings(
                config, dtype, max_sequence_length=None, **PLAIN, **cls.embedding_options(config)
            ),
            **cls.make_layers(config, dtype),
            "output_dropout": cls.make_dropout(config, config.dropout, dtype=dtype, name="output_dropout"),
        }

        # === Functional Model ===
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("token_ids", "padding_mask")}
        embeddings = layers["embeddings"](inputs["token_ids"])  # (B, T, H)
        hidden_states = embeddings, *cls.hidden_layers(config, layers, embeddings)
        sequence = layers["output_dropout"](hidden_states[-1])
        last_positions = ops.maximum(ops.sum(inputs["padding_mask"], axis=1, keepdims=True) - 1, 0)  # (B, 1)
        pooled = GatherPositions(dtype=dtype, name="last_token")(sequence, last_positions)[:, 0]  # (B, H)
        return layers, inputs, {"sequence_output": sequence, "pooled_output": pooled, "hidden_states": hidden_states}

    @abstractmethod
    def empty_cache(self, batch: int, length: int) -> Tensors:
        """Return an empty cache for `call_with_cache`, with room for `length` positions of `batch` sequences."""

    @abstractmethod
    def call_with_cache(self, token_ids: Tensor, cache: Tensors, index: int | Tensor) -> tuple[Tensor, Tensors]:
        """Read new tokens after the tokens in the cache, and return their last hidden states and the new cache.

        Args:
            token_ids: int (B, S), ids of S new tokens per sequence.
            cache: cache returned by `empty_cache` or by an earlier call; its tensors have the batch as their first
                axis. It has an entry for each position, so that a sequence can be continued from any position.
            index: int or scalar int tensor, position of the first new token.

        Returns:
            The `sequence_output` at the new tokens, float (B, S, H), and the cache with the new tokens.

        Raises:
            ValueError: If the cache is too short for the new tokens. (If `index` is a tensor, only the shapes are
                checked.)
        """
