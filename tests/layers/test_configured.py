import pytest

from lmzoo.layers import SelfAttention
from lmzoo.layers.configured import constructor_arguments


class Passes(SelfAttention):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class Adds(SelfAttention):
    def __init__(self, gain=1.0, **kwargs):
        super().__init__(**kwargs)
        self.gain = gain


class Fixes(SelfAttention):
    def __init__(self, hidden_dim):
        super().__init__(num_heads=2, hidden_dim=hidden_dim)


OWN = [
    *("num_heads", "hidden_dim", "dropout", "initializer_range", "mask"),
    *("use_bias", "rotary_wavelength", "window", "head_dim", "scale"),
]


@pytest.mark.parametrize(
    ("cls", "expected"), [(SelfAttention, OWN), (Passes, OWN), (Adds, ["gain", *OWN]), (Fixes, ["hidden_dim"])]
)
def test_arguments_of_subclasses(cls, expected):
    assert constructor_arguments(cls) == expected


def test_configurations_of_subclasses():
    for layer in (Passes(2, 8, dropout=0.25), Adds(gain=0.5, num_heads=2, hidden_dim=8)):
        config = layer.get_config()
        assert config == type(layer).from_config(config).get_config()
        assert (config["num_heads"], config["dropout"]) == (2, layer.dropout.rate)
