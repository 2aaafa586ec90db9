"""XLNet's SentencePiece tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import keras

from lmzoo.text.tokenizers.sentencepiece import SentencePieceTokenizer
from lmzoo.text.tokenizers.tokenizer import SpecialTokens


@keras.saving.register_keras_serializable(package="lmzoo")
class XlnetTokenizer(SentencePieceTokenizer):
    """XLNet's tokenizer (Yang et al., 2019): like ALBERT's, with other special tokens and no default lowercasing.

    Args:
        model: bytes or path of a SentencePiece model; None to read it with `load_assets`.
        lowercase: bool, whether to lowercase text.
        keep_accents: bool, whether to skip compatibility decomposition and the stripping of combining marks.
        **special: special tokens that differ from XLNet's, see `lmzoo.text.SpecialTokens`.

    Raises:
        ValueError: If `model` is not a complete SentencePiece model or lacks a special token.

    Example:

    ```python
    from lmzoo.text import XlnetTokenizer

    tokenizer = XlnetTokenizer.of_words(["The", "film"], size=12)
    tokenizer.tokenize(["The  film", ""])  # [[9, 10], []]
    ```
    """

    start_token = "<cls>"
    end_token = "<sep>"
    mask_token = "<mask>"
    other_tokens = ("<s>", "</s>", "<eod>", "<eop>")

    def __init__(
        self,
        model: bytes | str | Path | None = None,
        lowercase: bool = False,
        keep_accents: bool = False,
        **special: Unpack[SpecialTokens],
    ) -> None:
        super().__init__(model, lowercase, keep_accents, **special)
