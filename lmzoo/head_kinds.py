"""What a task says of its head, and the tasks by the kinds of their heads: what formats of files map."""

from __future__ import annotations

from typing import ClassVar


class HasHead:
    """A model of a backbone and a head; the base of `Task`, whose subclasses are registered by their kinds of heads.

    Attributes:
        head_kind: what the head is for, in the words of the formats' tables: "classification", "masked_lm". By default
            that of the base class or, where it has none, the class's name. A model may narrow that of its class.
        reads_heads: kinds of stored heads that hold this one's weights, and more.
        refuses_heads: kinds of stored heads that are an error instead of being replaced by a new head: those that are
            easily taken for this one, since other libraries have one class for both.
        pretrains: whether the head only serves pre-training, so that no other task is expected to keep it.
    """

    head_kind: str = ""
    reads_heads: ClassVar[tuple[str, ...]] = ()
    refuses_heads: ClassVar[tuple[str, ...]] = ()
    pretrains: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if HasHead not in cls.__bases__ and not cls.head_kind:
            cls.head_kind = cls.__name__
        if kind := cls.__dict__.get("head_kind"):
            known = _TASKS.setdefault(kind, cls)
            if known.__qualname__ != cls.__qualname__:  # a notebook's cell may be run again
                raise ValueError(
                    f"Heads of the kind {kind!r} are those of {known.__name__}: give {cls.__name__} another."
                )
            _TASKS[kind] = cls


_TASKS: dict[str, type[HasHead]] = {}


def task_of(kind: str | None) -> type[HasHead] | None:
    """The task with heads of a kind; None if there is none."""
    return _TASKS.get(kind or "")


def user_of(kind: str | None) -> type[HasHead] | None:
    """The task that makes use of a stored head: of one for pre-training the task that reads a part of it, if any."""
    task = task_of(kind)
    readers = [other for other in _TASKS.values() if kind in other.reads_heads]
    return readers[0] if task is not None and task.pretrains and readers else task


def task_name(kind: str) -> str:
    """What messages call the task with heads of a kind; of a kind that is not known, the kind itself."""
    task = task_of(kind)
    return kind if task is None else task.__name__
