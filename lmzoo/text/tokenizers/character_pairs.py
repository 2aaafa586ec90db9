"""Byte-pair encoding of characters, the tokenizer of OpenAI's first GPT."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack

import keras
import numpy as np

from lmzoo.text.tokenizers.bpe import MERGES_FILE, VOCABULARY_FILE, MergesTokenizer, split_merges, write_merges
from lmzoo.text.tokenizers.token_lists import make_token_entries, make_token_ids, read_ids
from lmzoo.text.tokenizers.tokenizer import SpecialTokens

if TYPE_CHECKING:
    import tokenizers

END_OF_WORD = "</w>"
_FILLER = "\u00a4"  # a character that words of toy vocabularies do not contain


@keras.saving.register_keras_serializable(package="lmzoo")
class CharacterPairTokenizer(MergesTokenizer):
    """Byte-pair encoding of the characters of words (Sennrich et al., 2016; Radford et al., 2018).

    The ids are the same as in Hugging Face's `OpenAIGPTTokenizer`: text is cleaned, lowercased, stripped of accents and
    split by BERT's rules. The last token of a word ends in `</w>`. A character that the vocabulary lacks becomes the
    unknown token.

    Args:
        vocabulary: dict from tokens to ids, or tokens in order of their ids, "" for an id without a token; None to read
            them with `load_assets`.
        merges: pairs of tokens to merge, highest priority first: "a b" or ("a", "b").
        **special: special tokens that differ from GPT's, which has only `<unk>`; see `lmzoo.text.SpecialTokens`.

    Raises:
        ValueError: If the vocabulary lacks a special token or repeats a token, or if a merge is malformed or names a
            token that the vocabulary lacks.

    Example:

    ```python
    from lmzoo.text import CharacterPairTokenizer

    tokenizer = CharacterPairTokenizer(["<unk>", "a", "f", "a</w>", "f</w>", "fa</w>"], ["f a</w>"])
    tokenizer.tokenize(["FA fáf !"])  # [[5, 2, 1, 4, 0]]
    ```
    """

    unk_token = "<unk>"
    roles = ("pad_token", "unk_token", "start_token", "end_token")
    needs_unknown = True

    def _make_backend(self) -> tokenizers.Tokenizer:
        # Imported here so that `import lmzoo` stays as light as Keras.
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

        backend = Tokenizer(
            models.BPE(
                make_token_entries(self.base_vocabulary),
                self._pairs,
                unk_token=self.unk_token,
                end_of_word_suffix=END_OF_WORD,
            )
        )
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return backend

    @classmethod
    def of_words(cls, words: Sequence[str], size: int, **special: Unpack[SpecialTokens]) -> Self:
        """Create a tokenizer with a vocabulary of `size` tokens, for tests and toy models.

        The tokens are the special tokens, the characters of `words`, the suffixes from which the words are merged, the
        words themselves, and fillers.

        Raises:
            ValueError: If `size` leaves no room for the words.
        """
        characters = sorted({character for word in words for character in word})
        tokens = [*cls(**special).special_tokens, *characters, *(character + END_OF_WORD for character in characters)]
        merges: dict[str, tuple[str, str]] = {}
        for word in words:  # every merge prepends one character
            for begin in range(len(word) - 2, -1, -1):
                suffix = word[begin + 1 :] + END_OF_WORD
                merges[word[begin] + suffix] = (word[begin], suffix)
        min_size = len(tokens) + len(merges)
        if size < min_size:
            raise ValueError(f"`size` is {size}, but the words and their letters need {min_size}.")
        fillers = (_FILLER * count for count in range(2, 2 + size - min_size))  # tokens that no merge produces
        return cls([*tokens, *merges, *fillers], merges.values(), **special)

    @property
    def merges(self) -> list[str]:
        """Pairs of tokens to merge, as strings "a b", highest priority first."""
        self._require_vocabulary()
        return [" ".join(pair) for pair in self._pairs]

    def text_of(self, token: str) -> str:
        """Return the text of a token, without a space: tokens mark the end of words, not their beginning."""
        return token.removesuffix(END_OF_WORD)

    def _detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of a sequence of ids, with spaces between words."""
        return "".join(spaced(self._tokens[i]) for i in ids).strip(" ")

    def word_starts(self) -> np.ndarray:
        """Return True for each of the V tokens, since tokens mark only the ends of words: bool (V,)."""
        return np.ones(self.vocabulary_size, bool)

    def save_assets(self, directory: str | Path) -> None:
        """Write `vocabulary.json` (ids by token) and `merges.txt` (one pair "a b" per line) into `directory`."""
        self._require_vocabulary()
        write_merges(Path(directory), make_token_ids(self.base_vocabulary), self.merges)

    def load_assets(self, directory: str | Path) -> None:
        """Load the vocabulary and the merges from the files that `save_assets` writes."""
        vocabulary = read_ids(Path(directory) / VOCABULARY_FILE)
        self._set_vocabulary(vocabulary, *split_merges(Path(directory) / MERGES_FILE))


def spaced(token: str) -> str:
    """Return the text of a token, with a space after it if it ends a word."""
    return token.removesuffix(END_OF_WORD) + " " * token.endswith(END_OF_WORD)
