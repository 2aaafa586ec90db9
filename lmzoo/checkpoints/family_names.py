"""Names of the families and their classes in transformers and KerasHub.

The names default to lmzoo's own; the layouts of a family may override them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lmzoo.registry.family import Family, find_families_by_format

# Kind of head -> the part after "For" of the class name in transformers. Classification and regression share a class:
# `problem_type` or the number of classes tells them apart.
ARCHITECTURES = {
    "causal_lm": "CausalLM",
    "classification": "SequenceClassification",
    "masked_lm": "MaskedLM",
    "multiple_choice": "MultipleChoice",
    "pretraining": "PreTraining",
    "question_answering": "QuestionAnswering",
    "regression": "SequenceClassification",
    "token_classification": "TokenClassification",
}


@dataclass(frozen=True)
class Names:
    """Names of a family in transformers.

    Attributes:
        prefix: Prefix of the class names, such as "Bert".
        model_type: Value of `model_type` in `config.json`, such as "bert".
        base: Prefix of the backbone's tensor names in a model with a head, such as "bert".
        architectures: Irregular class names by kind of head; "" is the key for no head.
        tokenizer: Class name of the tokenizers; None to derive it from `prefix`; "" if the family has no tokenizer
            class of its own, so that `tokenizer.json` defines everything.
        tokenizer_segments: Whether the tokenizers distinguish the segments of a pair, although lmzoo's default packing
            for the family does not.
    """

    prefix: str
    model_type: str
    base: str
    architectures: Mapping[str, str] = field(default_factory=dict)
    tokenizer: str | None = None
    tokenizer_segments: bool = False

    def architecture(self, kind: str | None) -> str:
        """Return the class name of a model with the given kind of head; None stands for no head."""
        default_name = f"{self.prefix}For{ARCHITECTURES[kind]}" if kind in ARCHITECTURES else f"{self.prefix}Model"
        return self.architectures.get(kind or "", default_name)

    def kind(self, architecture: str) -> str | None:
        """Return the kind of head of a model class, or None if the class has no head or an unknown head."""
        default_names = {kind: name for kind, name in ARCHITECTURES.items() if kind not in self.architectures}
        names_by_kind = {**self.architectures, **default_names}
        suffix = architecture.partition("For")[2]
        return next((kind for kind, name in names_by_kind.items() if name in (architecture, suffix)), None)


def names_in_transformers(family: Family) -> Names:
    """Return the names of a family in transformers: the names in its layout, else derived from lmzoo's names."""
    names: Names | None = family.checkpoints["hf"].names
    return names or Names(_prefix(family), family.name, family.name)


def share_a_class(kind: str, other: str) -> bool:
    """Return whether two different kinds of head have the same class in transformers."""
    return kind != other and ARCHITECTURES.get(kind) == ARCHITECTURES.get(other, other)


def keras_hub_prefix(family: Family) -> str:
    """Return the prefix of a family's class names in KerasHub, such as "Bert"."""
    prefix: str = family.checkpoints["keras_hub"].prefix
    return prefix or _prefix(family)


def keras_hub_tokenizers() -> dict[str, Family]:
    """Return the families with a tokenizer in KerasHub, by the name of the tokenizer class."""
    families = [
        family for family in find_families_by_format("keras_hub") if family.checkpoints["keras_hub"].has_tokenizer
    ]
    return {f"{keras_hub_prefix(family)}Tokenizer": family for family in families}


def _prefix(family: Family) -> str:
    return family.backbone.__name__.removesuffix("Backbone")
