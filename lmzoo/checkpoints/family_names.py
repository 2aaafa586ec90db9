"""The names of a family's classes in other libraries: as here, unless its layouts say otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lmzoo.registry.family import Family, families_with

# Kind of head -> what follows "For" in the name of its class in transformers. One class has two kinds: `problem_type`
# or the number of classes tells them apart.
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
    """What transformers calls a family.

    Attributes:
        prefix: prefix of the names of its classes.
        model_type: its name in `config.json`.
        base: prefix of the backbone's tensors in a model with a head.
        architectures: kind of head, or "" for none -> name of the class, where it is not formed as usual.
        tokenizer: the class of its tokenizers, where it is not formed as usual; "" if they have none of their own, and
            `tokenizer.json` says all.
    """

    prefix: str
    model_type: str
    base: str
    architectures: Mapping[str, str] = field(default_factory=dict)
    tokenizer: str | None = None

    def architecture(self, kind: str | None) -> str:
        """Return the name of the class of models with a kind of head, or without one."""
        usual = f"{self.prefix}For{ARCHITECTURES[kind]}" if kind in ARCHITECTURES else f"{self.prefix}Model"
        return self.architectures.get(kind or "", usual)

    def kind(self, architecture: str) -> str | None:
        """Return the kind of head that a class of models has; None for no head or an unknown one."""
        usual = {kind: name for kind, name in ARCHITECTURES.items() if kind not in self.architectures}
        known = {**self.architectures, **usual}
        ending = architecture.partition("For")[2]
        return next((kind for kind, name in known.items() if name in (architecture, ending)), None)


def names_in_transformers(family: Family) -> Names:
    """Return the names of a family in transformers; see `HuggingFaceLayout`."""
    own: Names | None = family.checkpoints["hf"].names
    return own or Names(_prefix(family), family.name, family.name)


def share_a_class(kind: str, other: str) -> bool:
    """Return whether transformers has one class for two kinds of heads, which are therefore easily confused."""
    return kind != other and ARCHITECTURES.get(kind) == ARCHITECTURES.get(other, other)


def keras_hub_prefix(family: Family) -> str:
    """Return the prefix of the names of a family's classes in KerasHub; see `KerasHubLayout`."""
    own: str = family.checkpoints["keras_hub"].prefix
    return own or _prefix(family)


def keras_hub_tokenizers() -> dict[str, Family]:
    """Return the name of a tokenizer's class in KerasHub -> the family."""
    families = [family for family in families_with("keras_hub") if family.checkpoints["keras_hub"].has_tokenizer]
    return {f"{keras_hub_prefix(family)}Tokenizer": family for family in families}


def _prefix(family: Family) -> str:
    return family.backbone.__name__.removesuffix("Backbone")
