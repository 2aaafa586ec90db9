"""XLM-RoBERTa's SentencePiece tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack

import keras

from lmzoo.text.tokenizers.precompiled_rules import PrecompiledRules, precompiled_rules
from lmzoo.text.tokenizers.sentencepiece import MODEL_FILE, ModelRulesTokenizer, read_model
from lmzoo.text.tokenizers.sentencepiece_text import Aligned
from lmzoo.text.tokenizers.tokenizer import SpecialTokens

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer

_PUBLISHED_TOKENS = ["<unk>", "<s>", "</s>"]
_NUM_FAIRSEQ_TOKENS = 4  # special tokens in front of the vocabulary, which replace SentencePiece's three
# Token types of SentencePiece:
_NORMAL = 1
_UNKNOWN = 2
_CONTROL = 3


@keras.saving.register_keras_serializable(package="lmzoo")
class XlmRobertaTokenizer(ModelRulesTokenizer):
    """XLM-RoBERTa's tokenizer, a unigram SentencePiece model with fairseq's ids (Conneau et al., 2020).

    Only the model's own rules clean a text: letters keep their case and accents, quotes are unchanged, and "9," is a
    token if the model has it. The ids are the same as fairseq's: `<s>`, `<pad>`, `</s>` and `<unk>` come first, and
    `<mask>` last.

    Offsets are the same as in Hugging Face's tokenizer: a token that is only a space has the span of the next
    character.

    Args:
        model: bytes or path of a published `sentencepiece.bpe.model`, whose first tokens are `<unk>`, `<s>` and
            `</s>`, or of a SentencePiece model with fairseq's ids; None to read it with `load_assets`.
        **special: special tokens that differ from XLM-RoBERTa's, see `lmzoo.text.SpecialTokens`.

    Raises:
        ValueError: If `model` is not a complete SentencePiece model or lacks a special token.

    Example:

    ```python
    from lmzoo.text import XlmRobertaTokenizer

    tokenizer = XlmRobertaTokenizer.of_words(["Un", "café"], size=11)
    tokenizer.tokenize(["Un  café", ""])  # [[4, 5], []]
    ```
    """

    start_token = "<s>"
    pad_token = "<pad>"
    end_token = "</s>"
    unk_token = "<unk>"
    mask_token = "<mask>"
    roles = ("start_token", "pad_token", "end_token", "unk_token", "mask_token")
    empty_spaces = False

    @property
    def rules(self) -> PrecompiledRules:
        """Cleaning rules of the model."""
        self._require_vocabulary()
        return self._rules

    def _steps(self) -> list[Normalizer]:
        return []

    def _make_splitting_model(self, model: bytes) -> bytes:
        proto = read_model(model)
        self._rules = precompiled_rules(proto.normalizer_spec.precompiled_charsmap)
        proto.normalizer_spec.precompiled_charsmap = b""
        return proto.SerializeToString(deterministic=True)

    def _clean(self, text: str) -> str:
        return self._get_plain_rules().clean(text)

    def _align(self, text: str, begin: int) -> Aligned:
        return self._get_plain_rules().align(text, begin)

    def _get_plain_rules(self) -> PrecompiledRules:
        """Return the rules for text between added tokens, or empty rules if that text is normalized already."""
        return precompiled_rules(b"") if self._cutter.normalizes else self._rules

    @classmethod
    def of_words(cls, words: Sequence[str], size: int, **special: Unpack[SpecialTokens]) -> Self:
        """Create a tokenizer with a vocabulary of `size` tokens, for tests and toy models.

        The tokens are the special tokens, each of `words` with a leading space, and fillers.

        Raises:
            ValueError: If `size` is too small.
        """
        proto = read_model(super().of_words(words, size, **special).model)
        mask_token = cls(**special).mask_token
        pieces = sorted(proto.pieces, key=lambda piece: piece.piece == mask_token)  # moves the mask to the end
        del proto.pieces[:]
        proto.pieces.extend(pieces)
        model = proto.SerializeToString(deterministic=True)
        return cls(convert_from_fairseq_ids(model) or model, **special)

    def save_assets(self, directory: str | Path) -> None:
        """Write the model as `vocabulary.spm`, in the form of published models if the conversion is reversible."""
        published_model = convert_from_fairseq_ids(self.model)
        is_reversible = published_model is not None and convert_to_fairseq_ids(published_model) == self.model
        (Path(directory) / MODEL_FILE).write_bytes(
            published_model if published_model is not None and is_reversible else self.model
        )

    def _set_model(self, model: bytes, name: str) -> None:
        super()._set_model(convert_to_fairseq_ids(model) if _is_published(model) else model, name)


def _is_published(model: bytes) -> bool:
    """Return whether a model begins with the tokens of published models; false if it cannot be parsed."""
    try:
        return [piece.piece for piece in read_model(model).pieces[:3]] == _PUBLISHED_TOKENS
    except Exception:  # protobuf raises errors of several types
        return False


def convert_to_fairseq_ids(model: bytes) -> bytes:
    """Convert a published model, whose first tokens are `<unk>`, `<s>` and `</s>`, to fairseq's ids.

    Raises:
        ValueError: If the model begins with other tokens.
    """
    proto = read_model(model)
    first_tokens = [piece.piece for piece in proto.pieces[:3]]
    if first_tokens != _PUBLISHED_TOKENS:
        raise ValueError(f"the first tokens must be <unk>, <s> and </s>, got {', '.join(map(repr, first_tokens))}.")
    pieces = list(proto.pieces[3:])
    del proto.pieces[:]
    # As normal tokens, they also match full-width letters, as in transformers.
    for token in ("<s>", "<pad>", "</s>", "<unk>"):
        proto.pieces.add(piece=token, score=0.0, type=_UNKNOWN if token == "<unk>" else _NORMAL)
    proto.pieces.extend(pieces)
    proto.pieces.add(piece="<mask>", score=0.0, type=_NORMAL)
    return proto.SerializeToString(deterministic=True)


def convert_from_fairseq_ids(model: bytes) -> bytes | None:
    """Convert a model with fairseq's ids to its published form, or return None if it has other ids."""
    proto = read_model(model)
    tokens = [piece.piece for piece in proto.pieces]
    if tokens[:_NUM_FAIRSEQ_TOKENS] != ["<s>", "<pad>", "</s>", "<unk>"] or tokens[-1] != "<mask>":
        return None
    pieces = list(proto.pieces[_NUM_FAIRSEQ_TOKENS:-1])
    del proto.pieces[:]
    for token in _PUBLISHED_TOKENS:
        proto.pieces.add(piece=token, score=0.0, type=_UNKNOWN if token == "<unk>" else _CONTROL)
    proto.pieces.extend(pieces)
    return proto.SerializeToString(deterministic=True)
