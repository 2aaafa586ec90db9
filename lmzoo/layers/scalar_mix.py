"""ELMo's scalar mix: a learned weighted average of a model's layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Shape, Tensor
from lmzoo.layers.configured import ConfiguredLayer

# Epsilon added to the variance, by values of `layer_norm`.
EPSILON = {None: None, "allennlp": 1e-13, "bilm_tf": 1e-12}


@keras.saving.register_keras_serializable(package="lmzoo")
class ScalarMix(ConfiguredLayer):
    """Learned weighted average of layers, gamma * sum_k softmax(s)_k * layer_k (Peters et al., 2018, eq. 1).

    https://arxiv.org/abs/1802.05365

    With `layer_norm`, each layer is first normalized by a single mean and variance, computed over all features and all
    real positions in the batch, so a sequence's result depends on the rest of its batch. The original implementation,
    bilm-tf, leaves the sentence markers out of the mask and adds 1e-12 to the variance; AllenNLP keeps the markers and
    adds 1e-13. Padding is mixed like other positions: mask the result.

    Args:
        layer_norm: str, implementation whose epsilon the normalization uses: `"bilm_tf"` or `"allennlp"`; None for no
            normalization.
        l2_coefficient: float, weight of the sum of squares of the scalars s in the loss.
        parameters: floats, fixed scalars, one per layer; gamma is then 1, and nothing is trained.

    Call arguments: `layers`, a list or tuple of float (B, T, H), and `padding_mask`, bool or int (B, T), needed only
    with `layer_norm`. Returns float (B, T, H). The weight of a single layer is gamma.

    Raises:
        ValueError: If `layer_norm` is unknown, `l2_coefficient` is negative, `padding_mask` is missing with
            `layer_norm`, or the numbers of `parameters` and layers differ.

    Example:

    ```python
    import numpy as np
    from lmzoo.layers import ScalarMix

    layers = [np.full((2, 3, 5), k, "float32") for k in (1, 2, 6)]
    ScalarMix()(layers)  # their mean, 3, before training
    ```
    """

    def __init__(
        self,
        layer_norm: str | None = None,
        l2_coefficient: float = 0.0,
        parameters: Sequence[float] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if layer_norm not in EPSILON:
            raise ValueError(f"`layer_norm` must be one of {', '.join(map(repr, EPSILON))}, got {layer_norm!r}.")
        if l2_coefficient < 0:
            raise ValueError(f"`l2_coefficient` must not be negative, got {l2_coefficient!r}.")
        self.layer_norm = layer_norm
        self.l2_coefficient = l2_coefficient
        self.parameters = None if parameters is None else tuple(map(float, parameters))

    def build(self, layers_shape: Sequence[Shape], padding_mask_shape: Shape | None = None) -> None:
        """Create one scalar per layer, and gamma."""
        num_layers = len(layers_shape)
        fixed_scalars = self.parameters
        if fixed_scalars is not None and len(fixed_scalars) != num_layers:
            raise ValueError(f"`parameters` has {len(fixed_scalars)} values for {num_layers} layers.")
        initializer = (
            "zeros" if fixed_scalars is None else lambda shape, dtype: ops.convert_to_tensor(fixed_scalars, dtype)
        )
        self.scalars = self.add_weight(
            shape=(num_layers,), initializer=initializer, trainable=fixed_scalars is None, name="scalars"
        )
        self.gamma = self.add_weight(shape=(), initializer="ones", trainable=fixed_scalars is None, name="gamma")

    def call(self, layers: Sequence[Tensor], padding_mask: Tensor | None = None) -> Tensor:
        """Return the weighted average of the layers."""
        if self.layer_norm and padding_mask is None:
            raise ValueError("ScalarMix with `layer_norm` needs `padding_mask`.")
        if self.l2_coefficient:
            self.add_loss(self.l2_coefficient * ops.sum(ops.square(ops.cast(self.scalars, "float32"))))
        # Keras' softmax warns if there is only one entry.
        scalars = ops.cast(self.scalars, "float32")
        weights = ops.softmax(scalars) if len(layers) > 1 else ops.ones_like(scalars)
        weights = ops.cast(self.gamma, "float32") * weights  # (layers,)
        mixture = 0.0
        for k, layer in enumerate(layers):
            layer = ops.cast(layer, "float32")  # (B, T, H)
            if self.layer_norm and padding_mask is not None:
                layer = self._normalize(layer, padding_mask)
            mixture = mixture + weights[k] * layer
        return ops.cast(mixture, self.compute_dtype)

    def _normalize(self, layer: Tensor, padding_mask: Tensor) -> Tensor:
        """Normalize a layer by the mean and variance over all features of the real positions in the batch."""
        is_real = ops.expand_dims(ops.cast(padding_mask, layer.dtype), 2)  # (B, T, 1)
        num_values = ops.maximum(ops.sum(is_real), 1) * layer.shape[-1]
        mean = ops.sum(layer * is_real) / num_values
        variance = ops.sum(ops.square((layer - mean) * is_real)) / num_values
        return (layer - mean) * ops.rsqrt(variance + EPSILON[self.layer_norm])

    def compute_output_shape(self, layers_shape: Sequence[Shape], padding_mask_shape: Shape | None = None) -> Shape:
        """Return the shape of one layer."""
        return layers_shape[0]
