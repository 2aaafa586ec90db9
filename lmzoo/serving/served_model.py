"""The interface of models that can be exported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

import keras

from lmzoo.common.tensor_types import Features, Tensors
from lmzoo.registry.family import Family
from lmzoo.text import Preprocessor
from lmzoo.text.long_texts import Windows

if TYPE_CHECKING:
    import tensorflow as tf

# A module with the resources of the exported functions, and the functions by signature name.
Signatures: TypeAlias = "tuple[tf.Module, dict[str, tf.types.experimental.PolymorphicFunction]]"


class ServedModel(Protocol):
    """A Keras model with a backbone and a preprocessor for strings, such as any `lmzoo.models.Task`.

    Attributes:
        backbone: Keras model whose inputs are token features.
        preprocessor: `Preprocessor` from strings to token features.
        input: symbolic inputs by name.
        output: symbolic output.
        weights: variables of the model.
        windows: maximum number of windows in which a long text is read, "auto", or None if long texts are truncated.
        stride: number of tokens from one window to the next, or None for the task's default.
        served_outputs: names of the outputs of `serve`.
        output_name: str, name of `output` in files for other runtimes.
        reads_pairs: bool, whether the model takes only pairs of texts, with `segment_ids` among its inputs.
    """

    served_outputs: ClassVar[tuple[str, ...]]
    output_name: ClassVar[str]
    backbone: keras.Model
    preprocessor: Preprocessor
    input: Mapping[str, keras.KerasTensor]
    output: keras.KerasTensor
    weights: list[keras.Variable]
    windows: Windows
    stride: int | None
    reads_pairs: bool

    def __call__(self, inputs: Features) -> Tensors:
        """Compute the outputs from token features."""

    @property
    def class_names(self) -> list[str]:
        """Names of the classes; empty for models without classes."""

    @property
    def served_length(self) -> int:
        """Maximum number of tokens of an input to the exported model."""

    @property
    def family(self) -> Family:
        """Family record of the backbone."""

    def serve(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Compute named answers from token features with TensorFlow ops."""

    def signatures(self) -> Signatures:
        """Return the functions to export by signature name, and a module with their resources."""

    def save(self, filepath: str | Path) -> None:
        """Save the model as a `.keras` file."""

    def count_params(self) -> int:
        """Return the number of parameters."""
