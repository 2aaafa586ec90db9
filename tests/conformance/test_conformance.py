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
# These start other processes or compile everything twice.
SLOW = {"check_task_backends", "check_task_export", "check_task_files", "check_task_training"}


def name_of(item):
    return getattr(item, "name", None) or item.__name__


@pytest.mark.parametrize("check", FAMILY_CHECKS, ids=name_of)
@pytest.mark.parametrize("family", FAMILIES, ids=name_of)
def test_family(family, check):
    check(family)


def parameters():
    """Every task on every family that it supports, with every check."""
    for family in FAMILIES:
        for task in TASKS:
            if task.supports(family):
                for check in TASK_CHECKS:
                    # The quick part is all that the second backend runs: there one family stands for all.
                    one_for_all = family.name == "bert" and keras.backend.backend() != "tensorflow"
                    marks = [pytest.mark.slow] * (name_of(check) in SLOW and not one_for_all)
                    if name_of(check) == "check_task_backends":
                        marks.append(pytest.mark.tf_only)  # the same comparison from the other side
                    yield pytest.param(
                        task, family, check, marks=marks, id=f"{family.name}-{name_of(task)}-{name_of(check)}"
                    )


@pytest.mark.parametrize(("task", "family", "check"), list(parameters()))
def test_task(family, task, check):
    check(task, family)


def subclasses(cls):
    return {found for direct in cls.__subclasses__() for found in {direct, *subclasses(direct)}}


def test_everything_is_enrolled():
    assert FAMILIES
    assert len(FAMILY_CHECKS) >= 7
    assert len(TASK_CHECKS) >= 6
    ours = {task for task in subclasses(tasks.Task) if task.__module__.startswith("lmzoo.")}
    assert set(TASKS) == ours, "add the task to lmzoo/tasks/__init__.py"
