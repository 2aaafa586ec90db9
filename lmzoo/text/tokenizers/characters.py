"""The character-level tokenizer of ELMo."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

import keras
import numpy as np

from lmzoo.common.arguments import is_integer, require
from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.text.tokenizers.tokenizer import SpecialTokens, Token
from lmzoo.text.tokenizers.word_level import SENTENCE_END, SENTENCE_START, WordLevelTokenizer

# Symbols of a word: 1 to 256 are UTF-8 bytes; 0 pads a sequence where there is no word.
FIRST_BYTE = 1
START_OF_SENTENCE = 257
END_OF_SENTENCE = 258
START_OF_WORD = 259
END_OF_WORD = 260
NO_BYTE = 261
NUM_SYMBOLS = 262
MARKERS = {SENTENCE_START: START_OF_SENTENCE, SENTENCE_END: END_OF_SENTENCE}


@keras.saving.register_keras_serializable(package="lmzoo")
class CharacterTokenizer(WordLevelTokenizer):
    """ELMo's character-level tokenizer, which represents words by their UTF-8 bytes (Peters et al., 2018).

    There is no vocabulary: the words themselves take the place of ids, and `as_array` returns the symbols of each:
    start of word, up to `max_characters - 2` bytes, end of word, and padding. The words `<S>` and `</S>` mark the
    ends of sentences; raw text never yields these words, since it is split around "<".

    Args:
        max_characters: int, number of symbols per word (W in shapes); longer words are truncated.

    Raises:
        ValueError: If `max_characters` leaves no room for a byte.

    Example:

    ```python
    from lmzoo.text import CharacterTokenizer

    tokenizer = CharacterTokenizer(max_characters=6)
    words = tokenizer.tokenize(["It's", ["New York"]])  # [["It", "'s"], ["New York"]]
    tokenizer.as_array(words[0], 2)  # [[259, 74, 117, 260, 261, 261], [259, 40, 116, 260, 261, 261]]
    ```
    """

    def __init__(self, max_characters: int = 50) -> None:
        allowed = "an integer of at least 3, a byte between two marks"
        require(is_integer(max_characters, 3), "max_characters", allowed, max_characters)
        self.max_characters = max_characters

    @classmethod
    def of_words(cls, words: Sequence[str], size: int, **special: Unpack[SpecialTokens]) -> Self:
        """Create a tokenizer; it needs neither `words` nor `size`, since it represents any word by 262 symbols."""
        return cls()

    @property
    def vocabulary(self) -> list[str]:
        """Empty list: any word can be represented."""
        return []

    @property
    def vocabulary_size(self) -> int:
        """Number of symbols, 262."""
        return NUM_SYMBOLS

    def token_to_id(self, token: Token) -> Token:
        """Return `token` unchanged: words take the place of ids."""
        return token

    def id_to_token(self, id: Token) -> str:
        """Return `id` unchanged: words take the place of ids."""
        return id

    def _check_ids(self, ids: Sequence[Token]) -> None:
        """Accept any words, which take the place of ids."""

    def _make_lookup(self) -> Callable[[str], str]:
        return str

    def word_starts(self) -> np.ndarray:
        """Raise an error: there is no vocabulary.

        Raises:
            ValueError: Always.
        """
        raise ValueError("A CharacterTokenizer has no vocabulary: each of its tokens is a word.")

    def as_array(self, tokens: Iterable[str], count: int) -> np.ndarray:
        """Return the symbols of `count` words: int32 (count, W).

        Lone surrogates, which UTF-8 cannot encode, are dropped.
        """
        index_by_word: dict[str, int] = {}
        word_indices = np.fromiter(
            (index_by_word.setdefault(word, len(index_by_word)) for word in tokens), "int64", count
        )  # (count,)
        max_bytes = self.max_characters - 2
        encoded_words = [word.encode("utf-8", "ignore")[:max_bytes] for word in index_by_word]  # n distinct words
        raw_bytes = np.frombuffer(b"".join(b"\0%b\0" % word.ljust(max_bytes, b"\0") for word in encoded_words), "uint8")
        symbols = raw_bytes.reshape(-1, self.max_characters).astype("int32") + FIRST_BYTE  # (n, W)
        end_positions = np.array([len(word) + 1 for word in encoded_words], "int64")[:, None]  # (n, 1)
        positions = np.arange(self.max_characters)  # (W,)
        symbols[positions > end_positions] = NO_BYTE
        symbols[positions == end_positions] = END_OF_WORD
        symbols[:, 0] = START_OF_WORD
        for marker, symbol in MARKERS.items():
            if marker in index_by_word:
                symbols[index_by_word[marker], 1:] = [symbol, END_OF_WORD, *[NO_BYTE] * (self.max_characters - 3)]
        return symbols[word_indices]

    def features(self, ids: Tensor, mask: Tensor) -> Features:
        """Return the backbone's inputs: `character_ids` (b, t, W), in which zeros mark padding."""
        return {"character_ids": ids}

    def save_assets(self, directory: str | Path) -> None:
        """Do nothing, since there is no vocabulary."""

    def load_assets(self, directory: str | Path) -> None:
        """Do nothing, since there is no vocabulary."""

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments."""
        return {"max_characters": self.max_characters}


def batch_to_ids(sentences: Iterable[Sequence[str]], max_characters: int = 50) -> np.ndarray:
    """Return the character symbols of tokenized sentences, like AllenNLP's function of this name.

    Args:
        sentences: B sentences, each a list of words.
        max_characters: int, number of symbols per word (W in shapes).

    Returns:
        int32 (B, T, W), where T is the number of words in the longest sentence; 0 at padding.

    Raises:
        TypeError: If a sentence is not a list or a word is not a string; the message names its position.
        ValueError: If `max_characters` is below 3.

    Example:

    ```python
    from lmzoo.text import batch_to_ids

    batch_to_ids([["The", "film"], ["Fine"]]).shape  # (2, 2, 50)
    ```
    """
    sentences = list(sentences)
    for i, sentence in enumerate(sentences):
        if not isinstance(sentence, (list, tuple)):
            raise TypeError(f"`sentences[{i}]` must be a list of words, got {sentence!r:.60}.")
        for j, word in enumerate(sentence):
            if not isinstance(word, str):
                raise TypeError(f"`sentences[{i}][{j}]` must be a string, got {word!r:.60} ({type(word).__name__}).")
    lengths = np.array([len(sentence) for sentence in sentences], "int64")  # (B,)
    is_word = np.arange(lengths.max(initial=0)) < lengths[:, None]  # (B, T)
    ids = np.zeros((*is_word.shape, max_characters), "int32")
    words = itertools.chain.from_iterable(sentences)
    ids[is_word] = CharacterTokenizer(max_characters).as_array(words, int(lengths.sum()))
    return ids
