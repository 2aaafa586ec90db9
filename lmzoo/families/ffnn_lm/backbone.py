"""Feed-forward language model (Bengio et al., 2003)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Tensor, Tensors
from lmzoo.families.left_to_right import LeftToRightBackbone, LeftToRightConfig
from lmzoo.layers import Dense
from lmzoo.layers.position_cache import check_room, read_positions, write_positions


@dataclass(frozen=True, kw_only=True)
class FfnnLmConfig(LeftToRightConfig):
    """Configuration of `FfnnLmBackbone`.

    Example: see `FfnnLmBackbone`.
    """

    window: int
    intermediate_dim: int
    direct: bool = False


@keras.saving.register_keras_serializable(package="lmzoo")
class FfnnLmBackbone(LeftToRightBackbone):
    """Neural probabilistic language model, which predicts a word from a window of previous words.

    https://www.jmlr.org/papers/v3/bengio03a.html

    In the paper, the embeddings of the previous words, rows of a table C, are concatenated into a vector x, and the
    logits of the next word are b + W x + U tanh(d + H x), where the direct connections W are optional. Here, `CausalLM`
    computes the logit of a word as the product of its embedding and a vector v = W' x + U' tanh(d + H x) + e of the
    same width, so U = C U', W = C W' and b = C e. Words before the beginning of a sequence have vectors of zeros.

    The inputs are a dict of int32 arrays (B, T) for B texts of T tokens: `token_ids` and `padding_mask` (1 at real
    tokens, which are on the left).

    The outputs are a dict: `sequence_output`, v after each token (B, T, hidden_dim); `pooled_output`, v after the last
    real token (B, hidden_dim); and `hidden_states`, a tuple of two tensors (B, T, hidden_dim): the embeddings, and v
    without dropout.

    Args:
        vocabulary_size: number of token ids.
        hidden_dim: width of the embeddings and of v; the paper's m.
        dropout: rate in [0, 1) on the embeddings and on v. (The paper has none.)
        max_sequence_length: longest sequence that tasks create, in tokens.
        initializer_range: standard deviation of the embeddings' truncated normal initializer.
        window: number of previous words that predict the next word; the paper's n - 1.
        intermediate_dim: width of the hidden layer; the paper's h.
        direct: whether there are direct connections W from the embeddings to v.
        dtype: dtype policy of all layers: a name, a `keras.DTypePolicy`, or None for Keras' global policy.
        name: name of the model.
        trainable: whether the weights are trained.
        remat: must be False, since there are no blocks to recompute in the backward pass.
        fine_tuning: recommended settings for training, by kind of head; see `Backbone`.

    Raises:
        ValueError: If an argument is out of range, or an eager call gets an id out of range. The message names the
            argument or input.

    Example:

    ```python
    import numpy as np
    import lmzoo

    backbone = lmzoo.models.FfnnLmBackbone(vocabulary_size=101, window=4, hidden_dim=12, intermediate_dim=20)
    ids = np.array([[17, 23, 5, 0]], "int32")
    backbone({"token_ids": ids, "padding_mask": ids > 0})["pooled_output"].shape  # (1, 12)
    ```
    """

    config_class = FfnnLmConfig

    @classmethod
    def make_layers(cls, config: FfnnLmConfig, dtype: keras.DTypePolicy) -> dict[str, Any]:
        """Return the hidden layer, the projection of its output to v, and the direct connections or None, by name."""
        width = config.hidden_dim
        return {
            "intermediate_dense": Dense(config.intermediate_dim, "tanh", dtype=dtype, name="intermediate_dense"),
            "output_dense": Dense(width, dtype=dtype, name="output_dense"),
            "direct_dense": Dense(width, use_bias=False, dtype=dtype, name="direct_dense") if config.direct else None,
        }

    @classmethod
    def hidden_layers(cls, config: FfnnLmConfig, layers: dict[str, Any], embedded: Tensor) -> list[Tensor]:
        """Apply the family's layers to the embeddings, and return v after each token, float (B, T, H), in a list."""
        padded_embeddings = ops.pad(embedded, ((0, 0), (config.window - 1, 0), (0, 0)))  # (B, T + window - 1, H)
        return [_predict_vectors(padded_embeddings, config.window, **layers)]

    def empty_cache(self, batch: int, length: int) -> Tensors:
        """Return an empty cache of embeddings for `call_with_cache`, float (batch, window - 1 + length, H)."""
        return ops.zeros((batch, self.config.window - 1 + length, self.config.hidden_dim), self.compute_dtype)

    def call_with_cache(self, token_ids: Tensor, cache: Tensors, index: int | Tensor) -> tuple[Tensor, Tensors]:
        """Read new tokens after the tokens in the cache; see `LeftToRightBackbone.call_with_cache`."""
        num_padding = self.config.window - 1  # positions of zeros before the first token
        room = cache.shape[1]
        check_room(None if room is None else room - num_padding, token_ids.shape[1], index)
        cache = write_positions(cache, self.embeddings(token_ids), index + num_padding)
        embeddings = read_positions(cache, index, num_padding + ops.shape(token_ids)[1])  # (B, S + window - 1, H)
        dense_layers = self.intermediate_dense, self.output_dense, self.direct_dense
        return _predict_vectors(embeddings, self.config.window, *dense_layers), cache


def _predict_vectors(
    x: Tensor,
    window: int,
    intermediate_dense: keras.layers.Layer,
    output_dense: keras.layers.Layer,
    direct_dense: keras.layers.Layer | None,
    **unused_layers: keras.layers.Layer,
) -> Tensor:
    """Return the vectors that predict the next words, float (B, T, H).

    Args:
        x: float (B, T + window - 1, H), embeddings of T tokens after `window - 1` earlier tokens or zeros.
        window: number of words that predict the next word.
        intermediate_dense: hidden layer.
        output_dense: layer that projects the output of the hidden layer.
        direct_dense: layer of the direct connections, or None.
        **unused_layers: other layers of the model.
    """
    x = ops.concatenate([x[:, k : k + 1 - window or None] for k in range(window)], axis=2)  # (B, T, n * H)
    vectors = output_dense(intermediate_dense(x))  # (B, T, H)
    return vectors if direct_dense is None else vectors + direct_dense(x)
