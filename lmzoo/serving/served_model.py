"""What a model needs so that it can be exported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

import keras

from lmzoo.common.tensor_types import Features, Tensors
from lmzoo.registry.family import Family
from lmzoo.text import Preprocessor

if TYPE_CHECKING:
    import tensorflow as tf

# The functions to export, by the names of their signatures, after the module that holds what they use.
Signatures: TypeAlias = "tuple[tf.Module, dict[str, tf.types.experimental.PolymorphicFunction]]"


class ServedModel(Protocol):
    """A Keras model on a backbone, with a preprocessor for strings, such as any `lmzoo.models.Task`.

    Attributes:
        backbone: its inputs are the model's token features.
        preprocessor: from strings to token features.
        input: the model's symbolic inputs, by name.
        output: its symbolic output.
        weights: its variables.
        served_outputs: names of the outputs of `serve`.
        output_name: name of `output` in files for other runtimes.
    """

    served_outputs: ClassVar[tuple[str, ...]]
    output_name: ClassVar[str]
    backbone: keras.Model
    preprocessor: Preprocessor
    input: Mapping[str, keras.KerasTensor]
    output: keras.KerasTensor
    weights: list[keras.Variable]

    def __call__(self, inputs: Features) -> Tensors:
        """Compute the outputs."""

    @property
    def class_names(self) -> list[str]:
        """Names of the classes, if there are any."""

    @property
    def served_length(self) -> int:
        """The most tokens of an input that the exported model reads."""

    @property
    def family(self) -> Family:
        """The record of the backbone's family."""

    def serve(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Compute the named answers to token features, with TensorFlow ops."""

    def signatures(self) -> Signatures:
        """Make the functions to export."""

    def save(self, filepath: str | Path) -> None:
        """Write a `.keras` file."""

    def count_params(self) -> int:
        """Count the parameters."""
