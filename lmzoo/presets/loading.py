"""Loads backbones and tasks from presets and checkpoints."""

from __future__ import annotations

import contextlib
import copy
import inspect
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

import keras

from lmzoo.checkpoints.config_table import Arguments
from lmzoo.checkpoints.family_names import share_a_class
from lmzoo.checkpoints.tokenizers.vocabulary_files import naming
from lmzoo.errors import PresetError
from lmzoo.files.manifest import listed_files
from lmzoo.layers.initializers import skip_initial_values
from lmzoo.parallel.processes import check_same, several_processes
from lmzoo.presets.keras_preset import KerasPreset
from lmzoo.presets.source import Source, open_source
from lmzoo.registry.head_kinds import HasHead, task_name, task_of
from lmzoo.text import Preprocessor


def load_backbone(
    preset: str | Path,
    cls: type[keras.Model],
    load_weights: bool = True,
    family: str | None = None,
    **overrides: Any,
) -> keras.Model:
    """Loads the backbone of a preset; see `Backbone.from_preset`."""
    source = open_source(preset, family)
    backbone = _build(source, preset, cls, load_weights, overrides)
    if load_weights:
        source.load(backbone)
    return backbone


def _build(
    source: Source, preset: str | Path, cls: type[keras.Model], load_weights: bool, overrides: Arguments
) -> keras.Model:
    if several_processes():
        check_same(**{f"{name} of the preset": entry for name, entry in listed_files(source.directory).items()})
    found = source.backbone_class
    if not issubclass(found, cls):
        raise ValueError(
            f"The preset {str(preset)!r} holds a {found.__name__}, not a {cls.__name__}. Call "
            f"`{found.__name__}.from_preset`, or `Backbone.from_preset` for any family."
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
    """Loads a task, with the stored head if it is the task's; see `Task.from_preset`."""
    source = open_source(preset, family)
    if not cls.head_kind:  # the base of all tasks
        cls = _stored_task(source, preset)
    backbone = _build(source, preset, backbone_class, load_weights, backbone_overrides)
    if preprocessor is None:
        preprocessor = source.preprocessor()
    if sequence_length is not None:
        preprocessor = copy.copy(preprocessor)
        preprocessor.sequence_length = sequence_length
    stored = source.head
    config = source.head_of(cls)
    has_head = config is not None
    if load_weights and stored and share_a_class(stored, cls.head_kind) and not _new_classes({}, task_kwargs):
        raise _refusal(stored, cls, preset)
    config = _recommended(backbone, cls) if config is None else config
    if "dropout" in backbone_overrides:
        config.pop("dropout", None)  # the head follows the backbone
    warning = ""
    if has_head and _new_classes(config, task_kwargs):
        warning = (
            f"The head of {str(preset)!r} is not used: `num_classes`, other `labels` or another `vocabulary` were "
            "passed, so it starts from scratch. Omit them to keep it."
        )
        has_head = False
        config = {key: value for key, value in config.items() if key not in ("labels", "num_classes", "vocabulary")}
    elif has_head and (changed := _new_parts(config, task_kwargs)):
        warning = f"The head of {str(preset)!r} is not used, since `{changed}` is another: it starts from scratch."
        has_head = False
    elif load_weights and not has_head:
        warning = _new_head(stored, cls, preset)
    # Without arguments of the caller, it is the files that are wrong.
    named = naming(source.directory) if has_head and not task_kwargs else contextlib.nullcontext()
    with named, skip_initial_values() if load_weights and has_head else contextlib.nullcontext():
        task = cls(backbone, preprocessor, **{**config, **task_kwargs})
    # After the constructor has accepted the arguments. A language model without weights of its own has nothing to learn
    # from scratch.
    if warning and not (cls.predicts_tokens and len(task.weights) == len(backbone.weights)):
        warnings.warn(warning, stacklevel=3)
    if load_weights:
        source.load(task, has_head)
    return task


def _stored_task(source: Source, preset: str | Path) -> type[HasHead]:
    """Return the class of the task whose head is stored.

    Raises:
        PresetError: if there is no head, or its task is unknown.
    """
    own = source.task_class if isinstance(source, KerasPreset) else None
    if (found := own or task_of(source.head)) is not None:
        return found
    if source.head is None:
        holds = f"holds a {source.backbone_class.__name__} without a head"
    else:
        holds = f"holds the head of a {task_name(source.head)}, whose class is not registered: import its module"
    raise PresetError(
        f"{str(preset)!r} {holds}. `Task.from_preset` loads the stored task; for another one call its own "
        "`from_preset`, such as `lmzoo.models.TextClassifier.from_preset`."
    )


def _new_head(stored: str | None, cls: type[HasHead], preset: str | Path) -> str:
    """Return the warning that a task's head starts from scratch, or "" if other tasks drop the stored head silently."""
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


def _recommended(backbone: keras.Model, cls: type[HasHead]) -> Arguments:
    """Arguments of the task's constructor that the backbone's recipe for fine-tuning names."""
    recipe = backbone.fine_tuning.get(cls.head_kind)
    takes_pooling = "pooling" in inspect.signature(cls).parameters
    return {"pooling": recipe.pooling} if recipe and recipe.pooling and takes_pooling else {}


def _refusal(kind: str, cls: type[HasHead], preset: str | Path) -> PresetError:
    stored, wanted = task_name(kind), cls.__name__
    classes = "num_classes" in inspect.signature(cls).parameters
    new = " Or pass `num_classes` or `labels` for a new head." if classes else ""
    return PresetError(
        f"{str(preset)!r} holds the head of a {stored}, not of a {wanted}. Call `{stored}.from_preset`; with its "
        f"`backbone` and `preprocessor` you can build a {wanted} that starts from scratch.{new}"
    )


def _new_parts(stored: Arguments, asked: Arguments) -> str | None:
    """The argument by which the caller asks for other layers than those of the stored head."""
    usual: Arguments = {"encoder": None, "crf": False, "projection": []}
    return next((name for name in usual.keys() & asked if asked[name] != stored.get(name, usual[name])), None)


def _new_classes(stored: Arguments, asked: Arguments) -> bool:
    """Whether the caller asks for other classes than the stored head's."""
    labels = asked.get("labels")
    if labels is not None and not isinstance(labels, Collection):
        return True  # which the constructor refuses
    renamed = labels is not None and (
        len(labels) != stored.get("num_classes") or stored.get("labels") not in (None, list(labels))
    )
    words = asked.get("vocabulary")
    words = getattr(words, "vocabulary", words)  # of a tokenizer
    others = words is not None and list(words) != stored.get("vocabulary")
    return asked.get("num_classes") is not None or renamed or others
