"""A directory with a model in somebody else's format, and how it becomes one of ours."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras

from lmzoo.checkpoints.engine import Layout, Plan, canonical_names, plan, weights_of
from lmzoo.checkpoints.formats.tensor_file import TensorFile
from lmzoo.checkpoints.tokenizer_config import longest_row
from lmzoo.checkpoints.tokenizer_files import read_tokenizer
from lmzoo.errors import PresetError
from lmzoo.family import Family
from lmzoo.head_kinds import HasHead, task_of
from lmzoo.text import Preprocessor


@dataclass(frozen=True)
class Checkpoint:
    """A recognised checkpoint; its weights have not been read yet.

    Attributes:
        directory: where it is.
        kind: "hf", "google", "fairseq", "keras_hub" or "bilm", a key of `Family.checkpoints`.
        family: the record of its family.
        arguments: those of the family's configuration class.
        head: kind of the head that it holds, or None.
        head_arguments: those of the task's constructor that the files tell.
        open_tensors: opens the weights.
    """

    directory: Path
    kind: str
    family: Family
    arguments: Mapping[str, Any]
    open_tensors: Callable[[], TensorFile]
    head: str | None = None
    head_arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def format(self) -> Layout:
        """The tables of the family's models in this format."""
        return self.family.checkpoints[self.kind]

    @property
    def backbone_class(self) -> type[keras.Model]:
        """The family's class."""
        return self.family.backbone

    def build(self, overrides: Mapping[str, Any]) -> keras.Model:
        """The backbone with random weights.

        Args:
            overrides: constructor arguments to set instead.
        """
        return self.family.backbone(**{**self.arguments, **overrides})

    def head_of(self, cls: type[HasHead]) -> dict[str, Any] | None:
        """Arguments of a task's constructor, if its head is stored; None if not."""
        kind, known = cls.head_kind, task_of(self.head)
        # One may be a part of the other. What a file is called does not tell whether it holds the whole.
        related = self.head in cls.reads_heads or (known is not None and kind in known.reads_heads)
        held = kind == self.head or (related and self._holds_more(kind))
        return dict(self.head_arguments) if held and kind in self.format.heads else None

    def _holds_more(self, head: str) -> bool:
        """Whether the file holds what another head has beside the weights of the one that it is known for."""
        wanted, known = ({row.name for row in self.format.heads.get(h, {}).values()} for h in (head, self.head))
        return canonical_names(self.format, self.open_tensors()).keys() >= wanted - known

    def preprocessor(self) -> Preprocessor:
        """Tokenizer and packing rule.

        Raises:
            PresetError: if there are no tokenizer files, or ones that our tokenizers cannot follow.
        """
        size, characters = self.arguments.get("vocabulary_size"), self.arguments.get("max_characters", 50)
        family = self.family
        tokenizer = read_tokenizer(self.directory, family.tokenizer, size, characters, family.special_tokens)
        length = longest_row(self.directory, self.arguments.get("max_sequence_length", 512))
        return Preprocessor(tokenizer, self.family.packing, length)

    def plan(self, model: keras.Model) -> Plan:
        """What loading will do, checked, without reading a tensor.

        Args:
            model: a backbone, or the task whose head is stored.

        Raises:
            PresetError: naming the first tensor that is missing, left over, or of another shape.
        """
        return plan(self.format, self.open_tensors(), weights_of(model), getattr(model, "head_kind", None))

    def load(self, model: keras.Model) -> Plan:
        """Assigns the weights.

        Args:
            model: a backbone, or the task whose head is stored.

        Returns:
            What was done.

        Raises:
            PresetError: naming the first tensor that is missing, left over, or of another shape.
        """
        weights, done = weights_of(model), self.plan(model)
        done.run()
        for path in done.missing:  # they may have been made without initial values
            if path.endswith("/kernel"):
                deviation = getattr(model, "backbone", model).config.initializer_range
                draw = keras.initializers.TruncatedNormal(stddev=deviation)
                weights[path].assign(draw(weights[path].shape))
        if done.missing and getattr(model, "uses_pooler", True):
            warnings.warn(
                f"{self.directory} holds no {done.missing[0].split('/')[0]}: it starts with random weights, and so "
                "`pooled_output` means nothing before training.",
                stacklevel=2,
            )
        return done


def read_arguments(family: Family, kind: str, stored: Mapping[str, Any], file: Path, **told: Any) -> dict[str, Any]:
    """Arguments of a family's configuration class, as a file gives them.

    Args:
        family: the record of the family.
        kind: the format, a key of `Family.checkpoints`.
        stored: the file's content.
        file: its path.
        **told: arguments that other files tell.

    Raises:
        PresetError: naming the file, and the key whose value no model of the family can have.
    """
    table = family.checkpoints[kind].config
    arguments = {**table.read(stored, file), **told}
    try:
        family.backbone.config_class(**arguments)
    except ValueError as error:
        raise PresetError(f"{file}: {table.in_its_words(str(error))}") from error
    except TypeError as error:  # from a comparison
        raise PresetError(f"{file} holds a value of the wrong type: {error}.") from error
    return arguments
