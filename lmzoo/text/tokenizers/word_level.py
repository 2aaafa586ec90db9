"""Words as tokens: the base class of ELMo's tokenizers, and the one that has a vocabulary."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import ClassVar, Self, Unpack

import keras
import numpy as np

from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.text.tokenizers.bpe import END_OF_TEXT
from lmzoo.text.tokenizers.garbage_collection import paused_collection
from lmzoo.text.tokenizers.token_lists import check_is_vocabulary, read_lines, write_lines
from lmzoo.text.tokenizers.tokenizer import SpecialTokens, Token, Tokenizer, TokenSpan
from lmzoo.text.validate_text import clean_columns
from lmzoo.text.word_splitting import place_words, words_of

SENTENCE_START, SENTENCE_END, UNKNOWN = "<S>", "</S>", "<UNK>"
VOCABULARY_FILE = "vocabulary.txt"
NO_ENTRY = "!!!MAXTERMID"  # a line of published vocabularies that is not a word


class WordLevelTokenizer(Tokenizer):
    """A tokenizer whose tokens are words; a text is a string, or a list of the words that it was split into."""

    takes_words = True

    def tokenize(self, texts: Iterable[str | bytes | Sequence[str]]) -> list[list[Token]]:
        """Return tokens of each text, as `token_to_id` returns them.

        A text is a string, which `lmzoo.text.word_splitting.split_words` splits, or a list of words.

        Returns:
            One list per text; empty for an empty text.

        Raises:
            TypeError: naming the text, and the word in it, that is not a string.
        """
        cleaned, id_of = clean_columns({"texts": texts}, words=True)[0], self._lookup()
        return [list(map(id_of, words_of(text) if isinstance(text, str) else text)) for text in cleaned]

    @paused_collection()
    def tokenize_with_offsets(self, texts: Iterable[str | bytes | Sequence[str]]) -> list[list[TokenSpan]]:
        """Return words of each text with the characters that they came from.

        Returns:
            One list of `TokenSpan(id, token, start, end)` per text; `id` is what `tokenize` returns, `token` the word.
            Offsets count characters of the string as it was passed, or of the words joined by spaces.
        """
        cleaned, id_of = clean_columns({"texts": texts}, words=True)[0], self._lookup()
        return [
            [TokenSpan(id_of(word), word, start, end) for word, start, end in place_words(text)] for text in cleaned
        ]

    def tokenize_words(self, words: Sequence[str]) -> list[list[Token]]:
        """See `Tokenizer.tokenize_words`: every word is a token."""
        return [[token] for token in self.tokenize([list(words)])[0]]

    def tokenize_words_with_offsets(self, words: Sequence[str]) -> list[list[TokenSpan]]:
        spans = self.tokenize_with_offsets([list(words)])[0]
        return [[span._replace(start=0, end=len(span.token))] for span in spans]

    @abstractmethod
    def _lookup(self) -> Callable[[str], Token]:
        """Return a function that returns the token of a word of a text."""

    @property
    def pad_id(self) -> int:
        """0, which is padding."""
        return 0

    def text_of(self, token: str) -> str:
        """See `Tokenizer.text_of`; words do not say whether a space precedes them."""
        return token

    def _detokenize(self, ids: Sequence[Token]) -> str:
        """Return the words, separated by spaces."""
        return " ".join(map(self.id_to_token, ids))


@keras.saving.register_keras_serializable(package="lmzoo")
class WordTokenizer(WordLevelTokenizer):
    """A tokenizer whose tokens are the words given, for ELMo with cached token vectors or trained on words.

    The id of a word is its index in the vocabulary plus one: 0 is padding.

    Args:
        vocabulary: words in order of their ids, or None to read them with `load_assets`. Whitespace around them is
            stripped, and "!!!MAXTERMID" is left out. The last entry of a repeated word counts.
        **special: special tokens that differ from these, see `lmzoo.text.SpecialTokens`.

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
    first_id: ClassVar[int] = 1  # of the words; an id below it is padding

    def __init__(self, vocabulary: Sequence[str] | None = None, **special: Unpack[SpecialTokens]) -> None:
        self._set_special_tokens(special)
        if vocabulary is not None:
            self._set_tokens(vocabulary)

    def _set_tokens(self, tokens: Sequence[str]) -> None:
        """See `Tokenizer._set_tokens`; a word may be repeated here, as in the files of bilm-tf."""
        check_is_vocabulary(tokens)
        kept = [token for token in map(str.strip, tokens) if token != NO_ENTRY]
        ids = {token: id for id, token in enumerate(kept, self.first_id)}
        if missing := [token for token in self.special_tokens if token not in ids]:
            raise ValueError(f"The vocabulary lacks the special tokens {', '.join(missing)}.")
        self._ids, self._tokens = ids, kept

    @classmethod
    def of_words(cls, words: Sequence[str], size: int, **special: Unpack[SpecialTokens]) -> Self:
        """See `Tokenizer.of_words`; padding counts as one of `size`, if it has an id."""
        tokens = [*cls(**special).special_tokens, *words]
        return cls([*tokens, *(f"filler{i}" for i in range(size - cls.first_id - len(tokens)))], **special)

    @property
    def vocabulary_size(self) -> int:
        """Number of ids: the words of the vocabulary, and padding if it has an id."""
        return len(self._tokens) + self.first_id

    def id_to_token(self, id: int) -> str:
        """Return the word of an id; "" for padding. See `Tokenizer.id_to_token`."""
        self._check_id(id)
        return self._tokens[id - self.first_id] if id >= self.first_id else ""

    def _detokenize(self, ids: Sequence[Token]) -> str:
        """Return the words, separated by spaces, without padding."""
        return " ".join(self.id_to_token(i) for i in ids if i >= self.first_id)

    def _lookup(self) -> Callable[[str], int]:
        unknown = self.token_to_id(self.unk_token)
        return lambda word: self._ids.get(word, unknown)

    def word_starts(self) -> np.ndarray:
        """See `Tokenizer.word_starts`: true for every token."""
        return np.ones(self.vocabulary_size, bool)

    def features(self, ids: Tensor, mask: Tensor) -> Features:
        """Return the backbone's inputs: `token_ids` (b, t), whose zeros also serve as the padding mask."""
        return {"token_ids": ids}

    def save_assets(self, directory: str | Path) -> None:
        """Write `vocabulary.txt`, one word a line, into `directory`."""
        write_lines(Path(directory) / VOCABULARY_FILE, self.vocabulary)

    def load_assets(self, directory: str | Path) -> None:
        """Read what `save_assets` wrote, or a vocabulary of bilm-tf with that name."""
        self._set_tokens(read_lines(Path(directory) / VOCABULARY_FILE))


@keras.saving.register_keras_serializable(package="lmzoo")
class TextWordTokenizer(WordTokenizer):
    """A tokenizer whose tokens are the words of texts, for language models that are not Transformers.

    It differs from `WordTokenizer`, which reads ELMo's sentences: the id of a word is its index in the vocabulary, the
    model gets a padding mask, and texts begin and end with `<|endoftext|>`. Words that the vocabulary lacks become
    `<unk>`, which counts as a word in a perplexity: models can only be compared if they have the same vocabulary.

    Args:
        vocabulary: words in order of their ids, or None to read them with `load_assets`.
        **special: special tokens that differ from these, see `lmzoo.text.SpecialTokens`.

    Raises:
        ValueError: if `<|endoftext|>` or `<unk>` is missing.

    Example:

    ```python
    from lmzoo.text import TextWordTokenizer

    tokenizer = TextWordTokenizer(["<|endoftext|>", "<unk>", "the", "film"])
    tokenizer.tokenize(["the fine film"])  # [[2, 1, 3]]
    ```
    """

    start_token, end_token, unk_token = END_OF_TEXT, END_OF_TEXT, "<unk>"
    first_id = 0

    def features(self, ids: Tensor, mask: Tensor) -> Features:
        """Return the backbone's inputs: `token_ids` and `padding_mask`, both (b, t)."""
        return {"token_ids": ids, "padding_mask": mask}
