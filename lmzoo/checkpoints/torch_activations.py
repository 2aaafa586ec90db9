"""Activations by the names of PyTorch's classes, as Sentence Transformers stores them."""

from __future__ import annotations

from pathlib import Path

from lmzoo.checkpoints.config_table import require_value
from lmzoo.errors import PresetError

# Our name -> the class in PyTorch.
_CLASSES = {"linear": "Identity", "gelu": "GELU", "relu": "ReLU", "sigmoid": "Sigmoid", "swish": "SiLU", "tanh": "Tanh"}


def read_activation(stored: object, key: str, file: Path) -> str:
    """Return our name of the activation that a file names.

    Args:
        stored: The file's value, such as "torch.nn.modules.activation.Tanh" or "torch.nn.Tanh".
        key: Its key, for messages.
        file: The file, for messages.

    Raises:
        PresetError: If it is not one of ours. No other class is imported.
    """
    short_names = {name: f"torch.nn.{theirs}" for name, theirs in _CLASSES.items()}
    ours = next((name for name, short in short_names.items() if stored in (short, _whole_name(name))), "")
    require_value(ours, file, key, f"one of {', '.join(short_names.values())}", stored)
    return ours


def write_activation(name: str) -> str:
    """Return the name in PyTorch of one of our activations.

    Raises:
        PresetError: If PyTorch has no such class without arguments.
    """
    if name not in _CLASSES:
        raise PresetError(
            f"The format 'hf' cannot express the activation {name!r} after a head: PyTorch has no class for it."
        )
    return _whole_name(name)


def _whole_name(name: str) -> str:
    return f"torch.nn.modules.{'linear' if name == 'linear' else 'activation'}.{_CLASSES[name]}"
