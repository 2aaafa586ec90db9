"""The kinds of tasks on the command line: how their examples are read."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from lmzoo.cli.examples import (
    Labels,
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

if TYPE_CHECKING:
    from lmzoo.tasks import Task


@dataclass(frozen=True)
class Kind:
    """A task on the command line.

    Attributes:
        name: its name there.
        head: the kind of its head.
        saved_as: the class's name in files, which tells the task before Keras is loaded.
        read: reads its examples.
        names: takes labels, of examples or of their words, returns the names in them; None if labels have no names.
        arguments: takes labels, returns the constructor's arguments that depend on them.
        multi_label: whether an example has any number of classes; tells the kinds with the same head apart.
        inputs: names of the parts of an input that predictions repeat.
    """

    name: str
    head: str
    saved_as: str
    read: Reader
    names: Callable[[Any], Iterable[str]] | None = None
    arguments: Callable[[Any], dict[str, object]] = lambda y: {}
    multi_label: bool = False
    inputs: tuple[str, ...] = ("text", "text_pair")

    def fits(self, task: Task) -> bool:
        """Whether a model is of this kind."""
        return getattr(task, "head_kind", None) == self.head and getattr(task, "multi_label", False) == self.multi_label


def _threshold(y: list[Any]) -> dict[str, object]:
    return {} if all(y) else {"null_score_threshold": 0.0}


def _objective(y: Labels) -> dict[str, object]:
    return {"objective": "contrastive" if y is None else "cosine"}


KINDS = (
    Kind("classifier", "classification", "lmzoo>TextClassifier", read_texts, names=iter),
    Kind("regressor", "regression", "lmzoo>TextRegressor", read_numbers),
    Kind(
        "tagger",
        "token_classification",
        "lmzoo>TokenClassifier",
        read_words,
        names=chain.from_iterable,
    ),
    Kind(
        "qa",
        "question_answering",
        "lmzoo>QuestionAnswerer",
        read_questions,
        arguments=_threshold,
        inputs=("question",),
    ),
    Kind("choice", "multiple_choice", "lmzoo>MultipleChoice", read_prompts, inputs=("prompt",)),
    Kind("masked-lm", "masked_lm", "lmzoo>MaskedLM", read_texts_alone),
    Kind("causal-lm", "causal_lm", "lmzoo>CausalLM", read_texts_alone, inputs=("prompt",)),
    Kind("translation", "seq2seq_lm", "lmzoo>Seq2SeqLM", read_translations),
    Kind("embedder", "embedding", "lmzoo>TextEmbedder", read_pairs, arguments=_objective),
    Kind(
        "multi-label",
        "classification",
        "lmzoo>TextClassifier",
        read_label_sets,
        names=chain.from_iterable,
        arguments=lambda y: {"multi_label": True},
        multi_label=True,
    ),
)


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
