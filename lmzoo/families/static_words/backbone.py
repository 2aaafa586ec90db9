"""Static word vectors as a backbone: a table with a vector for each word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import keras
from keras import ops

from lmzoo.common.arguments import is_integer, require
from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.families.backbone import Backbone
from lmzoo.families.encoder_config import check_rates, require_positive
from lmzoo.layers import Dropout, Embedding, MeanPooler
from lmzoo.layers.initializers import TruncatedNormal
from lmzoo.training import FineTuningRecipe


@dataclass(frozen=True, kw_only=True)
class StaticConfig:
    """Configuration of `StaticBackbone`.

    Example: see `StaticBackbone`.
    """

    vocabulary_size: int
    hidden_dim: int
    dropout: float = 0.1
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        """Check all fields.

        Raises:
            ValueError: If a value is invalid; the message gives the field, its value and the allowed values.
        """
        require_positive(self, "hidden_dim")
        require(is_integer(self.vocabulary_size, 2), "vocabulary_size", "an integer above 1", self.vocabulary_size)
        check_rates(self)


@keras.saving.register_keras_serializable(package="lmzoo")
class StaticBackbone(Backbone):
    """Static word vectors, such as word2vec, GloVe or fastText vectors: each word has one vector.

    `from_preset` loads the vectors of `lmzoo.models.StaticEmbedder` presets. With
    `backbone.token_embedding.trainable = False`, a task trains only its head.

    The inputs are a dict with `token_ids`, int32 (B, T), for B texts of T words. Padding is 0, on the right.

    The outputs are a dict: `sequence_output`, the vectors of the words (B, T, H), zero at padding; `pooled_output`, the
    mean vector of each text (B, H); and `hidden_states`, a tuple of one tensor, the vectors before dropout (B, T, H).

    Args:
        vocabulary_size: number of token ids, including 0 for padding.
        hidden_dim: width of the vectors, H.
        dropout: rate in [0, 1) on the vectors.
        initializer_range: standard deviation of the vectors' truncated normal initializer.
        dtype: dtype policy of all layers: a name, a `keras.DTypePolicy`, or None for Keras' global policy.
        name: name of the model.
        trainable: whether the weights are trained.
        remat: must be False, since there are no blocks to recompute in the backward pass.
        fine_tuning: recommended settings for fine-tuning, by kind of head; see `Backbone`.

    Raises:
        ValueError: If an argument is out of range, or an eager call gets an id out of range. The message names the
            argument or input.

    Example:

    ```python
    import numpy as np
    import lmzoo

    backbone = lmzoo.models.StaticBackbone(vocabulary_size=101, hidden_dim=12)
    backbone({"token_ids": np.array([[17, 23, 5, 0]], "int32")})["pooled_output"].shape  # (1, 12)
    ```
    """

    config_class = StaticConfig
    # A table is trained at a higher rate than a network.
    usual_recipes: ClassVar[Mapping[str, FineTuningRecipe]] = {
        **dict.fromkeys(("classification", "regression", "multiple_choice"), FineTuningRecipe(3e-3, 6, pooling="mean")),
        **dict.fromkeys(("token_classification", "question_answering", "embedding"), FineTuningRecipe(3e-3, 6)),
    }

    @classmethod
    def assemble(cls, config: StaticConfig, dtype: keras.DTypePolicy) -> tuple[dict[str, Any], Features, Features]:
        """Build the graph, and return its layers by attribute name, its symbolic inputs and its symbolic outputs."""
        # === Layers ===
        initializer = TruncatedNormal(stddev=config.initializer_range)
        layers: dict[str, Any] = {
            "word_embedding": Embedding(
                config.vocabulary_size, config.hidden_dim, initializer, dtype=dtype, name="token_embedding"
            ),
            "dropout_layer": Dropout(config.dropout, dtype=dtype, name="dropout"),
            "mean_pooler": MeanPooler(dtype=dtype, name="mean_pooler"),
        }

        # === Functional Model ===
        inputs = {"token_ids": keras.Input((None,), dtype="int32", name="token_ids")}
        mask = inputs["token_ids"] > 0  # (B, T)
        words = layers["word_embedding"](inputs["token_ids"])  # (B, T, H)
        words = words * ops.expand_dims(ops.cast(mask, words.dtype), 2)
        sequence = layers["dropout_layer"](words)  # (B, T, H)
        outputs = {
            "sequence_output": sequence,
            "pooled_output": layers["mean_pooler"](sequence, mask),  # (B, H)
            "hidden_states": (words,),
        }
        return layers, inputs, outputs

    @property
    def token_embedding(self) -> keras.layers.Layer:
        """The layer with the table of word vectors."""
        return self.word_embedding

    def padding_mask(self, inputs: Features) -> Tensor:
        """Return the mask of real tokens, bool (B, T)."""
        return ops.greater(inputs["token_ids"], 0)

    @property
    def id_counts(self) -> dict[str, int]:
        """Number of valid ids, counted from 0, for each input whose values are checked."""
        return {"token_ids": self.config.vocabulary_size}
