"""Checkpoints: models in the file formats of other libraries."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import keras

from lmzoo.checkpoints.config_table import Arguments, format_keys, resolve_arguments
from lmzoo.checkpoints.engine import (
    Layout,
    Plan,
    canonical_names,
    check_sizes,
    get_weights_by_path,
    list_head_tensors,
    plan,
)
from lmzoo.checkpoints.formats.tensor_file import LazyTensors
from lmzoo.checkpoints.tokenizers.config import read_sequence_length
from lmzoo.checkpoints.tokenizers.files import read_tokenizer_and_packing
from lmzoo.checkpoints.tokenizers.formats import holds_tokenizer
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import JsonFiles
from lmzoo.registry.family import Family, find_families_by_format
from lmzoo.registry.head_kinds import HasHead, get_task_class
from lmzoo.text import Preprocessor, Tokenizer


@dataclass(frozen=True)
class StoredHead:
    """The head stored in a checkpoint, if any.

    Attributes:
        kind: Kind of the head, such as "classification", or None if there is no head.
        arguments: Function from a kind of head to the stored constructor arguments of its task.
        alternatives: All kinds of head that the names of the stored tensors match, in formats where several kinds may
            match; otherwise empty.
    """

    kind: str | None = None
    arguments: Callable[[str], Arguments] = lambda kind: {}
    alternatives: Collection[str] = ()


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in a supported format and of a supported family; implements `lmzoo.presets.source.Source`.

    Attributes:
        files: JSON files of the checkpoint's directory.
        format: Format of the files, a key of `Family.checkpoints`: "hf", "google", "fairseq", "keras_hub", "bilm" or
            "bilm_tokens".
        family: Registered family of the model.
        arguments: Arguments of the family's configuration class.
        weights: Tensors of the checkpoint, opened on first use.
        read_head: Function that returns the stored head.
        config_file: Path of the configuration file, for messages.
        unknown_keys: Unsupported configuration keys, which are ignored, and their values.
        sequence_length: Maximum number of tokens in a sequence if a file other than the tokenizer's specifies it, else
            None.
        notes: Additional entries of the dict that `report` returns.
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
        """Directory of the checkpoint."""
        return self.files.directory

    @functools.cached_property
    def stored_head(self) -> StoredHead:
        """The head stored in the files."""
        return self.read_head()

    @property
    def head(self) -> str | None:
        """Kind of the stored head, or None if there is no head."""
        return self.stored_head.kind

    @property
    def layout(self) -> Layout:
        """Layout of the family's checkpoints in this format."""
        return self.family.checkpoints[self.format]

    @property
    def backbone_class(self) -> type[keras.Model]:
        """Backbone class of the family."""
        return self.family.backbone

    def build(self, overrides: Mapping[str, Any], load_weights: bool = True) -> keras.Model:
        """Build the backbone with random weights.

        Unknown keys of the configuration are ignored with a warning.

        Args:
            overrides: Constructor arguments that replace the stored ones.
            load_weights: Whether the stored weights will be loaded into the backbone. If so, their sizes are compared
                with the configuration first.

        Raises:
            PresetError: If the configuration describes a far larger model than the stored weights.
        """
        if load_weights:
            check_sizes(self.layout, self.weights.open(), self.backbone_class.config_class(**self.arguments))
        if self.unknown_keys:
            warnings.warn(f"{self.config_file}: ignoring unknown keys: {format_keys(self.unknown_keys)}.", stacklevel=2)
        arguments = self.arguments
        if load_weights and overrides:
            arguments = resolve_arguments(self.backbone_class.config_class, arguments)
        return self.family.backbone(**{**arguments, **overrides})

    def get_head_arguments(self, cls: type[HasHead]) -> Arguments | None:
        """Return the constructor arguments for task `cls` if its head is stored, else None."""
        kind = self.head if self.head in cls.other_head_kinds else cls.head_kind
        if kind not in self.layout.heads or not self._holds_head(kind, cls):
            return None
        return self.stored_head.arguments(kind)

    def _holds_head(self, kind: str, cls: type[HasHead]) -> bool:
        """Return whether the files hold a head of `kind` for task `cls`, alone or as part of another head."""
        if kind == self.head or kind in self.stored_head.alternatives:
            return True
        if self.head is None:
            return False
        task_class = get_task_class(self.head)
        if self.head not in cls.reads_heads and (task_class is None or kind not in task_class.reads_heads):
            return False
        # One head is part of the other, so only the tensor names tell whether the files hold this one.
        head_tensors = list_head_tensors(self.layout, kind)
        stored_head_tensors = list_head_tensors(self.layout, self.head) if self.head in self.layout.heads else set()
        return canonical_names(self.layout, self.weights.open()).keys() >= head_tensors - stored_head_tensors

    def preprocessor(self) -> Preprocessor:
        """Return a preprocessor with the stored tokenizer, packing and sequence length.

        Raises:
            PresetError: If a file is missing, or describes an unsupported tokenizer or packing, or if the format's own
                library would compute other positions for texts with a special token.
        """
        vocabulary_size = self.arguments.get("vocabulary_size")
        max_characters = self.arguments.get("max_characters", 50)
        tokenizer, packing = read_tokenizer_and_packing(self.files, self.family, vocabulary_size, max_characters)
        has_segments = self.family.packing.segments
        uses_segments = packing.segments and (has_segments or self.arguments.get("num_segments", 0) > 1)
        packing = dataclasses.replace(packing, segments=uses_segments, zero_segments=has_segments and not uses_segments)
        if padding := find_wrong_padding(tokenizer, self.layout):
            advice = "Load the backbone alone, or pass `preprocessor=` to use lmzoo's positions."
            if padding.token in tokenizer.special_tokens:
                raise PresetError(f"{padding.problem} {advice}")
            warnings.warn(f"{padding.problem} {advice}", stacklevel=2)  # few texts hold an ordinary token
        max_positions = self.arguments.get("max_sequence_length", 512)
        limit = self.sequence_length
        sequence_length = (
            read_sequence_length(self.files, max_positions) if limit is None else min(limit, max_positions)
        )
        return Preprocessor(tokenizer, packing, sequence_length)

    def plan(self, model: keras.Model) -> Plan:
        """Match a model's weights with the stored tensors, without reading their values.

        Args:
            model: Backbone, or the task whose head is stored.

        Raises:
            PresetError: If a tensor is missing, unexpected, or of the wrong shape or dtype; the message names the first
                such tensor.
        """
        head = model.head_kind if isinstance(model, HasHead) else None
        return plan(self.layout, self.weights.open(), get_weights_by_path(model), head)

    def load(self, model: keras.Model, with_head: bool = True) -> Plan:
        """Load the stored weights into a backbone or task and return the executed plan.

        Optional weights that the files lack get random initial values, with a warning if the model uses them.

        Args:
            model: Backbone or task.
            with_head: Whether to load the head of a task; if False, only its backbone is loaded.

        Raises:
            PresetError: If a tensor is missing, unexpected, or of the wrong shape or dtype, or two copies of a tensor
                differ.
        """
        loaded_model = model if with_head else getattr(model, "backbone", model)
        weights = get_weights_by_path(loaded_model)
        loading_plan = self.plan(loaded_model)
        loading_plan.run()
        if prefix := loading_plan.tensors.prefix:
            file = loading_plan.tensors.file_of(next(iter(loading_plan.tensors.names())))
            warnings.warn(
                f"{file}: every name begins with {prefix!r}, which a wrapper of the model left there, and was read "
                "without it.",
                stacklevel=2,
            )
        for path in loading_plan.missing:  # the model may have been built without initial values
            if path.endswith("/kernel"):
                stddev = getattr(model, "backbone", model).config.initializer_range
                initializer = keras.initializers.TruncatedNormal(stddev=stddev)
                weights[path].assign(initializer(weights[path].shape))
        for group in self.layout.optional:
            if not any(path.startswith(group) for path in loading_plan.missing):
                continue
            group_name = group.rstrip("/").rpartition("/")[2]
            if group_name == "pooler" and isinstance(model, HasHead) and not model.uses_pooler:
                continue
            effect = ", so `pooled_output` is meaningless before training" if group_name == "pooler" else ""
            warnings.warn(
                f"{self.directory} holds no {group_name}: it starts with random weights{effect}.", stacklevel=2
            )
        return loading_plan

    def load_shared(self, model: HasHead) -> list[str]:
        """Load the backbone of a task, and its head if the files hold all weights of the head.

        Args:
            model: Task.

        Returns:
            The paths of the head's weights that are not loaded.

        Raises:
            PresetError: If a tensor is missing, unexpected, or of the wrong shape or dtype, or two copies of a tensor
                differ.
        """
        kind = model.head_kind
        task_class = get_task_class(kind)
        if kind in self.layout.heads and task_class is not None and self._holds_head(kind, task_class):
            self.load(model)
            return []
        self.load(model, with_head=False)
        return sorted(get_weights_by_path(model).keys() - get_weights_by_path(model.backbone).keys())

    def close(self) -> None:
        """Close the weight files."""
        self.weights.close()

    def report(self, model: keras.Model) -> dict[str, str]:
        """Load all weights into `model` and return a report on the checkpoint, a dict from topic to text."""
        loading_plan = self.plan(model)
        loading_plan.run()
        backbone_ids = {id(weight) for weight in getattr(model, "backbone", model).weights}
        num_backbone_tensors = sum(id(weights[0]) in backbone_ids for weights, *_ in loading_plan.assignments)
        num_head_tensors = len(loading_plan.assignments) - num_backbone_tensors
        file_names = sorted({loading_plan.tensors.file_of(name).name for _, name, _ in loading_plan.assignments})
        tensor_counts = (
            f"{num_backbone_tensors} of the backbone, {num_head_tensors} of the head, in {_abbreviate(file_names)}"
        )
        entries = {"format": self.layout.name, "tensors": tensor_counts, **self.notes}
        if loading_plan.tensors.prefix:
            entries["names"] = f"without {loading_plan.tensors.prefix!r}, with which each begins in the file"
        if self.unknown_keys and self.config_file is not None:
            entries[f"not read: keys of {self.config_file.name}"] = format_keys(self.unknown_keys)
        if (activation := getattr(model, "output_activation", None)) is not None:
            entries["answers"] = f"after the activation {activation!r}"
        if loading_plan.missing:
            entries["not there"] = f"{', '.join(loading_plan.missing)}: random at first"
        for reason in sorted(set(loading_plan.left_out.values())):
            names = [name for name, tensor_reason in loading_plan.left_out.items() if tensor_reason == reason]
            entries[f"not read: {reason}"] = f"{len(names)}: {_abbreviate(names)}"
        return entries


class WrongPadding(NamedTuple):
    """A token that the format's own library takes for padding.

    Attributes:
        token: The token.
        problem: Description of the consequences.
    """

    token: str
    problem: str


def find_wrong_padding(tokenizer: Tokenizer, layout: Layout) -> WrongPadding | None:
    """Return the token that has the padding id of the format's own library, or None if it is the padding token.

    In RoBERTa and similar models, transformers does not count tokens with the id `pad_token_id` as positions, whereas
    lmzoo counts all tokens that are not masked.
    """
    allowed_ids = layout.config.allowed.get("pad_token_id")
    if allowed_ids is None:
        return None
    pad_id: Any = next(iter(allowed_ids))
    if tokenizer.pad_id == pad_id:
        return None
    token = tokenizer.id_to_token(pad_id)
    problem = (
        f"The format {layout.name!r} requires the padding token at id {pad_id}, but {tokenizer.pad_token!r} has id "
        f"{tokenizer.pad_id}. In the format's own library, texts with {token!r} would get other positions."
    )
    return WrongPadding(token, problem)


def _abbreviate(names: list[str]) -> str:
    """Return the first of `names`, with an ellipsis if there are more."""
    return names[0] + (", …" if len(names) > 1 else "")


def find_family(format: str, read: Callable[[Family], Checkpoint], directory: Path | None = None) -> Checkpoint:
    """Read a checkpoint as a model of the first family that its configuration fits.

    Args:
        format: Format of the checkpoint, a key of `Family.checkpoints`.
        read: Function that reads the checkpoint as a model of a family.
        directory: Directory of the checkpoint. If passed, families whose tokenizer it holds are tried first.

    Raises:
        PresetError: If no family fits; the error is the one raised for the first family.
    """
    errors = []
    families = find_families_by_format(format)
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
    """Convert the content of a configuration file to arguments of the family's configuration class.

    Args:
        family: Family of the model.
        format: Format of the file, a key of `Family.checkpoints`.
        stored: Keys and values of the file.
        file: Path of the file, for messages.
        ignore_unknown: Whether to ignore unknown keys, which are errors by default.
        **others: Arguments of the configuration class that other files hold.

    Raises:
        PresetError: If a key is missing, or unknown and not ignored, or a value is not allowed; the message names the
            file.
    """
    table = family.checkpoints[format].config
    arguments = {**table.read(stored, file, ignore_unknown), **others}
    try:
        family.backbone.config_class(**arguments)
    except ValueError as error:
        argument = getattr(error, "argument", None)
        key_description = table.stored_keys.get(argument, "")
        hint = (
            f" In the file, `{argument}` is {key_description}." if key_description not in ("", f"`{argument}`") else ""
        )
        raise PresetError(f"{file}: {error}{hint}") from error
    except TypeError as error:  # raised by comparing values of different types
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
    """Create a checkpoint from the content of its configuration file.

    Args:
        files: JSON files of the checkpoint's directory.
        format: Format of the checkpoint, a key of `Family.checkpoints`.
        family: Family of the model.
        stored: Keys and values of the configuration file; unknown keys are ignored.
        file: Path of the configuration file, for messages.
        weights: Tensors of the checkpoint.
        read_head: Function that returns the stored head.
        **others: Arguments of the family's configuration class that other files hold.

    Raises:
        PresetError: If a key is missing, or the family does not allow its value.
    """
    arguments = read_arguments(family, format, stored, file, ignore_unknown=True, **others)
    unknown_keys = family.checkpoints[format].config.unknown(stored)
    return Checkpoint(files, format, family, arguments, weights, read_head, file, unknown_keys)
