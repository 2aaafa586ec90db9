"""Registries of model families and of tasks."""

from lmzoo.registry.family import Family, families, families_with, family_of, register_family
from lmzoo.registry.head_kinds import HasHead, task_name, task_of, task_that_reads, tasks

__all__ = [
    "Family",
    "HasHead",
    "families",
    "families_with",
    "family_of",
    "register_family",
    "task_name",
    "task_of",
    "task_that_reads",
    "tasks",
]
