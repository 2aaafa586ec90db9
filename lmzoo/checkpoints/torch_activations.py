"""Conversion between Keras activation names and the PyTorch class names that Sentence Transformers stores."""

from __future__ import annotations

from pathlib import Path

from lmzoo.checkpoints.config_table import require_value
from lmzoo.errors import PresetError

# Keras name -> PyTorch class.
_CLASSES = {"linear": "Identity", "gelu": "GELU", "relu": "ReLU", "sigmoid": "Sigmoid", "swish": "SiLU", "tanh": "Tanh"}


def read_activation(stored: object, key: str, file: Path) -> str:
    """Convert a PyTorch class name to the Keras name of the activation, without importing the class.

    Args:
        stored: Value in the file, such as "torch.nn.modules.activation.Tanh" or "torch.nn.Tanh".
        key: Key of the value, for messages.
        file: Path of the file, for messages.

    Raises:
        PresetError: If the activation is not supported.
    """
    short_names = {name: f"torch.nn.{torch_class}" for name, torch_class in _CLASSES.items()}
    activation = next(
        (name for name, short_name in short_names.items() if stored in (short_name, _get_full_name(name))), ""
    )
    require_value(activation, file, key, f"one of {', '.join(short_names.values())}", stored)
    return activation


def write_activation(name: str) -> str:
    """Convert the Keras name of an activation to the full name of the PyTorch class.

    Raises:
        PresetError: If no supported PyTorch class computes the activation.
    """
    if name not in _CLASSES:
        raise PresetError(
            f"The format 'hf' cannot express the activation {name!r} after a head: PyTorch has no class for it."
        )
    return _get_full_name(name)


def _get_full_name(name: str) -> str:
    return f"torch.nn.modules.{'linear' if name == 'linear' else 'activation'}.{_CLASSES[name]}"
