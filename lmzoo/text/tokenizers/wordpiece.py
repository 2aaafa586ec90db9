"""WordPiece, BERT's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, Unpack

import keras
import numpy as np

from lmzoo.text.tokenizers.keras_hub_names import ClsAndSepNames
from lmzoo.text.tokenizers.rust_tokenizer import RustTokenizer
from lmzoo.text.tokenizers.token_lists import make_token_entries, read_lines, write_lines
from lmzoo.text.tokenizers.tokenizer import SpecialTokens

VOCABULARY_FILE = "vocabulary.txt"


@keras.saving.register_keras_serializable(package="lmzoo")
class WordPieceTokenizer(ClsAndSepNames, RustTokenizer):
    """Greedy longest-match WordPiece with BERT's text clean-up (Wu et al., 2016; Devlin et al., 2019).

    The ids are the same as in Hugging Face's BERT tokenizers: words of over 100 characters are unknown; control,
    format, surrogate and private-use characters are dropped; and special tokens are recognized in text and never split.

    Args:
        vocabulary: tokens in order of their ids, "" for an id without a token; None to read them with `load_assets`.
        lowercase: bool, whether to lowercase text.
        strip_accents: bool, whether to strip accents; None for the value of `lowercase`.
        split_on_cjk: bool, whether each Chinese character is a word (`tokenize_chinese_chars` in transformers).
        **special: special tokens that differ from BERT's, see `lmzoo.text.SpecialTokens`.

    Raises:
        ValueError: If a special token is missing or an entry is repeated.

    Example:

    ```python
    from lmzoo.text import WordPieceTokenizer

    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "run", "##ning", "!"])
    tokenizer.tokenize(["Running!"])  # [[5, 6, 7]]
    ```
    """

    pad_token = "[PAD]"
    unk_token = "[UNK]"
    start_token = "[CLS]"
    end_token = "[SEP]"
    mask_token = "[MASK]"
    needs_unknown = True
    has_gaps = True
    max_characters_per_word = 100
    continuation_prefix = "##"

    def __init__(
        self,
        vocabulary: Sequence[str] | None = None,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        split_on_cjk: bool = True,
        **special: Unpack[SpecialTokens],
    ) -> None:
        self._set_special_tokens(special)
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self.split_on_cjk = split_on_cjk
        if vocabulary is not None:
            self._set_vocabulary(vocabulary)

    def _set_vocabulary(self, vocabulary: Sequence[str]) -> None:
        # Imported here so that `import lmzoo` stays as light as Keras.
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

        self._set_tokens(vocabulary)
        backend = Tokenizer(
            models.WordPiece(
                make_token_entries(vocabulary),
                unk_token=self.unk_token,
                max_input_chars_per_word=self.max_characters_per_word,
                continuing_subword_prefix=self.continuation_prefix,
            )
        )
        backend.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=self.split_on_cjk,
            strip_accents=self.strip_accents,
            lowercase=self.lowercase,
        )
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self._set_backend(backend)

    @classmethod
    def list_first_tokens(cls, **special: Unpack[SpecialTokens]) -> list[str]:
        """Return the special tokens in the order of new vocabularies: first `special`, then the rest as in `roles`."""
        default_order = cls(**special).special_tokens
        passed_tokens = [token for token in special.values() if token in default_order]
        return [*dict.fromkeys([*passed_tokens, *default_order])]

    @classmethod
    def of_words(cls, words: Sequence[str], size: int, **special: Unpack[SpecialTokens]) -> Self:
        tokens = [*cls.list_first_tokens(**special), *words]
        return cls([*tokens, *(f"filler{i}" for i in range(size - len(tokens)))], **special)

    def text_of(self, token: str) -> str:
        """Return the text of a token, without a space, since tokens do not indicate whether a space precedes a word."""
        return token.removeprefix(self.continuation_prefix)

    def _detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of a sequence of ids, with spaces between words."""
        words: list[str] = []
        for token in (self._tokens[i] for i in ids):
            if token.startswith(self.continuation_prefix) and words:
                words[-1] += self.text_of(token)
            elif token:
                words.append(token)
        return " ".join(words)

    def word_starts(self) -> np.ndarray:
        return np.array([not token.startswith(self.continuation_prefix) for token in self._tokens])

    def save_assets(self, directory: str | Path) -> None:
        """Write `vocabulary.txt`, one token per line, into `directory`."""
        write_lines(Path(directory) / VOCABULARY_FILE, self.base_vocabulary)

    def load_assets(self, directory: str | Path) -> None:
        """Load the vocabulary from the file that `save_assets` writes."""
        self._set_vocabulary(read_lines(Path(directory) / VOCABULARY_FILE))

    def get_config(self) -> dict[str, Any]:
        config = {"lowercase": self.lowercase, "strip_accents": self.strip_accents, **super().get_config()}
        return config if self.split_on_cjk else {**config, "split_on_cjk": False}
