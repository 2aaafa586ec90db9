"""Base class of encoder-decoder Transformers."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from lmzoo.common.arguments import as_python_values
from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.families.backbone import Backbone
from lmzoo.families.transformer import compute_position_bias
from lmzoo.layers import Dropout, GatherPositions, RelativePositionBias
from lmzoo.layers.attention import Cache
from lmzoo.layers.sublayers import get_stored_weights, is_quantized, sublayers


class Source(NamedTuple):
    """Encoded source texts.

    Attributes:
        keys_and_values: keys and values of the sources for each decoder block.
        mask: bool (B, T), True at real tokens of the B sources.
    """

    keys_and_values: list[Cache]
    mask: Tensor


class EncoderDecoderBackbone(Backbone):
    """Base class of Transformers (Vaswani et al., 2017) whose encoder and decoder share one table of token embeddings.

    A family sets `config_class` and defines `make_layers`. Its configuration must have a `vocabulary_size`.
    """

    reads_source = True
    # Layers that only some families have.
    encoder_bias: RelativePositionBias | None = None
    decoder_bias: RelativePositionBias | None = None
    encoder_norm: keras.layers.Layer | None = None
    decoder_norm: keras.layers.Layer | None = None

    @property
    def id_counts(self) -> dict[str, int]:
        """Number of valid ids, counted from 0, for each input whose values are checked."""
        return {name: 2 if name.endswith("mask") else self.config.vocabulary_size for name in self.input}

    @classmethod
    @abstractmethod
    def make_layers(cls, config: Any, dtype: keras.DTypePolicy) -> dict[str, Any]:
        """Return the layers by attribute name.

        Every family has `embeddings` and two lists of blocks, `encoder_blocks` and `decoder_blocks`. A family with
        relative positions adds `encoder_bias` and `decoder_bias`, whose outputs are added to the attention scores of
        all blocks. A family with norms before the sublayers adds `encoder_norm` and `decoder_norm`, applied after the
        last block, and `output_dropout`, applied after the norms.
        """

    @classmethod
    def assemble(cls, config: Any, dtype: keras.DTypePolicy) -> tuple[dict[str, Any], Features, Features]:
        """Build the graph, and return its layers by attribute name, its symbolic inputs and its symbolic outputs."""
        # === Layers ===
        layers = cls.make_layers(config, dtype)

        # === Functional Model ===
        names = ("token_ids", "padding_mask", "decoder_token_ids", "decoder_padding_mask")
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
        source_mask = ops.cast(inputs["padding_mask"], "bool")  # (B, T)
        encoder_states = cls._run_stack(layers, "encoder", inputs["token_ids"], source_mask)
        target_mask = ops.cast(inputs["decoder_padding_mask"], "bool")  # (B, S)
        source_arguments = {"source": encoder_states[-1], "source_mask": source_mask}
        hidden_states = cls._run_stack(layers, "decoder", inputs["decoder_token_ids"], target_mask, **source_arguments)
        last_positions = ops.maximum(ops.sum(inputs["decoder_padding_mask"], axis=1, keepdims=True) - 1, 0)  # (B, 1)
        pooled = GatherPositions(dtype=dtype, name="last_token")(hidden_states[-1], last_positions)[:, 0]  # (B, H)
        outputs = {
            "sequence_output": hidden_states[-1],
            "pooled_output": pooled,
            "hidden_states": tuple(hidden_states),
            "encoder_output": encoder_states[-1],
            "encoder_hidden_states": tuple(encoder_states),
        }
        return layers, inputs, outputs

    @staticmethod
    def _run_stack(layers: dict[str, Any], stack: str, ids: Tensor, mask: Tensor, **source: Any) -> list[Tensor]:
        """Return all hidden states of a stack, `"encoder"` or `"decoder"`; see `compute_states`."""
        optional_layers = (layers.get(f"{stack}_bias"), layers.get(f"{stack}_norm"), layers.get("output_dropout"))
        return compute_states(layers["embeddings"](ids), mask, layers[f"{stack}_blocks"], *optional_layers, **source)

    def source_attention_scores(self, inputs: Features) -> list[Tensor]:
        """Return each decoder block's attention probabilities over the source tokens, without dropout.

        Args:
            inputs: the backbone's inputs.

        Returns:
            One tensor per decoder block, float (B, heads, S, T), for S target tokens and T source tokens.

        Raises:
            ValueError: If the inputs are not valid for the backbone.
        """
        outputs = self(inputs)
        source_mask = ops.cast(inputs["padding_mask"], "bool")  # (B, T)
        target_mask = ops.cast(inputs["decoder_padding_mask"], "bool")  # (B, S)
        bias = compute_position_bias(self.decoder_bias, outputs["sequence_output"])
        scores = []
        for block, block_input in zip(self.decoder_blocks, outputs["hidden_states"], strict=False):
            queries = block.attend_to_itself(block_input, target_mask, bias)  # (B, S, H)
            scores.append(block.source_attention.scores(outputs["encoder_output"], source_mask, queries))
        return scores

    def make_encoder(self) -> Backbone:
        """Return a copy of the encoder as a backbone of its own, for tasks that read one text.

        The copy recommends the same recipes. Low-rank updates (LoRA) are merged into the copy's weights.

        Raises:
            ValueError: If the family has no `encoder_class`, or the model is quantized.
        """
        if self.encoder_class is None:
            raise ValueError(f"The encoder of a {type(self).__name__} is not a model of its own.")
        if any(map(is_quantized, sublayers(self))):
            raise ValueError(f"This {type(self).__name__} is quantized. Make the encoder before `quantize`.")
        field_names = {field.name for field in dataclasses.fields(self.encoder_class.config_class)}
        config = {name: value for name, value in dataclasses.asdict(self.config).items() if name in field_names}
        encoder = self.encoder_class(
            **config, dtype=self.dtype_policy, remat=self.remat, fine_tuning=self.fine_tuning or None
        )
        optional_layers = ((self.encoder_bias, "position_bias"), (self.encoder_norm, "final_norm"))
        layer_pairs = [
            (self.embeddings, encoder.embeddings),
            *((layer, getattr(encoder, name)) for layer, name in optional_layers if layer is not None),
            *zip(self.encoder_blocks, encoder.blocks, strict=True),
        ]
        for original, copy in layer_pairs:
            for (_, value), new_weight in zip(get_stored_weights(original), copy.weights, strict=True):
                new_weight.assign(ops.convert_to_numpy(value))  # not shared: compiled steps on JAX delete their inputs
        return encoder

    # === Generation, step by step ===

    def read_source(self, token_ids: Tensor, padding_mask: Tensor) -> Source:
        """Encode source texts for `call_with_cache`.

        Args:
            token_ids: int (B, T), token ids of the sources.
            padding_mask: int (B, T), 1 at real tokens.
        """
        mask = ops.cast(padding_mask, "bool")  # (B, T)
        embeddings = self.embeddings(token_ids)  # (B, T, H)
        x = compute_states(embeddings, mask, self.encoder_blocks, self.encoder_bias, self.encoder_norm)[-1]  # (B, T, H)
        return Source([block.source_attention.keys_and_values(x) for block in self.decoder_blocks], mask)

    def empty_cache(self, batch: int, length: int) -> list[Cache]:
        """Return an empty cache for `call_with_cache`, with room for `length` positions of `batch` targets."""
        return [block.attention.empty_cache(batch, length) for block in self.decoder_blocks]

    def call_with_cache(
        self, token_ids: Tensor, cache: list[Cache], index: int | Tensor, source: Source
    ) -> tuple[Tensor, list[Cache]]:
        """Read new target tokens after the tokens in the cache, and return their last hidden states and the new cache.

        Args:
            token_ids: int (B·K, S), ids of S new tokens per target. Each of the B sources has K consecutive targets.
            cache: cache returned by `empty_cache` or by an earlier call; its tensors have the batch as their first
                axis.
            index: int or scalar int tensor, position of the first new token.
            source: the encoded sources, returned by `read_source`.

        Returns:
            The `sequence_output` at the new tokens, float (B·K, S, H), and the cache with the new tokens.

        Raises:
            ValueError: If the cache is too short for the new tokens. (If `index` is a tensor, only the shapes are
                checked.)
        """
        index = as_python_values(index)  # Keras turns NumPy integers into tensors, which the layers do not check
        x = self.embeddings(token_ids, index=index)  # (B·K, S, H)
        cache_length = ops.shape(cache[0][0])[2]
        mask = ops.ones((1, cache_length), "bool")  # (1, cache_length); the causal mask hides empty positions
        bias = None
        if self.decoder_bias is not None:
            bias = self.decoder_bias.step_bias(index, ops.shape(token_ids)[1], cache_length)
        new_cache = []
        for block, block_cache, block_source in zip(self.decoder_blocks, cache, source.keys_and_values, strict=True):
            x, block_cache = block(
                x, mask, cache=block_cache, index=index, source=block_source, source_mask=source.mask, bias=bias
            )
            new_cache.append(block_cache)
        return x if self.decoder_norm is None else self.decoder_norm(x), new_cache


def compute_states(
    x: Tensor,
    mask: Tensor,
    blocks: Sequence[keras.layers.Layer],
    bias_layer: keras.layers.Layer | None = None,
    norm: keras.layers.Layer | None = None,
    dropout: Dropout | None = None,
    **arguments: Any,
) -> list[Tensor]:
    """Return all hidden states: the embeddings and the output of each block.

    Args:
        x: float (B, T, H), the embeddings.
        mask: bool (B, T), True at real tokens.
        blocks: Transformer blocks.
        bias_layer: layer that computes the bias on the attention scores of all blocks, or None.
        norm: layer applied to the output of the last block, or None.
        dropout: layer applied after `norm`, or None.
        **arguments: further call arguments of the blocks.

    Returns:
        A list of float tensors (B, T, H). `norm` and `dropout` are applied to the last tensor.
    """
    bias = compute_position_bias(bias_layer, x)
    states = [x]
    for block in blocks:
        states.append(block(states[-1], mask, bias=bias, **arguments))
    if norm is not None:
        states[-1] = norm(states[-1])
    if dropout is not None:
        states[-1] = dropout(states[-1])
    return states
