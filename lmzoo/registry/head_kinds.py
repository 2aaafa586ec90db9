"""The registry of tasks by kind of head, the name that identifies a task's head in files."""

from __future__ import annotations

from typing import ClassVar

import keras

from lmzoo.registry.family import Family


class HasHead(keras.Model):
    """The base class of `Task`, a model with a backbone and a head; subclasses are registered by kind of head.

    Attributes:
        head_kind: str, kind of head, such as "classification" or "masked_lm". Instances may override it. A task without
            a kind of head cannot be saved as a preset.
        other_head_kinds: further values of `head_kind` that instances may have; no other task may use them.
        reads_heads: kinds of stored heads that contain the weights of this head.
        predicts_tokens: bool, whether the task predicts tokens of its texts. Its head then comes from pre-training, so
            loading a preset without such a head causes a warning.
        replaceable: bool, whether other tasks discard a stored head of this kind without a warning, since presets with
            such heads are usually loaded for their backbones.
        pipeline_tag: str, Hugging Face's name of the task, for model cards.
        labels: names of the classes, or None.
        num_classes: int, number of classes; 0 for a task without classes.
        multi_label: bool, whether an example may have several classes.
        uses_pooler: bool, whether the loss depends on the backbone's pooler.
    """

    head_kind: str = ""
    other_head_kinds: ClassVar[tuple[str, ...]] = ()
    reads_heads: ClassVar[tuple[str, ...]] = ()
    predicts_tokens: ClassVar[bool] = False
    replaceable: ClassVar[bool] = False
    pipeline_tag: ClassVar[str] = "feature-extraction"
    labels: tuple[str, ...] | None = None
    num_classes: int = 0
    multi_label: bool = False
    uses_pooler: bool = True

    @property
    def class_names(self) -> list[str]:
        """The names of the classes, or their indices as strings if they have no names."""
        return list(self.labels or map(str, range(self.num_classes)))

    @classmethod
    def supports(cls, family: Family) -> bool:
        """Return whether the task supports a family's backbones."""
        return True

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if head_kind := cls.__dict__.get("head_kind"):  # a subclass without one keeps the kind of its base
            for kind in (head_kind, *cls.other_head_kinds):
                owner = _TASKS.setdefault(kind, cls)
                # Compare names, since running a notebook cell again redefines its classes.
                if (owner.__module__, owner.__qualname__) != (cls.__module__, cls.__qualname__):
                    raise ValueError(
                        f"Heads of the kind {kind!r} belong to {owner.__name__}: give {cls.__name__} another "
                        "`head_kind`."
                    )
                _TASKS[kind] = cls


_TASKS: dict[str, type[HasHead]] = {}


def check_head_kind(task_class: type[HasHead]) -> None:
    """Check that a task defines `head_kind`, which presets store.

    Raises:
        ValueError: If `head_kind` is empty.
    """
    if not task_class.head_kind:
        name = task_class.__name__
        raise ValueError(
            f"A preset knows a head by its kind, and {name} names none: add a `head_kind` to the class, a word such as "
            f"{name.lower()!r} that is no other task's."
        )


def tasks() -> dict[str, type[HasHead]]:
    """Return all registered tasks by kind of head."""
    return dict(_TASKS)


def get_task_class(kind: str | None) -> type[HasHead] | None:
    """Return the task class registered for a kind of head, or None if no class is registered."""
    return _TASKS.get(kind or "")


def find_task_for_head(kind: str | None) -> type[HasHead] | None:
    """Return the task class to load for a stored head of the given kind, or None if no class is registered.

    If the registered class is `replaceable`, a task that reads part of the head takes precedence.
    """
    task_class = get_task_class(kind)
    reading_tasks = [candidate for candidate in _TASKS.values() if kind in candidate.reads_heads]
    return reading_tasks[0] if task_class is not None and task_class.replaceable and reading_tasks else task_class


def task_name(kind: str) -> str:
    """Return the name of the task class for a kind of head, or `kind` itself if no class is registered."""
    task_class = get_task_class(kind)
    return kind if task_class is None else task_class.__name__
