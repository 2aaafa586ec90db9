"""Every registered family, and every task on every family. A family or task is enrolled by existing."""

from __future__ import annotations

import keras
import pytest

import lmzoo.models  # noqa: F401 - registers the families
from lmzoo import tasks
from lmzoo.registry.family import families
from lmzoo.testing import FAMILY_CHECKS, TASK_CHECKS, check_seed, check_task_fit, check_training
from lmzoo.testing.tiny import public_tasks
from tests.conformance.enrolled import subclasses

FAMILIES = list(families().values())
TASKS = public_tasks()
# These start other processes, train or make many models: each task on one family sees everything that they look for.
EXPENSIVE = {
    "check_task_backends",
    "check_task_export",
    "check_task_fit",
    "check_task_functional_model",
    "check_task_resume",
    "check_task_training",
}
# Compiling, resuming and files are the business of what tasks share: one that masks and one that has labels are enough.
TASKS_IN_FULL = {"MaskedLM", "TextClassifier"}
# What depends on the pair of a task and a family in these, TensorFlow sees: on JAX a process with TensorFlow exports,
# and graphs and the states of runs are Keras' own.
ENOUGH_ON_TENSORFLOW = {"check_task_export", "check_task_functional_model", "check_task_resume"}
# On TensorFlow these compile as well, but run eagerly here: `check_task_training` compares the two.
EAGER = {"check_task_fit", "check_task_predictions"}


def get_name(item):
    return getattr(item, "name", None) or item.__name__


# `make test` does for these what takes no time; that they compute the right numbers other tests see.
SIMILAR = {family.name for family in FAMILIES if family.like}
QUICK = {"check_config", "check_shapes", "check_padding"}
# These take longest: a Transformer and an LSTM are enough for a day.
EXPENSIVE_OF_FAMILIES = {"check_backbone_files", "check_functional_model", "check_seed", "check_training"}
FAMILIES_IN_FULL = {"bert", "lstm_lm"}
# Dropout outside of compiled code takes seconds on JAX, and so do new models; inputs and configurations are the same.
SLOW_ON_JAX = {"check_batches", "check_config", "check_functional_model", "check_input_names", "check_seed"}


def is_slow_for_a_family(family, check):
    """Return whether a check of a family is left to `make test-all`."""
    name = get_name(check)
    if name in EXPENSIVE_OF_FAMILIES and family.name not in FAMILIES_IN_FULL:
        return True
    if keras.backend.backend() == "tensorflow":
        return family.name in SIMILAR and name not in QUICK
    return family.name in SIMILAR or (name in SLOW_ON_JAX and (family.name != "bert" or check is check_seed))


def family_parameters():
    """Every check of every family."""
    for family in FAMILIES:
        for check in FAMILY_CHECKS:
            marks = [pytest.mark.slow] * is_slow_for_a_family(family, check)
            yield pytest.param(family, check, marks=marks, id=f"{family.name}-{get_name(check)}")


@pytest.mark.parametrize(("family", "check"), list(family_parameters()))
def test_family(family, check):
    check(family)


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="`check_training` says so there")
@pytest.mark.parametrize("family", ["albert", "bert", "elmo", "lstm_lm"])
def test_an_eager_step_equals_a_compiled_one(family):
    """One block in a loop, many blocks, LSTMs with and without a projection: JAX compiles each operation for a step."""
    check_training(families()[family], eager=True)


def is_slow_for_a_task(task, family, check, own):
    """Return whether a check of a task is left to `make test-all`; `own` says whether the family is the task's.

    What other tasks do on JAX `check_task_backends` sees from TensorFlow, and test_toy_task.py exports there. That each
    family can be trained `check_training` sees.
    """
    name = get_name(check)
    if keras.backend.backend() != "tensorflow":
        return not own or task is not tasks.TextClassifier or name == "check_task_export"
    if own:
        in_full = get_name(task) in TASKS_IN_FULL or name == "check_task_backends"
        return name == "check_task_export" or (name in EXPENSIVE and not in_full)
    return task is not tasks.TextClassifier or family.name in SIMILAR or name in {*EXPENSIVE, "check_task_files"}


def parameters():
    """Every task with every check on one family, and in turn with some of them on each other family that it supports.

    Of the checks that are not expensive those are a third, for the classifier all; half of the expensive ones are there
    for one more task of each family, and the classifier is fitted on all. On JAX they are others. `make test` runs
    pairs in which every task occurs, and the classifier on families that are not similar to others.
    """
    on_jax = keras.backend.backend() == "jax"
    for family in FAMILIES:
        of_family = [task for task in TASKS if task.supports(family)]
        for index, task in enumerate(TASKS):
            if task not in of_family:
                continue
            supported = [other for other in FAMILIES if task.supports(other)]
            # These take longest: the classifier and the tasks that only they have are enough there.
            quick = [other for other in supported if other.name not in ("albert", "elmo", "xlnet")] or supported
            own = family is quick[index % len(quick)]
            for number, check in enumerate(TASK_CHECKS):
                turn = number + FAMILIES.index(family) + on_jax
                if get_name(check) in EXPENSIVE:
                    chosen = turn % 2 == 0 and task is of_family[turn // 2 % len(of_family)]
                    chosen |= check is check_task_fit and task is tasks.TextClassifier
                else:
                    chosen = task is tasks.TextClassifier or (turn + index) % 3 == 0
                if not own and ((on_jax and get_name(check) in ENOUGH_ON_TENSORFLOW) or not chosen):
                    continue
                needs_offsets = task is tasks.QuestionAnswerer and get_name(check) == "check_task_export"
                if needs_offsets and not family.tokenizer.has_offsets_in_graphs:
                    continue  # refused, says tests/serving/test_answers.py
                marks = [pytest.mark.slow] * is_slow_for_a_task(task, family, check, own)
                if get_name(check) == "check_task_backends":
                    marks.append(pytest.mark.tf_only)  # the same comparison from the other side
                yield pytest.param(
                    task, family, check, marks=marks, id=f"{family.name}-{get_name(task)}-{get_name(check)}"
                )


@pytest.mark.parametrize(("task", "family", "check"), list(parameters()))
def test_task(family, task, check, request):
    if get_name(check) in EAGER:
        request.getfixturevalue("eager")
    check(task, family)


def test_everything_is_enrolled():
    assert FAMILIES
    assert len(FAMILY_CHECKS) >= 7
    assert len(TASK_CHECKS) >= 6
    found = {task for task in subclasses(tasks.Task) if task.__module__.startswith("lmzoo.")}
    bases = ("lmzoo.tasks.base.", "lmzoo.tasks.objectives.")  # of several tasks
    ours = {task for task in found if not task.__module__.startswith(bases)}
    assert set(TASKS) == ours, "add the task to lmzoo/tasks/__init__.py"
