"""What a model must have to be exported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

import keras

from lmzoo.family import Family
from lmzoo.text import Preprocessor


class ServedModel(Protocol):
    """A Keras model on a backbone that says what it answers to strings; `lmzoo.models.Task` is one.

    Attributes:
        backbone: its inputs are the model's token features.
        preprocessor: from strings to token features.
        input: the model's symbolic inputs, by name.
        output: its symbolic outputs.
        served_outputs: names of what it answers.
        output_name: name of what it computes, in files for other runtimes.
    """

    served_outputs: ClassVar[tuple[str, ...]]
    output_name: ClassVar[str]
    backbone: keras.Model
    preprocessor: Preprocessor
    input: Mapping[str, Any]
    output: Any

    @property
    def family(self) -> Family:
        """The record of the backbone's family."""

    def serve(self, features: dict[str, Any]) -> dict[str, Any]:
        """Answers to token features, as TensorFlow ops."""

    def signatures(self) -> tuple[Any, dict[str, Any]]:
        """The functions to export, by name, and what they use."""

    def save(self, filepath: str | Path) -> None:
        """Writes a `.keras` file."""

    def count_params(self) -> int:
        """Number of parameters."""
