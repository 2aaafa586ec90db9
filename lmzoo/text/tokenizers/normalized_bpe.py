"""Byte-level BPE of normalized texts, the tokenizer of OLMo and of encoders after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from lmzoo.text.tokenizers.added_tokens import AddedToken, special_token
from lmzoo.text.tokenizers.bpe import BytePairTokenizer

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer


@keras.saving.register_keras_serializable(package="lmzoo")
class NormalizedBytePairTokenizer(BytePairTokenizer):
    """Byte-level byte-pair encoding of texts in Unicode's normalization form C, with the special tokens of BERT.

    In this form, "e" and the accent behind it are one character, "é". `detokenize` returns normalized texts. The ids
    are those of Hugging Face's tokenizers whose `tokenizer.json` says the same, also for a literal `[PAD]`; `[MASK]`
    absorbs the whitespace before it. Offsets are those of `BytePairTokenizer`, in the text before normalization: of
    characters that become one, the first counts, as in Hugging Face's `tokenizers`.

    Args:
        vocabulary: token -> id, or tokens in order of their ids, "" for an id without a token; None to read them with
            `load_assets`.
        merges: pairs of tokens to join, most important first: "a b" or ("a", "b").
        add_prefix_space: whether to put a space in front of a text, so that its first word is as any other word.
        **special: special tokens that differ from these, see `lmzoo.text.SpecialTokens`.

    Raises:
        ValueError: as for `BytePairTokenizer`.

    Example:

    ```python
    from lmzoo.text import NormalizedBytePairTokenizer

    tokenizer = NormalizedBytePairTokenizer.of_words(["café"], size=280)
    tokenizer.tokenize_with_offsets([" cafe\u0301"])  # [[TokenSpan(id=..., token='ĠcafÃ©', start=1, end=5)]]
    ```
    """

    start_token, pad_token, end_token, unk_token, mask_token = "[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"
    roles = ("unk_token", "start_token", "end_token", "pad_token", "mask_token")

    def _default_added_token(self, token: str) -> AddedToken:
        return special_token(token, lstrip=token == self.mask_token)

    @classmethod
    def normalizer(cls) -> Normalizer:
        from tokenizers import normalizers

        return normalizers.NFC()
