"""Advice for names of classes, attributes and arguments in other libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn

from lmzoo.common.arguments import near_names

# Arguments of KerasHub's `save_to_preset` -> advice.
SAVE_TO_PRESET = {"max_shard_size": "The weights of a preset are one file."}


class AdvisesOnNames:
    """Mixin that adds advice to the AttributeError for an attribute that only other libraries have.

    Attributes:
        names_instead: dict from an attribute's name to the advice that ends the error message.
    """

    names_instead: ClassVar[Mapping[str, str]] = {}

    def __getattr__(self, name: str) -> Any:
        """Raise an AttributeError with the advice for `name`; on torch, look up names without advice first."""
        if name not in self.names_instead and hasattr(super(), "__getattr__"):  # torch looks up layers there
            return super().__getattr__(name)  # type: ignore[misc]
        advice = f": {self.names_instead[name]}" if name in self.names_instead else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{advice}")


def refuse_model_name(name: str, names: Sequence[str]) -> NoReturn:
    """Raise an AttributeError for a class that `lmzoo.models` lacks, with advice on what to use instead.

    Args:
        name: str, name of the class, such as "BertTextClassifier".
        names: names of all classes in `lmzoo.models`.
    """
    advice = near_names(name, names)
    for suffix in ("Tokenizer", "Preprocessor"):
        if name.endswith(suffix):
            advice = f" Use `lmzoo.text.{suffix}`, whose `from_preset` loads presets of all families."
    for class_name in names:
        if name.lower() == class_name.lower():
            advice = f" Use `{class_name}`."
        elif name.endswith(class_name) and class_name != "Backbone":
            advice = f" Use `{class_name}`, which is one class for all families."
    raise AttributeError(f"`lmzoo.models` has no class {name!r}.{advice}")
