"""Configurations of subclasses of layers."""

from __future__ import annotations

import pytest

from lmzoo.layers import SelfAttention
from lmzoo.layers.configured import list_constructor_arguments


class PassesArguments(SelfAttention):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class AddsArgument(SelfAttention):
    def __init__(self, gain=1.0, **kwargs):
        super().__init__(**kwargs)
        self.gain = gain


class FixesArgument(SelfAttention):
    def __init__(self, hidden_dim):
        super().__init__(num_heads=2, hidden_dim=hidden_dim)


ARGUMENTS = [
    *("num_heads", "hidden_dim", "dropout", "initializer_range", "mask"),
    *("use_bias", "rotary_wavelength", "window", "head_dim", "scale"),
]


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (SelfAttention, ARGUMENTS),
        (PassesArguments, ARGUMENTS),
        (AddsArgument, ["gain", *ARGUMENTS]),
        (FixesArgument, ["hidden_dim"]),
    ],
)
def test_subclasses_add_their_arguments(cls, expected):
    assert list_constructor_arguments(cls) == expected


def test_subclasses_have_complete_configurations():
    for layer in (PassesArguments(2, 8, dropout=0.25), AddsArgument(gain=0.5, num_heads=2, hidden_dim=8)):
        config = layer.get_config()
        assert config == type(layer).from_config(config).get_config()
        assert (config["num_heads"], config["dropout"]) == (2, layer.dropout.rate)
