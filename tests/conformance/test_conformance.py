"""Every registered family, and every task on every family. A family or task is enrolled by existing."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=name, marks=[pytest.mark.slow] * (name in SLOW))
        for check, name in zip(TASK_CHECKS, map(name_of, TASK_CHECKS), strict=True)
    ],
)
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
@pytest.mark.parametrize("family", FAMILIES, ids=name_of)
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
