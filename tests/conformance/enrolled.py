"""Finds everything of a kind, for suites that must cover all of it."""

from __future__ import annotations


def subclasses(cls: type) -> set[type]:
    """All classes below a class."""
    return {found for direct in cls.__subclasses__() for found in {direct, *subclasses(direct)}}
