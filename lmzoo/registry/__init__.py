"""The registries of families and of tasks, by the kind of their head."""

from lmzoo.registry.family import families

__all__ = ["families"]
