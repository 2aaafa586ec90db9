"""Base configurations of Transformer encoders and decoders, and checks of their fields."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from lmzoo.common.arguments import is_integer, is_number, require, require_share
from lmzoo.errors import ArgumentError
from lmzoo.layers.activations import get_activation

MAX_LAYERS = 1000  # far more than the deepest published models
_LAYER_COUNTS = ("num_layers", "num_inner_repetitions")


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Base configuration of Transformers, which defines defaults, checks values, and is stored by `get_config`.

    The fields are documented in `BertBackbone`. A model has at most `MAX_LAYERS` layers.
    """

    # Row of the position table for the first token. If this is not 0, padding gets the previous row.
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
        """Positional arguments of a `lmzoo.layers.TransformerBlock` with this configuration."""
        sizes = self.num_heads, self.hidden_dim, self.intermediate_dim
        return *sizes, self.activation, self.dropout, self.layer_norm_epsilon, self.initializer_range

    def __post_init__(self) -> None:
        """Check all fields.

        Raises:
            ValueError: If a value is invalid; the message gives the field, its value and the allowed values.
        """
        # With postponed annotations, types are strings.
        integer_names = [field.name for field in fields(self) if field.type in (int, "int")]
        require_positive(self, *(name for name in integer_names if name != "num_segments"))
        require(is_integer(self.num_segments, 0), "num_segments", "an integer of at least 0", self.num_segments)
        is_allowed = self.has_segments or self.num_segments == 0
        require(is_allowed, "num_segments", "0, since the family has no segments", self.num_segments)
        self.check_heads()
        check_rates(self)
        epsilon = self.layer_norm_epsilon
        require(is_number(epsilon, 0, 1) and 0 < epsilon < 1, "layer_norm_epsilon", "a number in (0, 1)", epsilon)
        get_activation(self.activation)

    def check_heads(self) -> None:
        """Check that the number of heads divides the width of the hidden states.

        Raises:
            ValueError: If it does not.
        """
        require_multiple(self, "hidden_dim", "num_heads")


@dataclass(frozen=True, kw_only=True)
class FairseqEncoderConfig(EncoderConfig):
    """Configuration with the defaults of fairseq's encoders: no segments, and positions that start at 2."""

    num_segments: int = 0
    layer_norm_epsilon: float = 1e-5

    first_position = 2


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(EncoderConfig):
    """Configuration with the defaults of OpenAI's decoders, without segments."""

    intermediate_dim: Any = None  # an int; None becomes four times `hidden_dim`
    num_segments: int = 0
    activation: str = "gelu_tanh"
    layer_norm_epsilon: float = 1e-5

    has_segments = False

    def __post_init__(self) -> None:
        """Set the default of `intermediate_dim`, and check all fields."""
        if self.intermediate_dim is None and is_integer(self.hidden_dim):
            object.__setattr__(self, "intermediate_dim", 4 * self.hidden_dim)
        super().__post_init__()
        require_positive(self, "intermediate_dim")


def require_positive(config: object, *names: str) -> None:
    """Check that the named fields are positive integers, and that numbers of layers are at most `MAX_LAYERS`.

    Raises:
        ValueError: If a field has another value; the message names the field.
    """
    for name in names:
        value = getattr(config, name)
        require(is_integer(value, 1), name, "a positive integer", value)
        require(name not in _LAYER_COUNTS or value <= MAX_LAYERS, name, f"at most {MAX_LAYERS:,}", value)


def require_finite_or_none(config: object, *names: str) -> None:
    """Check that the named fields are positive finite numbers or None.

    Raises:
        ValueError: If a field has another value; the message names the field.
    """
    for name in names:
        value = getattr(config, name)
        is_valid = value is None or (is_number(value, 0) and 0 < value < math.inf)
        require(is_valid, name, "a positive finite number or None", value)


def require_multiple(config: object, name: str, divisor: str) -> None:
    """Check that the integer field `name` is a multiple of the field `divisor`.

    Raises:
        ValueError: If it is not a multiple; the message gives both values.
    """
    value = getattr(config, name)
    divisor_value = getattr(config, divisor)
    if value % divisor_value:
        raise ArgumentError(f"`{name}` ({value}) must be a multiple of `{divisor}` ({divisor_value}).", divisor)


def check_rates(config: Any) -> None:
    """Check that `dropout` is in [0, 1) and `initializer_range` is finite and not negative.

    Raises:
        ValueError: If one of them is out of range.
    """
    require_share("dropout", config.dropout)
    deviation = config.initializer_range
    is_valid = is_number(deviation, 0) and deviation < math.inf
    require(is_valid, "initializer_range", "a finite number of at least 0", deviation)
