"""The SentencePiece tokenizer of DeBERTa-v3."""

from __future__ import annotations

from pathlib import Path

import keras

from lmzoo.text.tokenizers.sentencepiece import MODEL_FILE, ModelRulesTokenizer, model_proto, read_model

_MASK = "[MASK]"
_CONTROL = 3  # SentencePiece's type for tokens that never occur in texts


@keras.saving.register_keras_serializable(package="lmzoo")
class DebertaV3Tokenizer(ModelRulesTokenizer):
    """DeBERTa-v3's tokenizer, a unigram SentencePiece model (He et al., 2021).

    Only the model's own rules clean a text, as in Microsoft's code and in KerasHub: letters keep their case and
    accents, and quotes are unchanged. (The class in transformers 5 composes characters by NFC instead; full-width
    letters, for example, then become unknown.) Published models lack `[MASK]`; it is added after all other tokens.

    The space that a token begins with is not part of its span, as for `SentencePieceTokenizer`.

    Args:
        model: bytes or path of a SentencePiece model; None to read it with `load_assets`.
        **special: special tokens that differ from DeBERTa's, see `lmzoo.text.SpecialTokens`.

    Raises:
        ValueError: If `model` is not a complete SentencePiece model or lacks a special token.

    Example:

    ```python
    from lmzoo.text import DebertaV3Tokenizer

    tokenizer = DebertaV3Tokenizer.of_words(["Un", "café"], size=11)
    tokenizer.tokenize(["Un  café", ""])  # [[5, 6], []]
    ```
    """

    pad_token, start_token, end_token, unk_token, mask_token = "[PAD]", "[CLS]", "[SEP]", "[UNK]", _MASK
    roles = ("pad_token", "start_token", "end_token", "unk_token", "mask_token")
    last_part_counts = True

    def save_assets(self, directory: str | Path) -> None:
        """Write the model into `directory` as `vocabulary.spm`, without a `[MASK]` that was added to it."""
        (Path(directory) / MODEL_FILE).write_bytes(remove_mask_token(self.model))

    def _set_model(self, model: bytes, name: str) -> None:
        super()._set_model(add_mask_token(model) if self.mask_token == _MASK else model, name)


def add_mask_token(model: bytes) -> bytes:
    """Add `[MASK]` after all tokens of a model that lacks it; return any other bytes unchanged."""
    try:
        proto = read_model(model)
    except Exception:  # protobuf raises errors of several types
        return model
    is_complete = proto.pieces and proto.HasField("trainer_spec") and proto.HasField("normalizer_spec")
    if not is_complete or any(piece.piece == _MASK for piece in proto.pieces):
        return model
    # Serialized messages can be concatenated, which leaves the published bytes unchanged.
    mask_proto = model_proto()()
    mask_proto.pieces.add(piece=_MASK, score=0.0, type=_CONTROL)
    return model + bytes(mask_proto.SerializePartialToString())


def remove_mask_token(model: bytes) -> bytes:
    """Remove the `[MASK]` that `add_mask_token` added; return any other model unchanged."""
    mask_proto = model_proto()()
    mask_proto.pieces.add(piece=_MASK, score=0.0, type=_CONTROL)
    return model.removesuffix(mask_proto.SerializePartialToString())
