"""Every registered family, and every task on every family. A family or task is enrolled by existing."""

from __future__ import annotations

import keras
import pytest

import lmzoo.models  # noqa: F401 - registers the families
from lmzoo import tasks
from lmzoo.models.family import families
from lmzoo.testing import FAMILY_CHECKS, TASK_CHECKS

FAMILIES = list(families().values())
TASKS = [
    task
    for task in (getattr(tasks, name) for name in tasks.__all__)
    if issubclass(task, tasks.Task) and task is not tasks.Task
]
# These start other processes or compile training steps. One task on every family and every task on one family, not the
# same for all, see everything that they look for.
SLOW = {"check_task_backends", "check_task_export", "check_task_resume", "check_task_training"}
# They compile as well, but run eagerly on TensorFlow.
EAGER = {"check_task_fit", "check_task_predictions"}


def name_of(item):
    return getattr(item, "name", None) or item.__name__


@pytest.mark.parametrize("check", FAMILY_CHECKS, ids=name_of)
@pytest.mark.parametrize("family", FAMILIES, ids=name_of)
def test_family(family, check):
    check(family)


def parameters():
    """Every task on every family that it supports, with every check but for the slow ones."""
    for family in FAMILIES:
        for index, task in enumerate(TASKS):
            supported = [other for other in FAMILIES if task.supports(other)]
            own = family is supported[index % len(supported)]
            if family in supported:
                for check in TASK_CHECKS:
                    slow = name_of(check) in SLOW
                    if slow and not own and task is not tasks.TextClassifier:
                        continue
                    # The second backend runs the quick part only, and of what compiles each task on its own family.
                    if keras.backend.backend() == "tensorflow":
                        marks = [pytest.mark.slow] * slow
                    else:
                        marks = [pytest.mark.slow] * (name_of(check) in SLOW | EAGER and not own)
                    if name_of(check) == "check_task_backends":
                        marks.append(pytest.mark.tf_only)  # the same comparison from the other side
                    yield pytest.param(
                        task, family, check, marks=marks, id=f"{family.name}-{name_of(task)}-{name_of(check)}"
                    )


@pytest.mark.parametrize(("task", "family", "check"), list(parameters()))
def test_task(family, task, check, request):
    if name_of(check) in EAGER:
        request.getfixturevalue("eager")
    check(task, family)


def subclasses(cls):
    return {found for direct in cls.__subclasses__() for found in {direct, *subclasses(direct)}}


def test_everything_is_enrolled():
    assert FAMILIES
    assert len(FAMILY_CHECKS) >= 7
    assert len(TASK_CHECKS) >= 6
    ours = {task for task in subclasses(tasks.Task) if task.__module__.startswith("lmzoo.")}
    assert set(TASKS) == ours, "add the task to lmzoo/tasks/__init__.py"
