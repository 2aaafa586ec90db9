"""The record of a family of models, as data that shared code reads, and the registry of families."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

from lmzoo.parallel.layouts import SPLIT
from lmzoo.text.masking import Masking
from lmzoo.text.packing import Packing
from lmzoo.text.tokenizers.tokenizer import SpecialTokens, Tokenizer

# Of the weights of lmzoo's layers. Transformers are split as by Shoeybi et al. (2019, https://arxiv.org/abs/1909.08053):
# the first products of a block give columns, its second ones take them as rows. LSTMs are split in the same way.
LAYOUTS = {
    ".*token_embedding/embeddings": (SPLIT, None),
    ".*(query|key|value)/kernel": (None, SPLIT),
    ".*(query|key|value)/bias": (SPLIT,),
    ".*attention/output_dense/kernel": (SPLIT, None),
    ".*(intermediate|gate)_dense/kernel": (None, SPLIT),
    ".*(intermediate|gate)_dense/bias": (SPLIT,),
    ".*(?<!attention/)output_dense/kernel": (SPLIT, None),
    ".*(forward|backward)_kernel": (None, SPLIT),
    ".*(forward|backward)_bias": (SPLIT,),
    ".*(forward|backward)_projection": (SPLIT, None),
    r".*recurrent_\d+/(recurrent_)?kernel": (None, SPLIT),
    r".*recurrent_\d+/bias": (SPLIT,),
    ".*masked_lm_head/output_bias": (SPLIT,),
    "softmax/kernel": (SPLIT, None),
    "softmax/bias": (SPLIT,),
}


@dataclass(frozen=True)
class Family:
    """One family of models.

    Attributes:
        name: lower-case name, as in `presets/<name>/`.
        backbone: the subclass of `lmzoo.models.Backbone`.
        tokenizer: the class of the tokenizer.
        tiny: frozen dataclass, configuration of a model small enough for tests; with it the conformance suite runs on
            the family.
        packing: how segments become one sequence of token ids; by default as in BERT.
        classifier: arguments of `lmzoo.layers.ClassificationHead` that only this family sets.
        head_norm: whether a LayerNorm, with the backbone's epsilon, follows the dense layer of `classifier`.
        token_heads: whether heads that classify tokens, or find answers, have the layers of `classifier`, too.
        checkpoints: by format, the `lmzoo.checkpoints.engine.Layout` of its files.
        masking: how texts were masked in pre-training; the default of `MaskedLM`.
        objective: of pre-training, next to masked tokens "nsp" or "sop", or instead of them "plm"; the default of
            `Pretrainer`.
        pretrained_head: kind of head that `lmzoo.pretraining` trains it with, see `lmzoo.pretraining.recipe.METHODS`.
            Empty for a family that is not trained from scratch.
        special_tokens: the tokenizer's special tokens, if they are not those of its class.
        title: the name for readers, such as "GPT-2"; by default `name`.
        like: the name of a family that computes the same but for sizes, embeddings or names: tests check it less often.
            Empty for a family with layers of its own or another place of its norms.
        variants: changes of `tiny` with which `lmzoo.testing.CHECKPOINT_CHECKS` run as well.
        guide: the page about the family, a path below `docs/`, or empty.
        layouts: pattern of a weight's whole path -> for each of its axes `SPLIT` or None: which axis
            `lmzoo.parallel.layout_map` splits between devices. Other weights are on every device.
    """

    name: str
    backbone: type[keras.Model]
    tokenizer: type[Tokenizer]
    tiny: Any
    packing: Packing = field(default_factory=lambda: Packing("[CLS]", "[SEP]", ("[SEP]",), segments=True))
    classifier: Mapping[str, Any] = field(default_factory=dict)
    head_norm: bool = False
    token_heads: bool = False
    checkpoints: Mapping[str, Any] = field(default_factory=dict)
    masking: Masking = field(default_factory=Masking)
    objective: str | None = None
    pretrained_head: str = "pretraining"
    special_tokens: SpecialTokens = field(default_factory=SpecialTokens)
    title: str = ""
    like: str = ""
    variants: tuple[Mapping[str, Any], ...] = ()
    guide: str = ""
    layouts: Mapping[str, tuple[str | None, ...]] = field(default_factory=lambda: LAYOUTS)

    @property
    def mask_token(self) -> str | None:
        """The mask token of the family's tokenizers, or None."""
        return self.special_tokens.get("mask_token", self.tokenizer.mask_token)


_FAMILIES: dict[str, Family] = {}


def register_family(family: Family) -> Family:
    """Add `family` to the registry and return it.

    Raises:
        ValueError: if another family has its name.
    """
    if _FAMILIES.setdefault(family.name, family) is not family:
        raise ValueError(f"A family named {family.name!r} is already registered.")
    return family


def families() -> dict[str, Family]:
    """Return the registered families by name."""
    return dict(_FAMILIES)


def families_with(format: str) -> list[Family]:
    """Return the registered families with checkpoints in a format, a key of `Family.checkpoints`."""
    return [family for family in _FAMILIES.values() if format in family.checkpoints]


def family_of(backbone: keras.Model | type[keras.Model]) -> Family:
    """Return the family that a backbone, or its class, belongs to.

    Raises:
        ValueError: if its class belongs to no registered family.
    """
    if isinstance(backbone, str):
        raise ValueError(f"Expected a backbone, got {backbone!r}: `from_preset` builds a model from a preset's name.")
    cls = backbone if isinstance(backbone, type) else type(backbone)
    for family in _FAMILIES.values():
        if issubclass(cls, family.backbone):
            return family
    raise ValueError(f"{cls.__name__} does not belong to a registered family ({', '.join(_FAMILIES)}).")
