"""Words as tokens: what the tokenizers of ELMo share, and the one that has a vocabulary."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

import keras
import numpy as np

from lmzoo.text.tokenizers.tokenizer import SpecialTokens, Tokenizer, TokenSpan
from lmzoo.text.validate_text import clean_columns
from lmzoo.text.word_splitting import place_words, words_of

SENTENCE_START, SENTENCE_END, UNKNOWN = "<S>", "</S>", "<UNK>"
VOCABULARY_FILE = "vocabulary.txt"
NO_ENTRY = "!!!MAXTERMID"  # a line of published vocabularies that counts for nothing


class WordLevelTokenizer(Tokenizer):
    """A tokenizer whose tokens are words; a text is a string, or a list of the words that it was split into."""

    takes_words = True

    def tokenize(self, texts: Iterable[str | bytes | Sequence[str]]) -> list[list[Any]]:
        """Tokens of each text, as `token_to_id` has them.

        Args:
            texts: a list of strings, which `lmzoo.text.word_splitting.split_words` splits, or of lists of words, which
                are taken as they are.

        Returns:
            One list per text; empty for an empty text.

        Raises:
            TypeError: naming the text, and the word within, that is not a string.
        """
        cleaned, id_of = clean_columns({"texts": texts}, words=True)[0], self._lookup()
        return [list(map(id_of, words_of(text) if isinstance(text, str) else text)) for text in cleaned]

    def tokenize_with_offsets(self, texts: Iterable[str | bytes | Sequence[str]]) -> list[list[TokenSpan]]:
        """Words of each text with the characters that they came from.

        Args:
            texts: as for `tokenize`.

        Returns:
            One list of `TokenSpan(id, token, start, end)` per text; `id` is what `tokenize` returns, `token` the word.
            Offsets count characters of the string as it was passed; of a list of words, those of the words joined by
            spaces.
        """
        cleaned, id_of = clean_columns({"texts": texts}, words=True)[0], self._lookup()
        return [
            [TokenSpan(id_of(word), word, start, end) for word, start, end in place_words(text)] for text in cleaned
        ]

    def tokenize_words(self, words: Sequence[str]) -> list[list[Any]]:
        """See `Tokenizer.tokenize_words`: every word is a token."""
        return [[token] for token in self.tokenize([list(words)])[0]]

    def tokenize_words_with_offsets(self, words: Sequence[str]) -> list[list[TokenSpan]]:
        """See `Tokenizer.tokenize_words_with_offsets`."""
        return [
            [piece._replace(start=0, end=len(piece.token))] for piece in self.tokenize_with_offsets([list(words)])[0]
        ]

    @abstractmethod
    def _lookup(self) -> Callable[[str], Any]:
        """What says what stands for a word of a text."""

    @property
    def pad_id(self) -> int:
        """What stands where no word is: 0."""
        return 0

    def text_of(self, token: str) -> str:
        """See `Tokenizer.text_of`; words do not say whether a space stands before them."""
        return token

    def detokenize(self, ids: Iterable[Any]) -> str:
        """Words with a space between each two; padding is left out."""
        return " ".join(self.id_to_token(i) for i in ids if i != self.pad_id)


@keras.saving.register_keras_serializable(package="lmzoo")
class WordTokenizer(WordLevelTokenizer):
    """Words as ids of a vocabulary, for ELMo with cached token vectors or trained on words.

    The ids are one more than a word's line in the vocabulary: 0 is padding.

    Args:
        vocabulary: words in order of their lines, or None if `load_assets` will bring them. Whitespace around them is
            stripped, and "!!!MAXTERMID" left out. Of a word that is there twice, the later place counts.
        **special: other special tokens than these, see `lmzoo.text.SpecialTokens`.

    Raises:
        ValueError: if `<S>`, `</S>` or `<UNK>` is missing.

    Example:

    ```python
    from lmzoo.text import WordTokenizer

    tokenizer = WordTokenizer(["<S>", "</S>", "<UNK>", "the", "film"])
    tokenizer.tokenize(["the fine film", ["</S>"]])  # [[4, 3, 5], [2]]
    ```
    """

    start_token, end_token, unk_token = SENTENCE_START, SENTENCE_END, UNKNOWN
    roles = ("start_token", "end_token", "unk_token")

    def __init__(self, vocabulary: Sequence[str] | None = None, **special: Unpack[SpecialTokens]) -> None:
        self._set_special_tokens(special)
        if vocabulary is not None:
            self._set_tokens(vocabulary)

    def _set_tokens(self, tokens: Sequence[str]) -> None:
        """Unlike other tokenizers' this lets a word be there twice, as in the files of bilm-tf."""
        kept = [token for token in map(str.strip, tokens) if token != NO_ENTRY]
        ids = {token: line + 1 for line, token in enumerate(kept)}
        if missing := [token for token in self.special_tokens if token not in ids]:
            raise ValueError(f"The vocabulary lacks the special tokens {', '.join(missing)}.")
        self._ids, self._tokens = ids, kept

    @classmethod
    def of_words(cls, words: Sequence[str], size: int, **special: Unpack[SpecialTokens]) -> Self:
        """See `Tokenizer.of_words`; padding counts as one of `size`."""
        tokens = [*cls(**special).special_tokens, *words]
        return cls([*tokens, *(f"filler{i}" for i in range(size - 1 - len(tokens)))], **special)

    @property
    def vocabulary_size(self) -> int:
        """Number of ids: one more than words in the vocabulary, for padding."""
        return len(self._tokens) + 1

    def id_to_token(self, id: int) -> str:
        """Word of an id; "" for padding."""
        return self._tokens[id - 1] if id else ""

    def _lookup(self) -> Callable[[str], int]:
        unknown = self.token_to_id(self.unk_token)
        return lambda word: self._ids.get(word, unknown)

    def word_starts(self) -> np.ndarray:
        """See `Tokenizer.word_starts`: every token does."""
        return np.ones(self.vocabulary_size, bool)

    def features(self, ids: Any, mask: Any) -> dict[str, Any]:
        """The backbone's inputs, `token_ids` (b, t), 0 at padding, which is mask enough."""
        return {"token_ids": ids}

    def save_assets(self, directory: str | Path) -> None:
        """Writes `vocabulary.txt`, one word a line, into `directory`."""
        text = "".join(f"{token}\n" for token in self.vocabulary)
        (Path(directory) / VOCABULARY_FILE).write_text(text, encoding="utf-8", newline="\n")

    def load_assets(self, directory: str | Path) -> None:
        """Reads what `save_assets` wrote, or a file of bilm-tf's under that name."""
        text = (Path(directory) / VOCABULARY_FILE).read_bytes().decode("utf-8")
        self._set_tokens(text.removesuffix("\n").split("\n"))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments without the vocabulary, which `save_assets` writes."""
        return {**self._own_special_tokens()}
