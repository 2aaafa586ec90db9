"""Byte-level BPE of normalized texts, the tokenizer of OLMo and ModernBERT."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from lmzoo.text.tokenizers.added_tokens import AddedToken, special_token
from lmzoo.text.tokenizers.bpe import BytePairTokenizer

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer


@keras.saving.register_keras_serializable(package="lmzoo")
class NormalizedBytePairTokenizer(BytePairTokenizer):
    """Byte-level byte-pair encoding of texts in Unicode's normalization form C (NFC), with BERT's special tokens.

    NFC composes "e" and the accent after it into one character, "é". `detokenize` returns normalized texts. The ids are
    the same as in Hugging Face's `tokenizers` with an equivalent `tokenizer.json`, even for a literal `[PAD]`. `[MASK]`
    absorbs the whitespace before it.

    Offsets follow the rules of `BytePairTokenizer`, and count characters before normalization. A composed character
    has the offsets of the first of its parts, as in Hugging Face's `tokenizers`.

    Args:
        vocabulary: dict from tokens to ids, or tokens in order of their ids, "" for an id without a token; None to read
            them with `load_assets`.
        merges: pairs of tokens to merge, highest priority first: "a b" or ("a", "b").
        add_prefix_space: bool, whether to put a space in front of a text, so that its first word is tokenized like any
            other.
        **special: special tokens that differ from BERT's, see `lmzoo.text.SpecialTokens`.

    Raises:
        ValueError: If the vocabulary lacks a special token or one of the 256 byte tokens, or repeats a token, or if a
            merge is malformed or names a token that the vocabulary lacks.

    Example:

    ```python
    from lmzoo.text import NormalizedBytePairTokenizer

    tokenizer = NormalizedBytePairTokenizer.of_words(["café"], size=280)
    tokenizer.tokenize_with_offsets([" cafe\u0301"])  # [[TokenSpan(id=..., token='ĠcafÃ©', start=1, end=5)]]
    ```
    """

    start_token, pad_token, end_token, unk_token, mask_token = "[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"
    roles = ("unk_token", "start_token", "end_token", "pad_token", "mask_token")

    def _make_default_added_token(self, token: str) -> AddedToken:
        return special_token(token, lstrip=token == self.mask_token)

    @classmethod
    def normalizer(cls) -> Normalizer:
        from tokenizers import normalizers

        return normalizers.NFC()
