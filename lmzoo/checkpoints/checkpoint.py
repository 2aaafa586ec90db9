"""A directory with a model in another library's format, and how to load it."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import keras

from lmzoo.checkpoints.config_table import Arguments, format_keys
from lmzoo.checkpoints.engine import Layout, Plan, canonical_names, check_sizes, plan, weights_of
from lmzoo.checkpoints.formats.tensor_file import TensorFile
from lmzoo.checkpoints.tokenizers.config import longest_sequence
from lmzoo.checkpoints.tokenizers.files import read_tokenizer_and_packing
from lmzoo.checkpoints.tokenizers.formats import holds_tokenizer
from lmzoo.errors import PresetError
from lmzoo.registry.family import Family, families_with
from lmzoo.registry.head_kinds import HasHead, task_of
from lmzoo.text import Preprocessor

T = TypeVar("T")


@dataclass(frozen=True)
class StoredHead:
    """The head that a checkpoint's files hold, if any.

    Attributes:
        kind: its kind, or None for no head.
        arguments: reads arguments of the task's constructor, as far as the files give them, for a kind of head.
        alternatives: other kinds of heads that the tensors may be, if nothing but their names tells it.
    """

    kind: str | None = None
    arguments: Callable[[str], Arguments] = lambda kind: {}
    alternatives: Collection[str] = ()


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose format and family are known, as a `lmzoo.presets.source.Source`.

    Attributes:
        directory: where it is.
        format: "hf", "google", "fairseq", "keras_hub" or "bilm", a key of `Family.checkpoints`.
        family: the record of its family.
        arguments: arguments of the family's configuration class.
        open_tensors: opens the weights.
        read_head: finds the stored head.
        config_file: the configuration, for messages.
        unknown_keys: the configuration's keys that are ignored since lmzoo does not know them, with their values.
        sequence_length: most tokens of a text, if other files than the tokenizer's say so.
        notes: what else was read, for reports.
    """

    directory: Path
    format: str
    family: Family
    arguments: Arguments
    open_tensors: Callable[[], TensorFile]
    read_head: Callable[[], StoredHead] = StoredHead
    config_file: Path | None = None
    unknown_keys: Arguments = field(default_factory=dict)
    sequence_length: int | None = None
    notes: Mapping[str, str] = field(default_factory=dict)

    @functools.cached_property
    def stored_head(self) -> StoredHead:
        """The head that the files hold, if any."""
        return self.read_head()

    @property
    def head(self) -> str | None:
        """See `Source.head`."""
        return self.stored_head.kind

    @property
    def layout(self) -> Layout:
        """How the format stores the family's models."""
        return self.family.checkpoints[self.format]

    @property
    def backbone_class(self) -> type[keras.Model]:
        """The family's backbone."""
        return self.family.backbone

    def build(self, overrides: Mapping[str, Any], load_weights: bool = True) -> keras.Model:
        """See `Source.build`. If weights will be loaded, the files must be able to hold a model of its size."""
        if load_weights:
            try:
                check_sizes(self.layout, self.open_tensors(), self.backbone_class.config_class(**self.arguments))
            except PresetError as error:
                raise PresetError(self.layout.config.with_stored_keys(str(error))) from None
        if self.unknown_keys:
            warnings.warn(f"{self.config_file}: ignoring unknown keys: {format_keys(self.unknown_keys)}.", stacklevel=2)
        return self.family.backbone(**{**self.arguments, **overrides})

    def head_of(self, cls: type[HasHead]) -> Arguments | None:
        """See `Source.head_of`."""
        kind = self.head if self.head in cls.other_head_kinds else cls.head_kind
        heads = self.layout.heads
        if kind not in heads:
            return None
        if kind in self.stored_head.alternatives:
            return self.stored_head.arguments(kind)
        if self.head is None:
            return None
        known = task_of(self.head)
        held = kind == self.head
        if not held and (self.head in cls.reads_heads or (known is not None and kind in known.reads_heads)):
            # One head is a part of the other. The names of its tensors show whether the file holds this one, too.
            wanted, there = ({row.name for row in heads.get(head, {}).values()} for head in (kind, self.head))
            held = canonical_names(self.layout, self.open_tensors()).keys() >= wanted - there
        return self.stored_head.arguments(kind) if held else None

    def preprocessor(self) -> Preprocessor:
        """See `Source.preprocessor`."""
        size, characters = self.arguments.get("vocabulary_size"), self.arguments.get("max_characters", 50)
        tokenizer, packing = read_tokenizer_and_packing(self.directory, self.family, size, characters)
        has_segments = self.family.packing.segments
        segments = packing.segments and (has_segments or self.arguments.get("num_segments", 0) > 1)
        packing = dataclasses.replace(packing, segments=segments, zero_segments=has_segments and not segments)
        positions = self.arguments.get("max_sequence_length", 512)
        stated = self.sequence_length
        length = longest_sequence(self.directory, positions) if stated is None else min(stated, positions)
        return Preprocessor(tokenizer, packing, length)

    def plan(self, model: keras.Model) -> Plan:
        """Plans and checks the loading of a backbone, or of the task whose head is stored, without reading a tensor.

        Raises:
            PresetError: naming the first tensor that is missing, left over, or of another shape.
        """
        head = model.head_kind if isinstance(model, HasHead) else None
        return plan(self.layout, self.open_tensors(), weights_of(model), head)

    def load(self, model: keras.Model, with_head: bool = True) -> Plan:
        """Load the weights and return the plan, whose errors are those of `plan`; see `Source.load`."""
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
        for part in self._missing_parts(done):
            if part == "pooler" and isinstance(model, HasHead) and not model.uses_pooler:
                continue
            so = ", so `pooled_output` is meaningless before training" if part == "pooler" else ""
            warnings.warn(f"{self.directory} holds no {part}: it starts with random weights{so}.", stacklevel=2)
        return done

    def _missing_parts(self, done: Plan) -> list[str]:
        """Return the names of the optional parts of the model that the files lack."""
        groups = [group for group in self.layout.optional if any(path.startswith(group) for path in done.missing)]
        return [group.rstrip("/").rpartition("/")[2] for group in groups]

    def report(self, model: keras.Model) -> dict[str, str]:
        """See `Source.report`."""
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


def find_family(format: str, read: Callable[[Family], T], directory: Path | None = None) -> T:
    """Return what a function reads for the first family with checkpoints in a format whose configuration fits.

    Args:
        format: a key of `Family.checkpoints`.
        read: reads the checkpoint as one of a family.
        directory: the checkpoint's, if the files of a tokenizer tell families apart: those whose tokenizer it holds
            come first.

    Raises:
        PresetError: that of the first family, if it fits none.
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
    """Reads the arguments of a family's configuration class from a file's content, `stored`.

    Unknown keys are errors or, with `ignore_unknown`, ignored. `others` are arguments that other files give.

    Raises:
        PresetError: naming the file, and the key whose value the family does not allow.
    """
    table = family.checkpoints[format].config
    arguments = {**table.read(stored, file, ignore_unknown), **others}
    try:
        family.backbone.config_class(**arguments)
    except ValueError as error:
        raise PresetError(f"{file}: {table.with_stored_keys(str(error))}") from error
    except TypeError as error:  # from a comparison
        raise PresetError(f"{file} holds a value of the wrong type: {error}.") from error
    return arguments
