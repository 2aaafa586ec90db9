"""Every registered family, and every task on every family. All that are registered are tested."""

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
# These start other processes, train or build many models; each task runs them on one family, which covers them.
EXPENSIVE = {
    "check_task_backends",
    "check_task_export",
    "check_task_fit",
    "check_task_functional_model",
    "check_task_resume",
    "check_task_training",
}
# Tasks share the code that compiles, resumes and saves, so one task with masks and one with labels suffice.
TASKS_IN_FULL = {"MaskedLM", "TextClassifier"}
# On TensorFlow these cover each pair of a task and a family. On JAX, a process with TensorFlow exports, and Keras
# itself handles graphs and the states of runs.
ENOUGH_ON_TENSORFLOW = {"check_task_export", "check_task_functional_model", "check_task_resume"}
# On TensorFlow these run eagerly here, to save time; `check_task_training` compares eager and compiled steps.
EAGER = {"check_task_fit", "check_task_predictions"}


def get_name(item):
    return getattr(item, "name", None) or item.__name__


# `make test` runs only fast checks of these families; their numbers are covered by other tests.
SIMILAR = {family.name for family in FAMILIES if family.like}
QUICK = {"check_config", "check_shapes", "check_padding"}
# These take longest, so `make test` runs them for a Transformer and an LSTM.
EXPENSIVE_OF_FAMILIES = {"check_backbone_files", "check_functional_model", "check_seed", "check_training"}
FAMILIES_IN_FULL = {"bert", "lstm_lm"}
# On JAX, new models and dropout outside of compiled code take seconds; inputs and configurations do not differ.
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
    """Yield each check of each family."""
    for family in FAMILIES:
        for check in FAMILY_CHECKS:
            marks = [pytest.mark.slow] * is_slow_for_a_family(family, check)
            yield pytest.param(family, check, marks=marks, id=f"{family.name}-{get_name(check)}")


@pytest.mark.parametrize(("family", "check"), list(family_parameters()))
def test_family(family, check):
    check(family)


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="`check_training` covers it there")
@pytest.mark.parametrize("family", ["albert", "bert", "elmo", "lstm_lm"])
def test_an_eager_step_equals_a_compiled_step(family):
    """A looped block, many blocks, and LSTMs with and without a projection suffice: JAX compiles each operation."""
    check_training(families()[family], eager=True)


def is_slow_for_a_task(task, family, check, own):
    """Return whether a check of a task is left to `make test-all`; `own` says whether the family is the task's.

    On JAX, `check_task_backends` covers the remaining tasks from TensorFlow, and test_toy_task.py covers the export.
    `check_training` covers the training of each family.
    """
    name = get_name(check)
    if keras.backend.backend() != "tensorflow":
        return not own or task is not tasks.TextClassifier or name == "check_task_export"
    if own:
        in_full = get_name(task) in TASKS_IN_FULL or name == "check_task_backends"
        return name == "check_task_export" or (name in EXPENSIVE and not in_full)
    return task is not tasks.TextClassifier or family.name in SIMILAR or name in {*EXPENSIVE, "check_task_files"}


def parameters():
    """Yield each task with all checks on its own family, and with some checks on each further family that it supports.

    These are a third of the cheap checks, or all for the classifier; half of the expensive checks run for one more task
    of each family, and the classifier is fitted on every family. The selection differs on JAX. `make test` runs each
    task on its own family, and the classifier on families that are not similar to another one.
    """
    on_jax = keras.backend.backend() == "jax"
    for family in FAMILIES:
        family_tasks = [task for task in TASKS if task.supports(family)]
        for index, task in enumerate(TASKS):
            if task not in family_tasks:
                continue
            supported = [candidate for candidate in FAMILIES if task.supports(candidate)]
            # These families are slow, so only the classifier and tasks for them alone run there.
            quick = [candidate for candidate in supported if candidate.name not in ("albert", "elmo", "xlnet")]
            quick = quick or supported
            own = family is quick[index % len(quick)]
            for number, check in enumerate(TASK_CHECKS):
                turn = number + FAMILIES.index(family) + on_jax
                if get_name(check) in EXPENSIVE:
                    is_chosen = turn % 2 == 0 and task is family_tasks[turn // 2 % len(family_tasks)]
                    is_chosen |= check is check_task_fit and task is tasks.TextClassifier
                else:
                    is_chosen = task is tasks.TextClassifier or (turn + index) % 3 == 0
                if not own and ((on_jax and get_name(check) in ENOUGH_ON_TENSORFLOW) or not is_chosen):
                    continue
                needs_offsets = task is tasks.QuestionAnswerer and get_name(check) == "check_task_export"
                if needs_offsets and not family.tokenizer.has_offsets_in_graphs:
                    continue  # tests/serving/test_answers.py covers the refusal
                marks = [pytest.mark.slow] * is_slow_for_a_task(task, family, check, own)
                if get_name(check) == "check_task_backends":
                    marks.append(pytest.mark.tf_only)  # on JAX, it would repeat the same comparison
                yield pytest.param(
                    task, family, check, marks=marks, id=f"{family.name}-{get_name(task)}-{get_name(check)}"
                )


@pytest.mark.parametrize(("task", "family", "check"), list(parameters()))
def test_task(family, task, check, request):
    if get_name(check) in EAGER:
        request.getfixturevalue("eager")
    check(task, family)


def test_all_tasks_are_tested():
    assert FAMILIES
    assert len(FAMILY_CHECKS) >= 7
    assert len(TASK_CHECKS) >= 6
    all_tasks = {task for task in subclasses(tasks.Task) if task.__module__.startswith("lmzoo.")}
    concrete_tasks = all_tasks - {base for task in all_tasks for base in task.__bases__}
    assert set(TASKS) == concrete_tasks, "add the task to lmzoo/tasks/__init__.py"
