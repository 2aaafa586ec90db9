"""Lists of all subclasses, for suites that must cover each of them."""

from __future__ import annotations


def subclasses(cls: type) -> set[type]:
    """Return all direct and indirect subclasses of a class."""
    return {subclass for direct in cls.__subclasses__() for subclass in {direct, *subclasses(direct)}}
