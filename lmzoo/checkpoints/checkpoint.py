"""A directory with a model in another library's format."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras

from lmzoo.checkpoints.config_table import Arguments, format_keys
from lmzoo.checkpoints.engine import Layout, Plan, canonical_names, check_sizes, plan, weights_of
from lmzoo.checkpoints.formats.tensor_file import LazyTensors
from lmzoo.checkpoints.tokenizers.config import longest_sequence
from lmzoo.checkpoints.tokenizers.files import read_tokenizer_and_packing
from lmzoo.checkpoints.tokenizers.formats import holds_tokenizer
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import JsonFiles
from lmzoo.registry.family import Family, families_with
from lmzoo.registry.head_kinds import HasHead, task_of
from lmzoo.text import Preprocessor


@dataclass(frozen=True)
class StoredHead:
    """The head that a checkpoint's files hold, if any.

    Attributes:
        kind: Its kind, or None for no head.
        arguments: Reads arguments of the task's constructor, as far as the files give them, for a kind of head.
        alternatives: Other kinds of heads that the tensors may be, if nothing but their names tells it.
    """

    kind: str | None = None
    arguments: Callable[[str], Arguments] = lambda kind: {}
    alternatives: Collection[str] = ()


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose format and family are known, as a `lmzoo.presets.source.Source`.

    Attributes:
        files: Its JSON files.
        format: "hf", "google", "fairseq", "keras_hub" or "bilm", a key of `Family.checkpoints`.
        family: The record of its family.
        arguments: Arguments of the family's configuration class.
        weights: Its weights, which are opened when they are first needed.
        read_head: Finds the stored head.
        config_file: The configuration, for messages.
        unknown_keys: The configuration's keys that are ignored since lmzoo does not know them, with their values.
        sequence_length: Most tokens of a text, if other files than the tokenizer's say so.
        notes: Lines of reports about other files.
    """

    files: JsonFiles
    format: str
    family: Family
    arguments: Arguments
    weights: LazyTensors
    read_head: Callable[[], StoredHead] = StoredHead
    config_file: Path | None = None
    unknown_keys: Arguments = field(default_factory=dict)
    sequence_length: int | None = None
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        """The directory of the files."""
        return self.files.directory

    @functools.cached_property
    def stored_head(self) -> StoredHead:
        """The head that the files hold, if any."""
        return self.read_head()

    @property
    def head(self) -> str | None:
        """Kind of the stored head, or None."""
        return self.stored_head.kind

    @property
    def layout(self) -> Layout:
        """The layout of the family's models in the format."""
        return self.family.checkpoints[self.format]

    @property
    def backbone_class(self) -> type[keras.Model]:
        """The family's backbone."""
        return self.family.backbone

    def build(self, overrides: Mapping[str, Any], load_weights: bool = True) -> keras.Model:
        """Build the backbone with random weights; if weights will be loaded, first check that the files can hold them.

        Raises:
            PresetError: If they cannot: the configuration is that of a far larger model.
        """
        if load_weights:
            check_sizes(self.layout, self.weights.open(), self.backbone_class.config_class(**self.arguments))
        if self.unknown_keys:
            warnings.warn(f"{self.config_file}: ignoring unknown keys: {format_keys(self.unknown_keys)}.", stacklevel=2)
        return self.family.backbone(**{**self.arguments, **overrides})

    def head_of(self, cls: type[HasHead]) -> Arguments | None:
        """Return the constructor arguments for task `cls` if its head is stored, else None."""
        kind = self.head if self.head in cls.other_head_kinds else cls.head_kind
        if kind not in self.layout.heads or not self._holds_head(kind, cls):
            return None
        return self.stored_head.arguments(kind)

    def _holds_head(self, kind: str, cls: type[HasHead]) -> bool:
        """Return whether the files hold a head of a kind, that of task `cls`, alone or as a part of another head."""
        if kind == self.head or kind in self.stored_head.alternatives:
            return True
        if self.head is None:
            return False
        task = task_of(self.head)
        if self.head not in cls.reads_heads and (task is None or kind not in task.reads_heads):
            return False
        # One head is a part of the other. The names of its tensors show whether the file also holds this one.
        heads = self.layout.heads
        wanted = {row.name for row in heads[kind].values()}
        stored = {row.name for row in heads.get(self.head, {}).values()}
        return canonical_names(self.layout, self.weights.open()).keys() >= wanted - stored

    def preprocessor(self) -> Preprocessor:
        """Return the stored tokenizer and packing rule.

        Raises:
            PresetError: If files are missing, or describe what lmzoo does not support.
        """
        size = self.arguments.get("vocabulary_size")
        characters = self.arguments.get("max_characters", 50)
        tokenizer, packing = read_tokenizer_and_packing(self.files, self.family, size, characters)
        has_segments = self.family.packing.segments
        segments = packing.segments and (has_segments or self.arguments.get("num_segments", 0) > 1)
        packing = dataclasses.replace(packing, segments=segments, zero_segments=has_segments and not segments)
        positions = self.arguments.get("max_sequence_length", 512)
        stated = self.sequence_length
        length = longest_sequence(self.files, positions) if stated is None else min(stated, positions)
        return Preprocessor(tokenizer, packing, length)

    def plan(self, model: keras.Model) -> Plan:
        """Plan and check the loading of a backbone, or of the task whose head is stored, without reading a tensor.

        Raises:
            PresetError: Naming the first tensor that is missing, left over, or of another shape.
        """
        head = model.head_kind if isinstance(model, HasHead) else None
        return plan(self.layout, self.weights.open(), weights_of(model), head)

    def load(self, model: keras.Model, with_head: bool = True) -> Plan:
        """Load the weights into a backbone or a task and return the plan.

        Args:
            model: The backbone or the task.
            with_head: Whether the head of a task is stored; otherwise only its backbone is loaded.

        Raises:
            PresetError: As for `plan`, or if two tensors that must be equal are not.
        """
        loaded = model if with_head else getattr(model, "backbone", model)
        weights = weights_of(loaded)
        done = self.plan(loaded)
        done.run()
        if prefix := done.tensors.prefix:
            warnings.warn(
                f"{done.tensors.path}: every name begins with {prefix!r}, which a wrapper of the model left there, and "
                "was read without it.",
                stacklevel=2,
            )
        for path in done.missing:  # the model may have been built without initial values
            if path.endswith("/kernel"):
                deviation = getattr(model, "backbone", model).config.initializer_range
                draw = keras.initializers.TruncatedNormal(stddev=deviation)
                weights[path].assign(draw(weights[path].shape))
        for group in self.layout.optional:
            if not any(path.startswith(group) for path in done.missing):
                continue
            part = group.rstrip("/").rpartition("/")[2]
            if part == "pooler" and isinstance(model, HasHead) and not model.uses_pooler:
                continue
            so = ", so `pooled_output` is meaningless before training" if part == "pooler" else ""
            warnings.warn(f"{self.directory} holds no {part}: it starts with random weights{so}.", stacklevel=2)
        return done

    def close(self) -> None:
        """Close the weights' files."""
        self.weights.close()

    def report(self, model: keras.Model) -> dict[str, str]:
        """Check all weights as `load` does and return names of parts -> what was found."""
        done = self.plan(model)
        done.run()
        own = {id(weight) for weight in getattr(model, "backbone", model).weights}
        of_backbone = sum(id(weights[0]) in own for weights, *_ in done.assignments)
        of_head = len(done.assignments) - of_backbone
        files = sorted({done.tensors.file_of(name).name for _, name, _ in done.assignments})
        tensors = f"{of_backbone} of the backbone, {of_head} of the head, in {_first(files)}"
        found = {"format": self.layout.name, "tensors": tensors, **self.notes}
        if done.tensors.prefix:
            found["names"] = f"without {done.tensors.prefix!r}, with which each begins in the file"
        if self.unknown_keys and self.config_file is not None:
            found[f"not read: keys of {self.config_file.name}"] = format_keys(self.unknown_keys)
        if (activation := getattr(model, "output_activation", None)) is not None:
            found["answers"] = f"after the activation {activation!r}"
        if done.missing:
            found["not there"] = f"{', '.join(done.missing)}: random at first"
        for reason in sorted(set(done.left_out.values())):
            names = [name for name, why in done.left_out.items() if why == reason]
            found[f"not read: {reason}"] = f"{len(names)}: {_first(names)}"
        return found


def _first(names: list[str]) -> str:
    return names[0] + (", …" if len(names) > 1 else "")


def find_family(format: str, read: Callable[[Family], Checkpoint], directory: Path | None = None) -> Checkpoint:
    """Return what a function reads for the first family with checkpoints in a format whose configuration fits.

    Args:
        format: A key of `Family.checkpoints`.
        read: Reads the checkpoint as one of a family.
        directory: The checkpoint's, if the files of a tokenizer tell families apart: the families whose tokenizer it
            holds come first.

    Raises:
        PresetError: If no family fits: the error of the first one.
    """
    errors = []
    families = families_with(format)
    if directory is not None:
        families.sort(key=lambda family: not holds_tokenizer(directory, family.tokenizer))
    for family in families:
        try:
            return read(family)
        except PresetError as error:
            errors.append(error)
    raise errors[0]


def read_arguments(
    family: Family, format: str, stored: Mapping[str, object], file: Path, ignore_unknown: bool = False, **others: Any
) -> Arguments:
    """Read the arguments of a family's configuration class from a file's content, `stored`.

    Unknown keys are errors or, with `ignore_unknown`, ignored. `others` are arguments that other files give.

    Raises:
        PresetError: Naming the file, and the key whose value the family does not allow.
    """
    table = family.checkpoints[format].config
    arguments = {**table.read(stored, file, ignore_unknown), **others}
    try:
        family.backbone.config_class(**arguments)
    except ValueError as error:
        argument = getattr(error, "argument", None)
        key = table.stored_keys.get(argument, "")
        hint = f" In the file, `{argument}` is {key}." if key not in ("", f"`{argument}`") else ""
        raise PresetError(f"{file}: {error}{hint}") from error
    except TypeError as error:  # from a comparison
        raise PresetError(f"{file} holds a value of the wrong type: {error}.") from error
    return arguments


def read_checkpoint(
    files: JsonFiles,
    format: str,
    family: Family,
    stored: Mapping[str, object],
    file: Path,
    weights: LazyTensors,
    read_head: Callable[[], StoredHead] = StoredHead,
    **others: Any,
) -> Checkpoint:
    """Return the checkpoint of a family whose configuration `file` holds `stored`; unknown keys in it are ignored.

    `others` are arguments of the family's configuration class that other files give.

    Raises:
        PresetError: As for `read_arguments`.
    """
    arguments = read_arguments(family, format, stored, file, ignore_unknown=True, **others)
    unknown_keys = family.checkpoints[format].config.unknown(stored)
    return Checkpoint(files, format, family, arguments, weights, read_head, file, unknown_keys)
