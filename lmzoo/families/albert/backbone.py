"""ALBERT (Lan et al., 2020, https://arxiv.org/abs/1909.11942)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import keras

from lmzoo.common.tensor_types import Shape, Tensor, Tensors
from lmzoo.families.backbone import Backbone
from lmzoo.families.encoder_config import EncoderConfig, require_multiple
from lmzoo.families.transformer import TransformerBackbone
from lmzoo.layers import FirstTokenPooler, TransformerBlock
from lmzoo.layers.attention import MAX_JOINED_WIDTH
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.products import is_aliased, is_plain, lengthen_rows
from lmzoo.layers.remat import get_seeds
from lmzoo.layers.scan import scan
from lmzoo.layers.temporary import set_temporary_attributes


@dataclass(frozen=True, kw_only=True)
class AlbertConfig(EncoderConfig):
    """Configuration of `AlbertBackbone`: an `EncoderConfig` with narrow embeddings and shared weights.

    In the released models, `dropout` is 0.1 in the first version (0 for xxlarge) and 0 in the second; `activation` is
    `"gelu_tanh"` in Google's code and the second version, `"gelu"` in Hugging Face's conversions of the first version,
    and `"relu"` in the Chinese models. By default, a new head has the backbone's dropout. Google's code and
    transformers use 0.1 for a new head in the second version: for the same, pass `dropout=0.1` to the task's
    constructor, since the argument `dropout` of `from_preset` also changes the backbone.

    Example: see `AlbertBackbone`.
    """

    embedding_dim: int = 128
    num_groups: int = 1
    num_inner_repetitions: int = 1
    embedding_projection: bool | None = None
    unroll: bool = False

    # See `lmzoo.checkpoints.engine.check_sizes`.
    numbered: ClassVar[Mapping[str, str]] = {"i": "num_groups", "j": "num_inner_repetitions"}

    def __post_init__(self) -> None:
        super().__post_init__()
        require_multiple(self, "num_layers", "num_groups")
        if self.embedding_projection is None:
            object.__setattr__(self, "embedding_projection", self.embedding_dim != self.hidden_dim)
        if not self.embedding_projection and self.embedding_dim != self.hidden_dim:
            raise ValueError(
                f"`embedding_projection` can only be False if `embedding_dim` ({self.embedding_dim}) equals "
                f"`hidden_dim` ({self.hidden_dim})."
            )


@keras.saving.register_keras_serializable(package="lmzoo")
class SharedBlocks(ConfiguredLayer):
    """Stack of Transformer blocks in groups that are applied repeatedly (Lan et al., 2020, section 3.1).

    Each group is applied `repetitions` times with the same weights, then the next group. By default, compiled code has
    one loop per group, so that compile time does not grow with the number of repetitions.

    Args:
        blocks: blocks of all groups, group by group; all groups have the same size.
        num_groups: int, number of groups.
        repetitions: int, number of times that each group is applied.
        unroll: bool, whether to compile each application separately instead of a loop.

    Call arguments:
        x: float (B, T, H), hidden states before the first block.
        padding_mask: bool (B, T), True at real tokens.

    Returns:
        A list of float tensors (B, T, H), the hidden states after each application of a block.
    """

    def __init__(
        self, blocks: list[TransformerBlock], num_groups: int, repetitions: int, unroll: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.blocks = list(blocks)
        self.num_groups = num_groups
        self.repetitions = repetitions
        self.unroll = unroll

    @property
    def groups(self) -> list[list[TransformerBlock]]:
        """Blocks of each group, in order."""
        blocks_per_group = len(self.blocks) // self.num_groups
        return [self.blocks[i : i + blocks_per_group] for i in range(0, len(self.blocks), blocks_per_group)]

    def build(self, input_shape: Shape) -> None:
        """Create the weights of the blocks."""
        for block in self.blocks:
            if not block.built:  # blocks that Keras restored from a configuration are built already
                block.build(input_shape)

    def call(self, x: Tensor, padding_mask: Tensor, training: bool = False) -> list[Tensor]:
        """Apply all groups, and return the hidden states after each application of a block."""
        states = []
        for group in self.groups:
            if self.unroll:
                for block in group * self.repetitions:
                    x = block(x, padding_mask, training=training)  # (B, T, H)
                    states.append(x)
            else:
                group_states = self._apply_in_loop(group, x, padding_mask, training)
                states += group_states
                x = group_states[-1]
        return states

    def _apply_in_loop(
        self, group: list[TransformerBlock], x: Tensor, padding_mask: Tensor, training: bool
    ) -> list[Tensor]:
        """Apply a group `repetitions` times in a compiled loop, and return the hidden states after each block."""
        # A loop needs stateless calls, so variables such as dropout seeds are part of the carry.
        block_weights = [[keras.ops.copy(v.value) for v in block.trainable_variables] for block in group]
        states = [[v.value for v in block.non_trainable_variables] for block in group]

        # Kernels are copied only in training, since an exported model would copy them for each request.
        copy_kernels = training and self.repetitions > 1
        longer_kernels = [
            lengthen_kernels(*pair) if copy_kernels else {} for pair in zip(group, block_weights, strict=True)
        ]

        def step(carry: Tensors, _: None) -> tuple[Tensors, Tensors]:
            x, states = carry
            outputs = []
            new_states = []
            for block, weights, kernels, state in zip(group, block_weights, longer_kernels, states, strict=True):
                with set_temporary_attributes((layer, "longer_kernel", kernel) for layer, kernel in kernels.items()):
                    x, state = block.stateless_call(weights, state, x, padding_mask, training=training)
                outputs.append(x)
                new_states.append(state)
            return (x, new_states), outputs

        (_, new_states), outputs = scan(step, (x, states), length=self.repetitions)  # each (repetitions, B, T, H)
        for block, state in zip(group, new_states, strict=True):
            # Assign seeds only, since in mixed precision the loop may have rounded frozen weights.
            seed_ids = {id(v) for v in get_seeds(block)}
            for variable, value in zip(block.non_trainable_variables, state, strict=True):
                if id(variable) in seed_ids:
                    variable.assign(value)
        return [output[i] for i in range(self.repetitions) for output in outputs]

    def compute_output_shape(self, x_shape: Shape, padding_mask_shape: Shape | None = None) -> list[Shape]:
        """Return the shapes of the outputs: the shape of `x`, once for each application of a block."""
        return [x_shape] * (len(self.blocks) * self.repetitions)


def lengthen_kernels(block: TransformerBlock, weights: list[Tensor]) -> dict[keras.layers.Dense, Tensor]:
    """Copy kernels of a block to arrays with longer rows, for faster repeated products, and return the copies by layer.

    Kernels are copied only on TensorFlow, in float32 and without `remat`, and only if they are trainable, have aliased
    rows (see `is_aliased`), and belong to layers without LoRA and quantization.

    Args:
        block: a Transformer block.
        weights: values of the block's trainable variables.
    """
    # In bfloat16, copies are no faster. With `remat`, gradients are computed for the variables, not for copies.
    if keras.backend.backend() != "tensorflow" or block.compute_dtype != "float32" or block.remat:
        return {}
    values_by_id = {id(variable): value for variable, value in zip(block.trainable_variables, weights, strict=True)}
    attention = block.attention
    layers = [attention.output_dense, block.intermediate_dense, block.output_dense]
    if block.hidden_dim > MAX_JOINED_WIDTH:
        layers += [attention.query, attention.key, attention.value]
    plain_layers = [layer for layer in layers if is_plain(layer) and id(layer.kernel) in values_by_id]
    return {layer: lengthen_rows(values_by_id[id(layer.kernel)]) for layer in plain_layers if is_aliased(layer.kernel)}


@keras.saving.register_keras_serializable(package="lmzoo")
class AlbertBackbone(TransformerBackbone):
    """ALBERT encoder: BERT with narrow token embeddings and blocks that share their weights.

    The inputs are a dict of int32 arrays (B, T) for B texts of T tokens: `token_ids`, `padding_mask` (1 at real tokens)
    and `segment_ids`.

    The outputs are a dict: `sequence_output`, the last hidden states (B, T, H); `pooled_output`, the pooler's vector of
    each text (B, H); and `hidden_states`, a tuple of num_layers · num_inner_repetitions + 1 tensors (B, T, H), starting
    with the projected embeddings.

    Args:
        vocabulary_size: number of token ids.
        num_layers: total number of times that groups of blocks are applied.
        num_heads: number of attention heads of each block; must divide `hidden_dim`.
        hidden_dim: width of the hidden states, H.
        intermediate_dim: width of the feed-forward networks' hidden layer.
        dropout: rate in [0, 1) for embeddings, residual branches and attention probabilities.
        max_sequence_length: longest input in tokens; the position table has as many rows.
        num_segments: number of segments. With 1, all tokens get the same segment embedding; with 0, there are none.
        activation: name of the feed-forward activation; see `lmzoo.layers.get_activation`.
        layer_norm_epsilon: number in (0, 1) that is added to the variance in every LayerNorm.
        initializer_range: standard deviation of the truncated normal initializer.
        embedding_dim: width of the token embeddings.
        num_groups: number of groups of blocks; must divide `num_layers`. Each group is applied
            `num_layers / num_groups` times in a row.
        num_inner_repetitions: number of blocks in each group.
        embedding_projection: whether a linear layer projects the embeddings to `hidden_dim`; by default only if the
            widths differ. (Google's code has no such layer if the widths are equal; Hugging Face's always has one.)
        unroll: whether to compile each application of a block separately instead of a loop.
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

    backbone = lmzoo.models.AlbertBackbone(
        vocabulary_size=101, num_layers=2, num_heads=3, hidden_dim=12, intermediate_dim=24, embedding_dim=8
    )
    ids = np.array([[2, 17, 23, 3, 0]], "int32")
    outputs = backbone({"token_ids": ids, "padding_mask": ids > 0, "segment_ids": np.zeros_like(ids)})
    len(outputs["hidden_states"])  # 3
    ```
    """

    config_class = AlbertConfig
    generator_embeddings = "shared"

    # The loop includes the last block, so computing that block only at chosen positions would save nothing.
    compute_vectors_at = Backbone.compute_vectors_at

    @property
    def blocks(self) -> list[TransformerBlock]:
        """Blocks in the order of application; shared blocks occur several times."""
        return [block for group in self.encoder.groups for block in group * self.encoder.repetitions]

    @classmethod
    def make_layers(cls, config: Any, dtype: keras.DTypePolicy) -> dict[str, Any]:
        layers: dict[str, Any] = {"embeddings": cls.make_embeddings(config, dtype, config.embedding_dim)}
        if config.embedding_projection:
            layers["embedding_projection"] = cls.make_embedding_projection(config, dtype)
        block_names = [
            f"group_{i}_block_{j}" for i in range(config.num_groups) for j in range(config.num_inner_repetitions)
        ]
        layers["encoder"] = SharedBlocks(
            [cls.make_block(config, dtype, name) for name in block_names],
            config.num_groups,
            config.num_layers // config.num_groups,
            config.unroll,
            dtype=dtype,
            name="encoder",
        )
        layers["pooler"] = FirstTokenPooler(config.hidden_dim, config.initializer_range, dtype=dtype, name="pooler")
        return layers

    @classmethod
    def compute_states(cls, layers: dict[str, Any], x: Tensor, mask: Tensor) -> list[Tensor]:
        return layers["encoder"](x, mask)

    @classmethod
    def compute_pooled(cls, layers: dict[str, Any], states: list[Tensor], mask: Tensor) -> Tensor:
        return layers["pooler"](states[-1])
