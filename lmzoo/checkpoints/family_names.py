"""What other libraries call a family: as it is called here, unless its layouts say otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lmzoo.family import Family, families_with
from lmzoo.text import Tokenizer

# By the kind of a head, what follows "For" in the name of its class in transformers. One class has two kinds; which of
# them it is, `problem_type` says, or the number of classes.
ARCHITECTURES = {
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
        prefix: what the names of its classes begin with.
        model_type: in `config.json`.
        base: what stands before the tensors of a model without a head where there is one.
        architectures: by the kind of a head, and "" without one, names of classes that are not as usual.
    """

    prefix: str
    model_type: str
    base: str
    architectures: Mapping[str, str] = field(default_factory=dict)

    @property
    def tokenizer(self) -> str:
        """The tokenizer's class."""
        return f"{self.prefix}Tokenizer"

    def architecture(self, kind: str | None) -> str:
        """The class of models with a kind of head, or without one."""
        usual = f"{self.prefix}For{ARCHITECTURES[kind]}" if kind in ARCHITECTURES else f"{self.prefix}Model"
        return self.architectures.get(kind or "", usual)

    def kind(self, architecture: str) -> str | None:
        """The kind of head that a class of models has; None for none that is known."""
        known, ending = {**ARCHITECTURES, **self.architectures}, architecture.partition("For")[2]
        return next((kind for kind, name in known.items() if name in (architecture, ending)), None)


def names_in_transformers(family: Family) -> Names:
    """What transformers calls a family: see `lmzoo.checkpoints.hugging_face.HuggingFaceLayout`."""
    own: Names | None = family.checkpoints["hf"].names
    return own or Names(_prefix(family), family.name, family.name)


def keras_hub_prefix(family: Family) -> str:
    """What the names of a family's classes begin with in KerasHub: see `lmzoo.checkpoints.keras_hub.KerasHubLayout`."""
    own: str = family.checkpoints["keras_hub"].prefix
    return own or _prefix(family)


def transformers_tokenizers(cls: type[Tokenizer]) -> list[str]:
    """The classes in transformers that are one of ours, each the tokenizer of a family."""
    names = [names_in_transformers(family).tokenizer for family in families_with("hf") if family.tokenizer is cls]
    return list(dict.fromkeys(names))


def keras_hub_tokenizers() -> dict[str, Family]:
    """The families by the names of their tokenizers' classes in KerasHub."""
    return {f"{keras_hub_prefix(family)}Tokenizer": family for family in families_with("keras_hub")}


def _prefix(family: Family) -> str:
    return family.backbone.__name__.removesuffix("Backbone")
