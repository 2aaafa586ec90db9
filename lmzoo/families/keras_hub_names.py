"""KerasHub's attribute names for the layers of a backbone, and advice in errors about missing names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import keras

from lmzoo.common.other_names import AdvisesOnNames

_MISSING = {
    "default_lora_layer_names": "`enable_lora` adapts the layers in `target_layer_names`",
    "export_to_transformers": '`lmzoo.save_checkpoint(backbone, directory, to="hf")` writes such a directory',
    "cls_token_index": "`pooled_output` is computed from the first token, in families with a pooler",
    "get_lora_target_names": "`enable_lora` adapts the layers in `target_layer_names`",
    "start_token_index": "`pooled_output` is the vector of the first token",
    "attention_scores": "models of its family have no attention",
    "position_embedding": "models of its family have no table of positions",
    "token_embedding": "models of its family have no table of tokens",
    "transformer_layers": "models of its family have no Transformer blocks",
}
_MISSING_IN_SEQ2SEQ = {
    "attention_scores": "see source_attention_scores",
    "transformer_layers": "see encoder_blocks and decoder_blocks",
}


class KerasHubBackboneNames(AdvisesOnNames):
    """Mixin that provides a backbone's layers under KerasHub's names; a missing layer raises an AttributeError."""

    names_instead: ClassVar[Mapping[str, str]] = _MISSING
    reads_source: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.reads_source:
            cls.names_instead = {**_MISSING, **_MISSING_IN_SEQ2SEQ}

    @property
    def token_embedding(self) -> keras.layers.Layer:
        """The layer of token embeddings, `embeddings.token_embedding`."""
        return self.embeddings.token_embedding

    @property
    def position_embedding(self) -> keras.layers.Layer:
        """The layer of learned position embeddings, `embeddings.position_embedding`."""
        if self.embeddings.position_embedding is None:
            raise AttributeError  # Python then calls `__getattr__`, which raises an error with a message
        return self.embeddings.position_embedding

    @property
    def transformer_layers(self) -> list[keras.layers.Layer]:
        """The Transformer blocks from first to last, `blocks`."""
        return self.blocks
