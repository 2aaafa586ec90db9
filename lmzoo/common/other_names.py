"""Advice for names of classes, attributes and arguments in other libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn

from lmzoo.common.arguments import near_names

# Arguments of KerasHub's `save_to_preset` -> advice.
SAVE_TO_PRESET = {"max_shard_size": "The weights of a preset are one file."}


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


def refuse_model_name(name: str, names: Sequence[str]) -> NoReturn:
    """Raise an AttributeError for a class that `lmzoo.models` does not have, with advice for a name in KerasHub.

    Args:
        name: str, name of the class, such as "BertTextClassifier".
        names: names of all classes in `lmzoo.models`.
    """
    advice = near_names(name, names)
    for part in ("Tokenizer", "Preprocessor"):
        if name.endswith(part):
            advice = f" Use `lmzoo.text.{part}`, whose `from_preset` loads presets of all families."
    for own_name in names:
        if name.lower() == own_name.lower():
            advice = f" Use `{own_name}`."
        elif name.endswith(own_name) and own_name != "Backbone":
            advice = f" Use `{own_name}`, which is one class for all families."
    raise AttributeError(f"`lmzoo.models` has no class {name!r}.{advice}")
