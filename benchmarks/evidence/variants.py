"""Variants of families for the arms of claims: other masks, dropout, embeddings, or shared layers.

`lmzoo.pretraining` trains every registered family. A variant differs from BERT or ALBERT in some fields of its
configuration, or in its tokens.
"""

from __future__ import annotations

from typing import Any

import keras

from lmzoo.common.tensor_types import Shape
from lmzoo.families.albert import AlbertBackbone
from lmzoo.families.bert import BertBackbone
from lmzoo.layers import TransformerBlock
from lmzoo.models import Backbone
from lmzoo.registry.family import Family, families, register_family
from lmzoo.text import Masking

FEED_FORWARD = ("intermediate_dense", "output_dense")


class SharingBlock(TransformerBlock):
    """A block that may use the sublayers of another block."""

    def build(self, input_shape: Shape) -> None:
        """Create the weights of the sublayers that are not built yet."""
        for layer in (self.attention, self.attention_layer_norm, self.intermediate_dense, self.output_layer_norm):
            if not layer.built:
                layer.build(input_shape)
        if not self.output_dense.built:
            self.output_dense.build((*input_shape[:-1], self.intermediate_dim))
        self.built = True


class PartlySharedBackbone(AlbertBackbone):
    """ALBERT whose blocks share only the sublayers named in `shared`."""

    shared: tuple[str, ...] = ()
    first: SharingBlock | None = None

    @classmethod
    def assemble(cls, config: Any, dtype: keras.DTypePolicy) -> Any:
        """Build the graph, with blocks that share sublayers of the first one."""
        cls.first = None
        return super().assemble(config, dtype)

    @classmethod
    def make_block(cls, config: Any, dtype: keras.DTypePolicy, name: str) -> SharingBlock:
        """Return a block with the sublayers of the first one."""
        block = SharingBlock(*config.block_arguments, dtype=dtype, name=name)
        cls.first = cls.first or block
        for part in cls.shared if cls.first is not block else ():
            setattr(block, part, getattr(cls.first, part))
        return block


def _make_partly_shared(*parts: str) -> tuple[type, dict[str, Any]]:
    """Return a backbone class whose blocks share the sublayers in `parts`, and the changes to its configuration."""
    return type("PartlyShared", (PartlySharedBackbone,), {"shared": parts}), {"unroll": True, "num_groups": 4}


# By name: the backbone, and its configuration where it differs.
VARIANTS: dict[str, tuple[type, dict[str, Any]]] = {
    "dropout": (BertBackbone, {"dropout": 0.1}),
    "whole_words": (BertBackbone, {}),
    "ngrams": (BertBackbone, {}),
    "shared_nothing": (AlbertBackbone, {"num_groups": 4, "unroll": True}),
    "shared_attention": _make_partly_shared("attention"),
    "shared_feed_forward": _make_partly_shared(*FEED_FORWARD),
    "shared_all": (AlbertBackbone, {}),
    **{f"embeddings_{size}": (AlbertBackbone, {"embedding_dim": size}) for size in (32, 64, 256)},
    "bert_modern_tokens": (BertBackbone, {"num_segments": 0}),
}
MASKS = {"whole_words": Masking(whole_word=True), "ngrams": Masking(whole_word=True, ngram=3)}
TOKENS = {"bert_modern_tokens": "modernbert"}  # the family whose tokens a variant reads, if not BERT


def get_family_of_tokens(name: str) -> Family:
    """Return the family that defines the tokens of a family or variant: tokenizer, packing and masking."""
    return families()[TOKENS.get(name, "bert") if name in VARIANTS else name]


def get_or_register_family(name: str) -> Family:
    """Return one of lmzoo's families or a variant, which is registered when first used."""
    if name not in families():
        register_family(_make_family(name, *VARIANTS[name]))
    return families()[name]


def _make_family(name: str, base: type, changes: dict[str, Any]) -> Family:
    class Variant(base):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**{**kwargs, **changes})

    Variant.__name__ = Variant.__qualname__ = f"{base.__name__}_{name}"
    registered: type[Backbone] = keras.saving.register_keras_serializable("lmzoo_evidence")(Variant)
    tokens = get_family_of_tokens(name)
    return Family(
        name=name,
        backbone=registered,
        tokenizer=tokens.tokenizer,
        packing=tokens.packing,
        masking=MASKS.get(name, tokens.masking),
        tiny=None,
    )
