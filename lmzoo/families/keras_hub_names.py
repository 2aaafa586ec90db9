"""KerasHub's attribute names for parts of a backbone, and error messages for parts that a model lacks."""

from __future__ import annotations

from typing import Any, ClassVar

import keras

_MISSING = {
    "attention_scores": "models of its family have no attention",
    "position_embedding": "models of its family have no table of positions",
    "token_embedding": "models of its family have no table of tokens",
    "transformer_layers": "models of its family have no Transformer blocks",
}
_MISSING_IN_SEQ2SEQ = {
    "attention_scores": "see source_attention_scores",
    "transformer_layers": "see encoder_blocks and decoder_blocks",
}


class KerasHubBackboneNames:
    """Mixin that provides a backbone's parts under KerasHub's names; a missing part raises an AttributeError."""

    reads_source: ClassVar[bool]

    @property
    def token_embedding(self) -> keras.layers.Layer:
        """Layer of token embeddings, `embeddings.token_embedding`."""
        return self.embeddings.token_embedding

    @property
    def position_embedding(self) -> keras.layers.Layer:
        """Layer of learned position embeddings, `embeddings.position_embedding`."""
        if self.embeddings.position_embedding is None:
            raise AttributeError  # Python then calls `__getattr__`, which raises one with a message
        return self.embeddings.position_embedding

    @property
    def transformer_layers(self) -> list[keras.layers.Layer]:
        """Transformer blocks, first to last, `blocks`."""
        return self.blocks

    def __getattr__(self, name: str) -> Any:
        """Raise an AttributeError that says why the part is missing."""
        if name not in _MISSING and hasattr(super(), "__getattr__"):  # torch looks up layers there
            return super().__getattr__(name)  # type: ignore[misc]
        reasons = {**_MISSING, **_MISSING_IN_SEQ2SEQ} if self.reads_source else _MISSING
        reason = f": {reasons[name]}" if name in reasons else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{reason}")
