"""Loading of backbones and tasks from presets and checkpoints."""

from __future__ import annotations

import contextlib
import copy
import inspect
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import keras

from lmzoo.checkpoints.config_table import Arguments
from lmzoo.checkpoints.family_names import share_a_class
from lmzoo.checkpoints.tokenizers.vocabulary_files import add_file_to_errors
from lmzoo.errors import PresetError
from lmzoo.files.manifest import listed_files
from lmzoo.layers.initializers import skip_initial_values
from lmzoo.parallel.processes import check_same, several_processes
from lmzoo.presets.keras_preset import KerasPreset
from lmzoo.presets.source import Source, open_source
from lmzoo.registry.head_kinds import HasHead, check_head_kind, task_name, task_of
from lmzoo.text import Preprocessor


class _Head(NamedTuple):
    """The head of a task that is about to be loaded.

    Attributes:
        arguments: Arguments of the task's constructor, in place of which the caller may pass others.
        is_stored: Whether its weights are read from the preset.
        warning: A warning that it starts from scratch, or "".
    """

    arguments: Arguments
    is_stored: bool = False
    warning: str = ""


def load_backbone(
    preset: str | Path, cls: type[keras.Model], load_weights: bool = True, family: str | None = None, **overrides: Any
) -> keras.Model:
    """Load the backbone of a preset; see `Backbone.from_preset`."""
    with contextlib.closing(open_source(preset, family)) as source:
        backbone = _build(source, preset, cls, load_weights, overrides)
        if load_weights:
            source.load(backbone)
    return backbone


def _build(
    source: Source, preset: str | Path, cls: type[keras.Model], load_weights: bool, overrides: Arguments
) -> keras.Model:
    if several_processes():
        check_same(**{f"{name} of the preset": entry for name, entry in listed_files(source.directory).items()})
    backbone_class = source.backbone_class
    if not issubclass(backbone_class, cls):
        raise ValueError(
            f"The preset {str(preset)!r} holds a {backbone_class.__name__}, not a {cls.__name__}. Call "
            f"`{backbone_class.__name__}.from_preset`, or `Backbone.from_preset` for any family."
        )
    with skip_initial_values() if load_weights else contextlib.nullcontext():
        return source.build(overrides, load_weights)


def load_task(
    preset: str | Path,
    cls: type[HasHead],
    backbone_class: type[keras.Model],
    load_weights: bool,
    backbone_overrides: Arguments,
    sequence_length: int | None,
    preprocessor: Preprocessor | None,
    family: str | None = None,
    **task_kwargs: Any,
) -> keras.Model:
    """Load a task, with the stored head if it is the task's; see `Task.from_preset`."""
    with contextlib.closing(open_source(preset, family)) as source:
        if HasHead in cls.__bases__:  # the base of all tasks
            cls = _find_stored_task(source, preset)
        check_head_kind(cls)
        backbone = _build(source, preset, backbone_class, load_weights, backbone_overrides)
        if preprocessor is None:
            preprocessor = source.preprocessor()
        if sequence_length is not None:
            preprocessor = copy.copy(preprocessor)
            preprocessor.sequence_length = sequence_length
        head = _choose_head(source, cls, preset, backbone, task_kwargs, load_weights)
        arguments = dict(head.arguments)
        if "dropout" in backbone_overrides:
            arguments.pop("dropout", None)  # the head follows the backbone
        blame_files = head.is_stored and not task_kwargs  # otherwise an argument of the caller may be wrong
        errors = add_file_to_errors(source.directory) if blame_files else contextlib.nullcontext()
        with errors, skip_initial_values() if load_weights and head.is_stored else contextlib.nullcontext():
            task = cls(backbone, preprocessor, **{**arguments, **task_kwargs})
        # After the constructor has accepted the arguments. A language model without weights of its own has nothing to
        # learn from scratch.
        if head.warning and not (cls.predicts_tokens and len(task.weights) == len(backbone.weights)):
            warnings.warn(head.warning, stacklevel=3)
        if load_weights:
            source.load(task, head.is_stored)
    return task


def _choose_head(
    source: Source, cls: type[HasHead], preset: str | Path, backbone: keras.Model, passed: Arguments, load_weights: bool
) -> _Head:
    """Decide whether a task gets the stored head or a new one.

    Raises:
        PresetError: If the stored head is easily confused with the task's, and the caller does not ask for a new one.
    """
    arguments = source.head_of(cls)
    kind = source.head
    if load_weights and kind and share_a_class(kind, cls.head_kind) and not _changes_classes({}, passed):
        own = task_name(kind)
        wanted = cls.__name__
        classes = "num_classes" in inspect.signature(cls).parameters
        new = " Or pass `num_classes` or `labels` for a new head." if classes else ""
        raise PresetError(
            f"{str(preset)!r} holds the head of a {own}, not of a {wanted}. Call `{own}.from_preset`; with its "
            f"`backbone` and `preprocessor` you can build a {wanted} that starts from scratch.{new}"
        )
    if arguments is None:
        return _Head(_read_recipe(backbone, cls), warning=_describe_new_head(kind, cls, preset) if load_weights else "")
    if _changes_classes(arguments, passed):
        warning = (
            f"The head of {str(preset)!r} is not used: `num_classes`, other `labels` or another `vocabulary` were "
            "passed, so it starts from scratch. Omit them to keep it."
        )
        replaced = ("labels", "num_classes", "vocabulary")
        return _Head({key: value for key, value in arguments.items() if key not in replaced}, warning=warning)
    if changed := _find_changed_part(arguments, passed):
        warning = f"The head of {str(preset)!r} is not used, since `{changed}` is another: it starts from scratch."
        return _Head(arguments, warning=warning)
    return _Head(arguments, is_stored=True)


def _find_stored_task(source: Source, preset: str | Path) -> type[HasHead]:
    """Return the class of the task whose head is stored.

    Raises:
        PresetError: If there is no head, or its task is unknown.
    """
    own_class = source.task_class if isinstance(source, KerasPreset) else None
    task_class = own_class or task_of(source.head)
    if task_class is not None:
        return task_class
    if source.head is None:
        holds = f"holds a {source.backbone_class.__name__} without a head"
    else:
        holds = f"holds the head of a {task_name(source.head)}, whose class is not registered: import its module"
    raise PresetError(
        f"{str(preset)!r} {holds}. `Task.from_preset` loads the stored task; for another one call its own "
        "`from_preset`, such as `lmzoo.models.TextClassifier.from_preset`."
    )


def _describe_new_head(stored: str | None, cls: type[HasHead], preset: str | Path) -> str:
    """Return the warning that a task's head starts from scratch, or "" if that needs none."""
    name = cls.__name__
    if cls.predicts_tokens:
        return f"{str(preset)!r} holds no head of a {name}, so it starts from scratch."
    if stored == cls.head_kind:
        return f"{str(preset)!r} holds a head of a {name} that lmzoo cannot read, so a new one starts from scratch."
    task = task_of(stored)
    if stored is None or (task is not None and task.replaceable):
        return ""
    return (
        f"{str(preset)!r} holds the head of a {task_name(stored)}, not of a {name}, so a new one starts from scratch."
    )


def _read_recipe(backbone: keras.Model, cls: type[HasHead]) -> Arguments:
    """Return the arguments of the task's constructor that the backbone's recipe for fine-tuning names."""
    recipe = backbone.fine_tuning.get(cls.head_kind)
    takes_pooling = "pooling" in inspect.signature(cls).parameters
    return {"pooling": recipe.pooling} if recipe and recipe.pooling and takes_pooling else {}


def _find_changed_part(stored: Arguments, passed: Arguments) -> str | None:
    """Return the argument by which the caller asks for other layers than the stored head has, or None."""
    defaults: Arguments = {"encoder": None, "crf": False, "projection": []}
    return next((name for name in defaults.keys() & passed if passed[name] != stored.get(name, defaults[name])), None)


def _changes_classes(stored: Arguments, passed: Arguments) -> bool:
    """Return whether the caller asks for other classes than the stored head's."""
    labels = passed.get("labels")
    if labels is not None and not isinstance(labels, Collection):
        return True  # which the constructor refuses
    renamed = labels is not None and (
        len(labels) != stored.get("num_classes") or stored.get("labels") not in (None, list(labels))
    )
    words = passed.get("vocabulary")
    words = getattr(words, "vocabulary", words)  # of a tokenizer
    has_new_words = words is not None and list(words) != stored.get("vocabulary")
    return passed.get("num_classes") is not None or renamed or has_new_words
