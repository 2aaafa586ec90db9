"""What a suite has to run over: everything that there is of a kind."""

from __future__ import annotations


def subclasses(cls: type) -> set[type]:
    """All classes below a class."""
    return {found for direct in cls.__subclasses__() for found in {direct, *subclasses(direct)}}
