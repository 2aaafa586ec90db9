"""The kinds of heads, by which file formats know tasks, and the registry of tasks by kind of head."""

from __future__ import annotations

from typing import ClassVar

import keras


class HasHead(keras.Model):
    """A model with a backbone and a head; the base of `Task`, whose subclasses are registered by kind of head.

    Attributes:
        head_kind: the purpose of the head, in the terms of the formats' tables: "classification", "masked_lm". A task
            without one cannot be a preset. An instance may set another.
        other_head_kinds: kinds that `head_kind` may be in an instance, and that are no other task's.
        reads_heads: kinds of stored heads that hold the weights of this head, among others.
        predicts_tokens: whether the task predicts tokens of its texts. Its head comes from pre-training, and a new one,
            with which it knows nothing, gets a warning.
        replaceable: whether other tasks drop a stored head of this kind without a warning, since its backbone is what
            people publish it for.
        labels: names of the classes, or None.
        num_classes: number of classes; 0 for a task without classes.
        multi_label: whether an example may have several classes.
        uses_pooler: whether the loss reaches the backbone's pooler.
    """

    head_kind: str = ""
    other_head_kinds: ClassVar[tuple[str, ...]] = ()
    reads_heads: ClassVar[tuple[str, ...]] = ()
    predicts_tokens: ClassVar[bool] = False
    replaceable: ClassVar[bool] = False
    labels: tuple[str, ...] | None = None
    num_classes: int = 0
    multi_label: bool = False
    uses_pooler: bool = True

    @property
    def class_names(self) -> list[str]:
        """Names of the classes; without names, their numbers as strings."""
        return list(self.labels or map(str, range(self.num_classes)))

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if own := cls.__dict__.get("head_kind"):  # a subclass without one of its own has its base's kind of head
            for kind in (own, *cls.other_head_kinds):
                known = _TASKS.setdefault(kind, cls)
                if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):  # a cell may run again
                    raise ValueError(
                        f"Heads of the kind {kind!r} belong to {known.__name__}: give {cls.__name__} another "
                        "`head_kind`."
                    )
                _TASKS[kind] = cls


_TASKS: dict[str, type[HasHead]] = {}


def check_head_kind(task_class: type[HasHead]) -> None:
    """Check that a task says what kind of head it has, by which presets know it.

    Raises:
        ValueError: if it does not.
    """
    if not task_class.head_kind:
        name = task_class.__name__
        raise ValueError(
            f"A preset knows a head by its kind, and {name} names none: add a `head_kind` to the class, a word such as "
            f"{name.lower()!r} that is no other task's."
        )


def tasks() -> dict[str, type[HasHead]]:
    """Return the registered tasks by the kind of their heads."""
    return dict(_TASKS)


def task_of(kind: str | None) -> type[HasHead] | None:
    """Return the task with heads of a kind; None if there is none."""
    return _TASKS.get(kind or "")


def task_that_reads(kind: str | None) -> type[HasHead] | None:
    """Return the task that uses a stored head or, of a pre-training head, a part of it; None if there is none."""
    task = task_of(kind)
    readers = [other for other in _TASKS.values() if kind in other.reads_heads]
    return readers[0] if task is not None and task.replaceable and readers else task


def task_name(kind: str) -> str:
    """Return the name, for messages, of the task with heads of a kind; for an unknown kind the kind itself."""
    task = task_of(kind)
    return kind if task is None else task.__name__
