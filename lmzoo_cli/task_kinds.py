"""The kinds of tasks on the command line: how their examples are read."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from lmzoo_cli.examples import (
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
from lmzoo_cli.registered import TASKS

if TYPE_CHECKING:
    from lmzoo.tasks import Task


@dataclass(frozen=True)
class Reading:
    """How examples are read.

    Attributes:
        read: reads them.
        names: takes labels, of examples or of their words, returns the names in them; None if labels have no names.
        multi_label: whether an example has any number of classes; tells the kinds with the same head apart.
        examples: the files, in a few words, for tables of tasks.
        columns: the options that name their columns, with the defaults.
    """

    read: Reader
    examples: str
    columns: str
    names: Callable[[Any], Iterable[str]] | None = None
    multi_label: bool = False


# By the names in `Task.commands`.
READINGS = {
    "choices": Reading(read_prompts, "table", "SWAG's; `--text`, `--pair`, `--choices a,b,c` for others"),
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
        "the first (the second, if the first one numbers the words) and the last; FORM and UPOS",
        chain.from_iterable,
    ),
}


@dataclass(frozen=True)
class Kind:
    """A task on the command line.

    Attributes:
        name: its name there.
        head: the kind of its head.
        saved_as: the class's name in files, which tells the task before Keras is loaded.
        reading: how its examples are read.
        inputs: names of the parts of an input that predictions repeat.
    """

    name: str
    head: str
    saved_as: str
    reading: Reading
    inputs: tuple[str, ...]

    def fits(self, task: Task) -> bool:
        """Whether a model is of this kind."""
        multi_label = getattr(task, "multi_label", False)
        return getattr(task, "head_kind", None) == self.head and multi_label == self.reading.multi_label


KINDS = tuple(Kind(name, head, saved_as, READINGS[how], inputs) for name, head, saved_as, how, inputs in TASKS)


def kind_called(name: str) -> Kind:
    """The kind with a name; that of its head or of its class will do, too.

    Raises:
        ValueError: if there is none; suggests a similar one.
    """
    wanted = re.sub("[-_ ]", "", name.lower())
    # The name of a class with two kinds means the first of them.
    known = {
        re.sub("[-_]", "", key.lower()): kind
        for kind in reversed(KINDS)
        for key in (kind.name, kind.head, kind.saved_as.partition(">")[2])
    }
    if wanted not in known:
        near = difflib.get_close_matches(wanted, known, n=1)
        hint = f" Did you mean {known[near[0]].name}?" if near else ""
        raise ValueError(f"There is no task {name!r}.{hint} Choose one of {', '.join(kind.name for kind in KINDS)}.")
    return known[wanted]
