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
from lmzoo.common.arguments import require
from lmzoo.errors import PresetError
from lmzoo.files.manifest import describe_files
from lmzoo.layers.configured import list_constructor_arguments
from lmzoo.layers.initializers import skip_initial_values
from lmzoo.parallel.processes import check_same, has_several_processes
from lmzoo.presets.keras_preset import KerasPreset
from lmzoo.presets.source import Source, open_source
from lmzoo.registry.family import get_family
from lmzoo.registry.head_kinds import HasHead, check_head_kind, get_task_class, task_name
from lmzoo.text import Preprocessor


class _Head(NamedTuple):
    """The constructor arguments of a task, and whether the weights of its head are stored.

    Attributes:
        arguments: Constructor arguments of the task, which the caller's arguments override.
        is_stored: Whether the weights of the head are loaded from the preset.
        is_shared: Whether only the weights that also belong to the stored head are loaded from the preset.
        warning: Warning that the head starts with random weights, or "".
    """

    arguments: Arguments
    is_stored: bool = False
    is_shared: bool = False
    warning: str = ""


def load_backbone(
    preset: str | Path, cls: type[keras.Model], load_weights: bool = True, family: str | None = None, **overrides: Any
) -> keras.Model:
    """Load the backbone of a preset or checkpoint.

    Args:
        preset: Name, handle or path, as for `from_preset`.
        cls: Expected class of the backbone, or a base class of it.
        load_weights: Whether to load the weights; if False, they are random.
        family: Name of the family, such as "bert", for a checkpoint that does not specify it.
        **overrides: Constructor arguments that replace the stored ones.

    Raises:
        ValueError: If the preset cannot be loaded, its backbone is of a different class, or `load_weights` is not a
            bool.
    """
    _check_load_weights(load_weights)
    with contextlib.closing(open_source(preset, family)) as source:
        backbone = _build_backbone(source, preset, cls, load_weights, overrides)
        if load_weights:
            source.load(backbone)
    return backbone


def _check_load_weights(value: object) -> None:
    """Check that `load_weights` is a bool, since users of KerasHub may pass the number of classes in its place.

    Raises:
        ValueError: If `value` is not a bool.
    """
    advice = "Pass other arguments by name, such as `num_classes=2`."
    require(isinstance(value, bool), "load_weights", "True or False", value, advice)


def _build_backbone(
    source: Source, preset: str | Path, cls: type[keras.Model], load_weights: bool, overrides: Arguments
) -> keras.Model:
    """Build the backbone of a preset, without initial values if weights will be loaded into it.

    Raises:
        ValueError: If the backbone is not of the class `cls`.
        ProcessesError: If several processes have different files of the preset.
    """
    if has_several_processes():
        check_same(
            **{
                f"{name} of the preset": file_description
                for name, file_description in describe_files(source.directory).items()
            }
        )
    backbone_class = source.backbone_class
    if not issubclass(backbone_class, cls):
        raise ValueError(
            f"The preset {str(preset)!r} holds {backbone_class.__name__}, not {cls.__name__}. Call "
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
    task: str | None = None,
    **task_kwargs: Any,
) -> keras.Model:
    """Load a task with the stored head if it matches, else with a new one.

    Args:
        preset: Name, handle or path, as for `from_preset`.
        cls: Class of the task; the base class `Task` stands for the stored task's class.
        backbone_class: Expected class of the backbone, or a base class of it.
        load_weights: Whether to load the weights; if False, they are random.
        backbone_overrides: Constructor arguments of the backbone that replace the stored ones.
        sequence_length: Maximum number of tokens in a sequence, or None for the stored maximum.
        preprocessor: Preprocessor of the task, or None for the stored one.
        family: Name of the family, such as "bert", for a checkpoint that does not specify it.
        task: Name of the task to load from a preset with several tasks, or None.
        **task_kwargs: Constructor arguments of the task.

    Raises:
        ValueError: If the preset cannot be loaded, does not fit `cls` or `backbone_class`, or `load_weights` is not a
            bool.
    """
    _check_load_weights(load_weights)
    with contextlib.closing(open_source(preset, family, task)) as source:
        if HasHead in cls.__bases__:  # the base class of all tasks
            cls = _find_stored_task(source, preset)
        check_head_kind(cls)
        backbone = _build_backbone(source, preset, backbone_class, load_weights, backbone_overrides)
        takes_encoder = not cls.supports(get_family(backbone)) and backbone.encoder_class is not None
        if takes_encoder:  # the task reads one text, and the preset is of an encoder and a decoder
            if load_weights:
                source.load(backbone)
            backbone = backbone.make_encoder()
        if preprocessor is None:
            preprocessor = source.preprocessor()
        if sequence_length is not None:
            preprocessor = copy.copy(preprocessor)
            preprocessor.sequence_length = sequence_length
        if takes_encoder:
            head = _Head(_get_recipe_arguments(backbone, cls))
        else:
            head = _choose_head(source, cls, preset, backbone, task_kwargs, load_weights)
        arguments = dict(head.arguments)
        if "dropout" in backbone_overrides:
            arguments.pop("dropout", None)  # the head uses the backbone's dropout by default
        if "windows" in task_kwargs and task_kwargs["windows"] is None:
            arguments.pop("stride", None)  # constructors refuse a stride without windows
        blame_files = head.is_stored and not task_kwargs  # otherwise the caller's arguments may be at fault
        error_context = add_file_to_errors(source.directory) if blame_files else contextlib.nullcontext()
        with error_context, skip_initial_values() if load_weights and head.is_stored else contextlib.nullcontext():
            model = cls(backbone, preprocessor, **{**arguments, **task_kwargs})
        # Warn only after the constructor has accepted the arguments, and only about heads with weights: the heads of
        # some language models have none.
        if head.warning and not (cls.predicts_tokens and len(model.weights) == len(backbone.weights)):
            warnings.warn(head.warning, stacklevel=3)
        if load_weights and head.is_shared:
            new_paths = source.load_shared(model)
            if new_paths:
                warnings.warn(_describe_new_parts(new_paths, preset), stacklevel=3)
        elif load_weights and not takes_encoder:
            source.load(model, head.is_stored)
    return model


def _choose_head(
    source: Source,
    cls: type[HasHead],
    preset: str | Path,
    backbone: keras.Model,
    task_kwargs: Arguments,
    load_weights: bool,
) -> _Head:
    """Return the stored head if it matches a task and the caller's arguments, else a new one.

    Args:
        source: Opened preset.
        cls: Class of the task.
        preset: Name, handle or path, for messages.
        backbone: Backbone of the task.
        task_kwargs: The caller's constructor arguments of the task.
        load_weights: Whether the weights will be loaded.

    Raises:
        PresetError: If weights will be loaded, `task_kwargs` does not request a new head, and either the stored head's
            kind is easily confused with the task's, such as regression with classification, or the task has classes but
            another head is stored.
    """
    arguments = source.get_head_arguments(cls)
    kind = source.head
    has_classes = "num_classes" in list_constructor_arguments(cls)
    if not has_classes:  # `labels`, which every task takes, then request no new head
        task_kwargs = {name: value for name, value in task_kwargs.items() if name != "labels"}
    if load_weights and kind and share_a_class(kind, cls.head_kind) and not _changes_classes({}, task_kwargs):
        stored_name = task_name(kind)
        requested_name = cls.__name__
        advice = " Or pass `num_classes` or `labels` for a new head." if has_classes else ""
        raise PresetError(
            f"{str(preset)!r} holds the head of a {stored_name}, not of a {requested_name}. Call "
            f"`{stored_name}.from_preset`; with its `backbone` and `preprocessor` you can build a {requested_name} "
            f"that starts from scratch.{advice}"
        )
    if arguments is None:
        named_tasks = source.task_names if isinstance(source, KerasPreset) and kind is None else []
        warning = _describe_new_head(kind, cls, preset, named_tasks) if load_weights else ""
        if warning and has_classes and not _changes_classes({}, task_kwargs):
            raise PresetError(f"{warning} Pass `num_classes` or `labels` for it.")
        return _Head(_get_recipe_arguments(backbone, cls), warning=warning)
    if _changes_classes(arguments, task_kwargs):
        warning = (
            f"The head of {str(preset)!r} is not used: `num_classes`, other `labels` or another `vocabulary` were "
            "passed, so it starts from scratch. Omit them to keep it."
        )
        class_arguments = ("labels", "num_classes", "vocabulary")
        return _Head({key: value for key, value in arguments.items() if key not in class_arguments}, warning=warning)
    if _changes_objective(arguments, task_kwargs, get_family(backbone).objective):
        if "sbo" in (arguments.get("objective"), task_kwargs["objective"]):  # only this objective masks spans
            arguments = {key: value for key, value in arguments.items() if key != "masking"}
        return _Head(arguments, is_shared=True)
    if changed_name := _find_changed_argument(arguments, task_kwargs):
        warning = f"The head of {str(preset)!r} is not used, since `{changed_name}` is another: it starts from scratch."
        return _Head(arguments, warning=warning)
    return _Head(arguments, is_stored=True)


def _find_stored_task(source: Source, preset: str | Path) -> type[HasHead]:
    """Return the class of the stored task.

    Raises:
        PresetError: If no task is stored, several tasks are stored and none is chosen, or the class is not registered.
    """
    # A class that is not registered may have a head of its base class's kind, but its own methods.
    task_class = source.task_class if isinstance(source, KerasPreset) else get_task_class(source.head)
    if task_class is not None:
        return task_class
    if isinstance(source, KerasPreset) and (name := source.task_class_name):
        advice = "import its module, or call its `from_preset`"
        content = f"holds the task {name}, whose class is not registered with Keras: {advice}"
    elif isinstance(source, KerasPreset) and (names := source.task_names):
        raise PresetError(f"{str(preset)!r} holds the tasks {', '.join(map(repr, names))}. Pass one of them as `task`.")
    else:
        content = f"holds {source.backbone_class.__name__} without a head"
    raise PresetError(
        f"{str(preset)!r} {content}. `Task.from_preset` loads the stored task; for another one call its own "
        "`from_preset`, such as `lmzoo.models.TextClassifier.from_preset`."
    )


def _describe_new_head(
    stored_kind: str | None, cls: type[HasHead], preset: str | Path, named_tasks: Collection[str]
) -> str:
    """Return a warning that the new head of a task starts from scratch, or "" if that is expected.

    Args:
        stored_kind: Kind of the stored head, or None.
        cls: Class of the task.
        preset: Name, handle or path, for the message.
        named_tasks: Names of the tasks in a preset with several tasks.
    """
    name = cls.__name__
    if named_tasks:
        tasks = ", ".join(map(repr, named_tasks))
        return f"{str(preset)!r} holds the tasks {tasks}, and no `task` is chosen, so a new head starts from scratch."
    if cls.predicts_tokens:
        return f"{str(preset)!r} holds no head of a {name}, so it starts from scratch."
    if stored_kind == cls.head_kind:
        return f"{str(preset)!r} holds a head of a {name} that lmzoo cannot read, so a new one starts from scratch."
    stored_class = get_task_class(stored_kind)
    if stored_kind is None or (stored_class is not None and stored_class.replaceable):
        return ""
    owner = f"the class {stored_kind} (not imported)" if stored_class is None else f"a {stored_class.__name__}"
    return f"{str(preset)!r} holds the head of {owner}, not of a {name}, so a new one starts from scratch."


def _describe_new_parts(paths: Collection[str], preset: str | Path) -> str:
    """Return a warning that the layers of the weights at `paths` start from scratch, due to another objective."""
    layers = sorted({path.partition("/")[0] for path in paths})
    names = ", ".join(f"`{layer}`" for layer in layers)
    verb = "starts" if len(layers) == 1 else "start"
    return f"The head of {str(preset)!r} is for another `objective`: {names} {verb} from scratch."


def _get_recipe_arguments(backbone: keras.Model, cls: type[HasHead]) -> Arguments:
    """Return the task's `pooling` argument from the backbone's fine-tuning recipe, or {} if either has none."""
    recipe = backbone.fine_tuning.get(cls.head_kind)
    takes_pooling = "pooling" in inspect.signature(cls).parameters
    return {"pooling": recipe.pooling} if recipe and recipe.pooling and takes_pooling else {}


def _find_changed_argument(stored_arguments: Arguments, task_kwargs: Arguments) -> str | None:
    """Return the name of a passed argument that changes the layers of the stored head, or None if none does."""
    defaults: Arguments = {"encoder": None, "crf": False, "projection": [], "word_vectors": None}
    poolings = [
        arguments.get("pooling", stored_arguments.get("pooling")) for arguments in (stored_arguments, task_kwargs)
    ]
    if poolings[0] != poolings[1] and not all(isinstance(pooling, str) for pooling in poolings):
        return "pooling"  # lists have vectors of another width
    return next(
        (
            name
            for name in defaults.keys() & task_kwargs
            if task_kwargs[name] != stored_arguments.get(name, defaults[name])
        ),
        None,
    )


def _changes_objective(stored_arguments: Arguments, task_kwargs: Arguments, default_objective: str | None) -> bool:
    """Return whether the passed arguments request a pre-training objective other than the stored head's.

    Args:
        stored_arguments: Constructor arguments of the stored head.
        task_kwargs: The caller's constructor arguments of the task.
        default_objective: Default objective of the family, which "auto" stands for.
    """
    if "objective" not in task_kwargs:
        return False
    objectives = [arguments.get("objective", "auto") for arguments in (stored_arguments, task_kwargs)]
    stored_objective, objective = [default_objective if name == "auto" else name for name in objectives]
    return bool(stored_objective != objective)


def _changes_classes(stored_arguments: Arguments, task_kwargs: Arguments) -> bool:
    """Return whether `num_classes`, or other `labels` or another `vocabulary` than the stored ones, were passed."""
    labels = task_kwargs.get("labels")
    if labels is not None and not isinstance(labels, Collection):
        return True  # invalid, which the constructor reports
    changes_labels = labels is not None and (
        len(labels) != stored_arguments.get("num_classes") or stored_arguments.get("labels") not in (None, list(labels))
    )
    vocabulary = task_kwargs.get("vocabulary")
    vocabulary = getattr(vocabulary, "vocabulary", vocabulary)  # the argument may be a tokenizer
    changes_vocabulary = vocabulary is not None and list(vocabulary) != stored_arguments.get("vocabulary")
    return task_kwargs.get("num_classes") is not None or changes_labels or changes_vocabulary
