"""Activations by the names of PyTorch's classes, as Sentence Transformers stores them."""

from __future__ import annotations

import re
from pathlib import Path

from lmzoo.errors import PresetError

# The module and the class in PyTorch -> our name.
_NAMES = {
    ("linear", "Identity"): "linear",
    ("activation", "GELU"): "gelu",
    ("activation", "ReLU"): "relu",
    ("activation", "Sigmoid"): "sigmoid",
    ("activation", "SiLU"): "swish",
    ("activation", "Tanh"): "tanh",
}


def read_activation(stored: object, key: str, file: Path) -> str:
    """Return our name of the activation that a file names.

    Args:
        stored: The file's value, such as "torch.nn.modules.activation.Tanh" or "torch.nn.Tanh".
        key: Its key, for messages.
        file: The file, for messages.

    Raises:
        PresetError: If it is not one of ours. No other class is imported.
    """
    match = re.fullmatch(r"torch\.nn\.(?:modules\.(\w+)\.)?(\w+)", stored) if isinstance(stored, str) else None
    for (module, name), ours in _NAMES.items():
        if match and match[2] == name and match[1] in (None, module):
            return ours
    known = ", ".join(f"torch.nn.{name}" for _, name in _NAMES)
    raise PresetError(f"{file}: `{key}` must be one of {known}, got {stored!r:.100}.")


def write_activation(name: str) -> str:
    """Return the name in PyTorch of one of our activations.

    Raises:
        PresetError: If PyTorch has no such class without arguments.
    """
    for (module, theirs), ours in _NAMES.items():
        if ours == name:
            return f"torch.nn.modules.{module}.{theirs}"
    raise PresetError(
        f"The format 'hf' cannot express the activation {name!r} after a head: PyTorch has no class for it."
    )
