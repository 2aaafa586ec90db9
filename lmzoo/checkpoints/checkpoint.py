"""A directory with a model in another library's format, and how to load it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras

from lmzoo.checkpoints.config_table import Arguments
from lmzoo.checkpoints.engine import Layout, Plan, canonical_names, check_sizes, plan, weights_of
from lmzoo.checkpoints.formats.tensor_file import TensorFile
from lmzoo.checkpoints.tokenizer_config import longest_sequence
from lmzoo.checkpoints.tokenizer_files import read_tokenizer
from lmzoo.errors import PresetError
from lmzoo.family import Family
from lmzoo.head_kinds import HasHead, task_of
from lmzoo.text import Preprocessor


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose format and family are known, and whose weights have not been read yet.

    Attributes:
        directory: where it is.
        kind: "hf", "google", "fairseq", "keras_hub" or "bilm", a key of `Family.checkpoints`.
        family: the record of its family.
        arguments: arguments of the family's configuration class.
        head: kind of the head that it holds, or None.
        head_arguments: arguments of the task's constructor, as far as the files give them.
        open_tensors: opens the weights.
    """

    directory: Path
    kind: str
    family: Family
    arguments: Arguments
    open_tensors: Callable[[], TensorFile]
    head: str | None = None
    head_arguments: Arguments = field(default_factory=dict)

    @property
    def format(self) -> Layout:
        """How the format stores the family's models."""
        return self.family.checkpoints[self.kind]

    @property
    def backbone_class(self) -> type[keras.Model]:
        """The family's backbone."""
        return self.family.backbone

    def build(self, overrides: Mapping[str, Any], load_weights: bool = True) -> keras.Model:
        """Builds the backbone, with random weights.

        Args:
            overrides: constructor arguments that replace those of the checkpoint.
            load_weights: whether its weights will be loaded. Then the files must be able to hold a model of its size.

        Raises:
            PresetError: if they cannot.
        """
        if load_weights:
            try:
                check_sizes(self.format, self.open_tensors(), self.backbone_class.config_class(**self.arguments))
            except PresetError as error:
                raise PresetError(self.format.config.with_stored_keys(str(error))) from None
        return self.family.backbone(**{**self.arguments, **overrides})

    def head_of(self, cls: type[HasHead]) -> Arguments | None:
        """Arguments of a task's constructor, if its head is stored; None if not."""
        kind, heads = cls.head_kind, self.format.heads
        if self.head is None or kind not in heads:
            return None
        known = task_of(self.head)
        held = kind == self.head
        if not held and (self.head in cls.reads_heads or (known is not None and kind in known.reads_heads)):
            # One head is a part of the other. The names of its tensors show whether the file holds this one, too.
            wanted, there = ({row.name for row in heads.get(head, {}).values()} for head in (kind, self.head))
            held = canonical_names(self.format, self.open_tensors()).keys() >= wanted - there
        return dict(self.head_arguments) if held else None

    def preprocessor(self) -> Preprocessor:
        """Reads the tokenizer and the packing rule.

        Raises:
            PresetError: if the tokenizer files are missing, or ask for what our tokenizers do not support.
        """
        size, characters = self.arguments.get("vocabulary_size"), self.arguments.get("max_characters", 50)
        family = self.family
        tokenizer = read_tokenizer(self.directory, family.tokenizer, size, characters, family.special_tokens)
        length = longest_sequence(self.directory, self.arguments.get("max_sequence_length", 512))
        return Preprocessor(tokenizer, family.packing, length)

    def plan(self, model: keras.Model) -> Plan:
        """Plans and checks the loading, without reading a tensor.

        Args:
            model: a backbone, or the task whose head is stored.

        Raises:
            PresetError: naming the first tensor that is missing, left over, or of another shape.
        """
        return plan(self.format, self.open_tensors(), weights_of(model), getattr(model, "head_kind", None))

    def load(self, model: keras.Model) -> Plan:
        """Assigns the weights; arguments and errors are those of `plan`, which is also returned."""
        weights, done = weights_of(model), self.plan(model)
        done.run()
        for path in done.missing:  # the model may have been built without initial values
            if path.endswith("/kernel"):
                deviation = getattr(model, "backbone", model).config.initializer_range
                draw = keras.initializers.TruncatedNormal(stddev=deviation)
                weights[path].assign(draw(weights[path].shape))
        if done.missing and getattr(model, "uses_pooler", True):
            warnings.warn(
                f"{self.directory} holds no {done.missing[0].split('/')[0]}: it starts with random weights, so "
                "`pooled_output` is meaningless before training.",
                stacklevel=2,
            )
        return done


def read_arguments(family: Family, kind: str, stored: Mapping[str, object], file: Path, **others: Any) -> Arguments:
    """Reads the arguments of a family's configuration class from a file's content.

    Args:
        family: the record of the family.
        kind: the format, a key of `Family.checkpoints`.
        stored: the file's content.
        file: its path.
        **others: arguments that other files give.

    Raises:
        PresetError: naming the file, and the key whose value the family does not allow.
    """
    table = family.checkpoints[kind].config
    arguments = {**table.read(stored, file), **others}
    try:
        family.backbone.config_class(**arguments)
    except ValueError as error:
        raise PresetError(f"{file}: {table.with_stored_keys(str(error))}") from error
    except TypeError as error:  # from a comparison
        raise PresetError(f"{file} holds a value of the wrong type: {error}.") from error
    return arguments
