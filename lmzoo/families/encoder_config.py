"""The parts of a configuration that all Transformers, and all decoders, share."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from lmzoo.common.arguments import is_integer, is_number, require, require_share
from lmzoo.errors import ArgumentError
from lmzoo.layers.activations import get_activation

MOST_LAYERS = 1000  # several times those of the deepest published models
_DEPTHS = ("num_layers", "num_inner_repetitions")


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Shape and constants of a Transformer; the only source of validation, defaults and `get_config`.

    The fields are the arguments that `BertBackbone` documents. There are at most `MOST_LAYERS` layers.
    """

    # Row of the position table that the first token gets. If it is not 0, padding gets the row before it.
    first_position: ClassVar[int] = 0
    has_segments: ClassVar[bool] = True  # whether there may be a segment table

    vocabulary_size: int
    num_layers: int
    num_heads: int
    hidden_dim: int
    intermediate_dim: int
    dropout: float = 0.1
    max_sequence_length: int = 512
    num_segments: int = 2
    activation: str = "gelu"
    layer_norm_epsilon: float = 1e-12
    initializer_range: float = 0.02

    @property
    def block_arguments(self) -> tuple[int, int, int, str, float, float, float]:
        """The first arguments of `lmzoo.layers.TransformerBlock`: those that every block has."""
        sizes = self.num_heads, self.hidden_dim, self.intermediate_dim
        return *sizes, self.activation, self.dropout, self.layer_norm_epsilon, self.initializer_range

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ValueError: naming the field, its value and what is allowed.
        """
        # Types are strings where annotations are postponed.
        integers = [field.name for field in fields(self) if field.type in (int, "int")]
        require_positive(self, *(name for name in integers if name != "num_segments"))
        require(is_integer(self.num_segments, 0), "num_segments", "an integer of at least 0", self.num_segments)
        allowed = self.has_segments or self.num_segments == 0
        require(allowed, "num_segments", "0, since the family has no segments", self.num_segments)
        require_multiple(self, "hidden_dim", "num_heads")
        check_rates(self)
        epsilon = self.layer_norm_epsilon
        require(is_number(epsilon, 0, 1) and 0 < epsilon < 1, "layer_norm_epsilon", "a number in (0, 1)", epsilon)
        get_activation(self.activation)


@dataclass(frozen=True, kw_only=True)
class FairseqEncoderConfig(EncoderConfig):
    """The same with the defaults of fairseq's encoders, without segments and with positions from 2."""

    num_segments: int = 0
    layer_norm_epsilon: float = 1e-5

    first_position = 2


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(EncoderConfig):
    """The same with the defaults of OpenAI's decoders, which have no segments."""

    intermediate_dim: Any = None  # an int; None stands for four times `hidden_dim`
    num_segments: int = 0
    activation: str = "gelu_tanh"
    layer_norm_epsilon: float = 1e-5

    has_segments = False

    def __post_init__(self) -> None:
        """Set the default of `intermediate_dim`, and check every field."""
        if self.intermediate_dim is None and isinstance(self.hidden_dim, int):
            object.__setattr__(self, "intermediate_dim", 4 * self.hidden_dim)
        super().__post_init__()
        require_positive(self, "intermediate_dim")


def require_positive(config: object, *names: str) -> None:
    """Raise a ValueError unless the fields with these names are positive integers, and depths small ones."""
    for name in names:
        value = getattr(config, name)
        require(is_integer(value, 1), name, "a positive integer", value)
        require(name not in _DEPTHS or value <= MOST_LAYERS, name, f"at most {MOST_LAYERS:,}", value)


def require_multiple(config: object, name: str, divisor: str) -> None:
    """Raise a ValueError unless one field, an integer, is a multiple of another."""
    value, part = getattr(config, name), getattr(config, divisor)
    if value % part:
        raise ArgumentError(f"`{name}` ({value}) must be a multiple of `{divisor}` ({part}).", divisor)


def check_rates(config: Any) -> None:
    """Check the fields `dropout` and `initializer_range`."""
    require_share("dropout", config.dropout)
    deviation = config.initializer_range
    valid = is_number(deviation, 0) and deviation < math.inf
    require(valid, "initializer_range", "a finite number of at least 0", deviation)
