"""Advice for attributes that objects of other libraries have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class AdvisesOnNames:
    """Mixin that says, for a missing attribute with another library's name, what to use instead.

    Attributes:
        names_instead: dict from names of attributes to advice, the end of a message.
    """

    names_instead: ClassVar[Mapping[str, str]] = {}

    def __getattr__(self, name: str) -> Any:
        """Raise an AttributeError with advice for the name, if there is any."""
        if name not in self.names_instead and hasattr(super(), "__getattr__"):  # torch looks up layers there
            return super().__getattr__(name)  # type: ignore[misc]
        advice = f": {self.names_instead[name]}" if name in self.names_instead else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{advice}")
