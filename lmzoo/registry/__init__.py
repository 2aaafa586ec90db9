"""Registries of model families and of tasks."""

from lmzoo.registry.family import Family, families, find_families_by_format, get_family, register_family
from lmzoo.registry.head_kinds import HasHead, find_task_for_head, get_task_class, task_name, tasks

__all__ = [
    "Family",
    "HasHead",
    "families",
    "find_families_by_format",
    "find_task_for_head",
    "get_family",
    "get_task_class",
    "register_family",
    "task_name",
    "tasks",
]
