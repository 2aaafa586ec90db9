"""The description of a model family, and the registry of families."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

from lmzoo.parallel.layouts import SPLIT
from lmzoo.text.masking import Masking
from lmzoo.text.packing import Packing
from lmzoo.text.tokenizers.tokenizer import SpecialTokens, Tokenizer

# Weight layouts for lmzoo's layers, as in Shoeybi et al. (2019, https://arxiv.org/abs/1909.08053): the first matrices
# of a block are split by columns, the second ones by rows. LSTMs are split in the same way.
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
    """The description of a model family, used by code that is shared by all families.

    Attributes:
        name: str, lowercase name of the family, as in `presets/<name>/`.
        backbone: subclass of `lmzoo.models.Backbone`.
        tokenizer: subclass of `Tokenizer`.
        tiny: frozen dataclass, configuration of a model small enough for the conformance tests.
        packing: `Packing`, the template that combines segments into a sequence; BERT's by default.
        classifier: dict, arguments that this family passes to `lmzoo.layers.ClassificationHead`.
        head_norm: bool, whether a LayerNorm with the backbone's epsilon follows the dense layer of `classifier`.
        token_heads: bool, whether the heads for token classification and question answering also have the layers that
            `classifier` describes.
        checkpoints: dict from a checkpoint format to the family's `lmzoo.checkpoints.engine.Layout` in that format.
        masking: `Masking`, the masking of texts in pre-training; the default of `MaskedLM`.
        objective: str, the family's pre-training objective and the default of `Pretrainer`: "nsp" (next-sentence
            prediction) or "sop" (sentence-order prediction) in addition to masked language modeling; "plm" (permutation
            language modeling) or "rtd" (replaced-token detection) in place of it; or None for masked language modeling
            alone. For an encoder-decoder, "span_corruption", or None if it only learns from pairs of texts.
        pretrained_head: str, kind of head that `lmzoo.pretraining` trains, a key of
            `lmzoo.pretraining.recipe.METHODS`. Empty for a family that is not trained from scratch.
        special_tokens: special tokens that differ from the defaults of the tokenizer's class.
        title: str, display name, such as "GPT-2"; by default `name`.
        like: str, name of a family with the same layers and the same positions of norms, from which this family differs
            only in sizes, embeddings or names; tests then check this family less often. Empty if there is none.
        variants: dicts of changes to `tiny`, each for an additional run of `lmzoo.testing.CHECKPOINT_CHECKS`.
        guide: str, path of the page about the family, relative to `docs/`; may be empty.
        layouts: dict from regular expressions, which match the full path of a weight, to tuples with `SPLIT` for the
            axis that `lmzoo.parallel.layout_map` splits across devices, and None for other axes. Other weights are
            copied to every device.
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
        """The mask token of the family's tokenizers, or None if they have no mask token."""
        return self.special_tokens.get("mask_token", self.tokenizer.mask_token)


_FAMILIES: dict[str, Family] = {}


def register_family(family: Family) -> Family:
    """Add a family to the registry and return it.

    Raises:
        ValueError: If another family is registered under the same name.
    """
    if _FAMILIES.setdefault(family.name, family) is not family:
        raise ValueError(f"A family named {family.name!r} is already registered.")
    return family


def families() -> dict[str, Family]:
    """Return all registered families by name."""
    return dict(_FAMILIES)


def find_families_by_format(format: str) -> list[Family]:
    """Return the registered families with a checkpoint layout for `format`, a key of `Family.checkpoints`."""
    return [family for family in _FAMILIES.values() if format in family.checkpoints]


def get_family(backbone: keras.Model | type[keras.Model]) -> Family:
    """Return the family of a backbone or backbone class.

    Raises:
        ValueError: If `backbone` is a string, or its class belongs to no registered family.
    """
    if isinstance(backbone, str):
        raise ValueError(f"Expected a backbone, got {backbone!r}: `from_preset` builds a model from a preset's name.")
    cls = backbone if isinstance(backbone, type) else type(backbone)
    for family in _FAMILIES.values():
        if issubclass(cls, family.backbone):
            return family
    raise ValueError(f"{cls.__name__} does not belong to a registered family ({', '.join(_FAMILIES)}).")
