"""Configuration of ELMo."""

from __future__ import annotations

from dataclasses import dataclass

from lmzoo.common.arguments import is_integer, require, require_share
from lmzoo.families.encoder_config import MAX_LAYERS, require_finite_or_none, require_positive
from lmzoo.layers.scalar_mix import EPSILON

MARKER_LENGTH = 3  # characters of a sentence marker: start of word, symbol, end of word
FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


@dataclass(frozen=True, kw_only=True)
class ElmoConfig:
    """Configuration of `ElmoBackbone`, which defines defaults and checks values.

    The released models have these defaults, except that the "original" model has `num_highway=2`. The sizes of that
    model are `lstm_dim=4096, projection_dim=512`.

    Example: see `ElmoBackbone`.
    """

    lstm_dim: int
    projection_dim: int
    num_layers: int = 2
    num_highway: int = 1
    char_embedding_dim: int = 16
    filters: tuple[tuple[int, int], ...] = FILTERS
    activation: str = "relu"
    max_characters: int = 50
    cell_clip: float | None = 3.0
    projection_clip: float | None = 3.0
    skip_connections: bool = True
    vocabulary_size: int | None = None
    start_token_id: int = 1
    end_token_id: int = 2
    dropout: float = 0.1
    layer_norm: str | None = None
    freeze_bilm: bool = False

    def __post_init__(self) -> None:
        """Check all fields.

        Raises:
            ValueError: If a value is invalid; the message gives the field, its value and the allowed values.
        """
        require_positive(self, "lstm_dim", "projection_dim", "num_layers", "char_embedding_dim", "max_characters")
        require(is_integer(self.num_highway, 0, MAX_LAYERS), "num_highway", "an integer in 0..1000", self.num_highway)
        self._check_filters()
        require(self.activation in ("relu", "tanh"), "activation", "'relu' or 'tanh'", self.activation)
        require_finite_or_none(self, "cell_clip", "projection_clip")
        if (size := self.vocabulary_size) is not None:
            require(is_integer(size, 3), "vocabulary_size", "an integer above 2 or None", size)
            for name in ("start_token_id", "end_token_id"):
                value = getattr(self, name)
                require(is_integer(value, 1) and value < size, name, f"an integer in 1..{size - 1}", value)
        require_share("dropout", self.dropout)
        require(self.layer_norm in EPSILON, "layer_norm", f"one of {', '.join(map(repr, EPSILON))}", self.layer_norm)
        for name in ("skip_connections", "freeze_bilm"):
            require(isinstance(getattr(self, name), bool), name, "True or False", getattr(self, name))

    def _check_filters(self) -> None:
        """Convert `filters` to tuples, and check `filters` and `max_characters`."""
        try:
            filters = tuple((width, count) for width, count in self.filters)
        except (TypeError, ValueError):
            filters = ()
        is_valid = filters and all(is_integer(n, 1) for pair in filters for n in pair)
        require(is_valid, "filters", "pairs of positive integers (width, count)", self.filters)
        object.__setattr__(self, "filters", filters)  # JSON turns tuples into lists
        if self.vocabulary_size is None:
            min_characters = max(MARKER_LENGTH, *(width for width, _ in filters))
            allowed = f"at least {min_characters}, to hold the widest filter and a sentence marker"
            require(self.max_characters >= min_characters, "max_characters", allowed, self.max_characters)
            is_allowed = self.num_filters >= self.projection_dim
            require(is_allowed, "filters", f"{self.projection_dim} (`projection_dim`) or more in all", self.filters)

    @property
    def hidden_dim(self) -> int:
        """Width of the hidden states, which concatenate both directions: twice `projection_dim`."""
        return 2 * self.projection_dim

    @property
    def num_filters(self) -> int:
        """Total number of filters in the convolutions."""
        return sum(count for _, count in self.filters)
