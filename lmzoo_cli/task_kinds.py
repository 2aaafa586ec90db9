"""Kinds of tasks on the command line, and the readers of their examples."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from lmzoo import tasks
from lmzoo.data.readers.text_files import Source
from lmzoo_cli.examples import (
    Examples,
    Reader,
    read_label_sets,
    read_numbers,
    read_pairs,
    read_prompts,
    read_questions,
    read_texts,
    read_texts_alone,
    read_translations,
    read_words,
)
from lmzoo_cli.options import Columns


@dataclass(frozen=True)
class Reading:
    """Reader of examples for a kind of task, with descriptions of its files and columns.

    Attributes:
        read: function that reads examples.
        examples: short description of the files, for tables in the documentation.
        columns: options for the columns with their defaults, for tables in the documentation.
        names: function from the labels of all examples to the class names in them; None if labels have no names.
        multi_label: whether an example may have several classes; distinguishes kinds with the same task class.
        marks_spans: whether labels such as "B-PER" mark spans, so that a model also needs "I-PER".
    """

    read: Reader
    examples: str
    columns: str
    names: Callable[[Any], Iterable[str]] | None = None
    multi_label: bool = False
    marks_spans: bool = False


# Readings by their names in `Task.commands`.
READINGS = {
    "choices": Reading(
        read_prompts, "table", "SWAG's columns; for other tables, pass `--text`, `--pair`, `--choices a,b,c`"
    ),
    "classes": Reading(read_texts, "table", "`--text text`, `--label label`; `--pair` for pairs", iter),
    "numbers": Reading(read_numbers, "table", "`--text text`, `--label label`; `--scale 5` divides the labels by 5"),
    "pairs": Reading(
        read_pairs, "table of pairs", "`--text text`, `--pair`; with `--label`, similarities from -1 to 1"
    ),
    "questions": Reading(
        read_questions, "SQuAD's JSON; `predict` also takes tables", "`--text question`, `--pair context`"
    ),
    "sets of classes": Reading(
        read_label_sets,
        "table",
        '`--text text`, `--label label`, separated by "&#124;"; in JSON lines they may also be lists',
        chain.from_iterable,
        multi_label=True,
    ),
    "texts": Reading(read_texts_alone, "lines of text, or a table", "`--text text`"),
    "translations": Reading(read_translations, "table of pairs", "`--text text`, and `--pair` for the translations"),
    "words": Reading(
        read_words,
        "CoNLL, CoNLL-U",
        "CoNLL: words in the first column (the second if the first numbers the words), labels in the last; "
        "CoNLL-U: FORM and UPOS",
        chain.from_iterable,
        marks_spans=True,
    ),
}


@dataclass(frozen=True)
class Kind:
    """Kind of task on the command line.

    Attributes:
        name: name of the kind, the value of `--task`.
        task_class: class of the task.
        reading: reader of the examples.
    """

    name: str
    task_class: type[tasks.Task]
    reading: Reading

    def fits(self, model: object) -> bool:
        """Return whether a model is a task of this kind."""
        return (
            isinstance(model, tasks.Task)
            and model.head_kind == self.task_class.head_kind
            and model.multi_label == self.reading.multi_label
        )

    def read_labeled(self, source: Source, columns: Columns, task: tasks.Task) -> Examples:
        """Read examples to evaluate a task on: with labels or, if it learns to restore dropped spans, texts alone.

        If `columns.pair` is set, pairs are read in any case; a task that takes no pairs then raises an error.
        """
        learns_from_texts = getattr(task, "span_corruption", None) is not None and columns.pair is None
        reading = READINGS["texts"] if learns_from_texts else self.reading
        return reading.read(source, columns, True, self.label_names(task))

    def label_names(self, task: tasks.Task) -> list[str] | None:
        """Return the allowed names of labels for a task, or None if labels have no names."""
        return task.class_names if self.reading.names else None


_TASK_CLASSES = [value for value in vars(tasks).values() if isinstance(value, type) and issubclass(value, tasks.Task)]
KINDS = tuple(
    sorted(
        (Kind(name, cls, READINGS[reading]) for cls in _TASK_CLASSES for name, reading in cls.commands),
        key=lambda kind: kind.name,
    )
)


def get_kind(name: str) -> Kind:
    """Return the kind of task for a name: a value of `--task`, a kind of head, or the name of a class.

    Raises:
        ValueError: If the name is unknown; the message suggests a similar name.
    """
    # If a class has two kinds, its name stands for the first.
    kinds_by_name = {
        _simplify(key): kind
        for kind in reversed(KINDS)
        for key in (kind.name, kind.task_class.head_kind, kind.task_class.__name__)
    }
    simple_name = _simplify(name)
    if simple_name not in kinds_by_name:
        matches = difflib.get_close_matches(simple_name, kinds_by_name, n=1)
        hint = f" Did you mean {kinds_by_name[matches[0]].name}?" if matches else ""
        raise ValueError(f"There is no task {name!r}.{hint} Choose one of {', '.join(kind.name for kind in KINDS)}.")
    return kinds_by_name[simple_name]


def _simplify(name: str) -> str:
    """Return a name in lowercase without separators."""
    return re.sub("[-_ ]", "", name.lower())
