"""Word-level tokenizers: their base class, and tokenizers with a vocabulary of words."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

import keras
import numpy as np

from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.text.tokenizers.bpe import END_OF_TEXT
from lmzoo.text.tokenizers.garbage_collection import pause_collection
from lmzoo.text.tokenizers.token_lists import check_is_vocabulary, read_lines, write_lines
from lmzoo.text.tokenizers.tokenizer import SpecialTokens, Token, Tokenizer, TokenSpan
from lmzoo.text.validate_text import clean_columns
from lmzoo.text.word_splitting import list_words, place_words

SENTENCE_START = "<S>"
SENTENCE_END = "</S>"
UNKNOWN = "<UNK>"
VOCABULARY_FILE = "vocabulary.txt"
NO_ENTRY = "!!!MAXTERMID"  # a line of published vocabularies that is not a word


class WordLevelTokenizer(Tokenizer):
    """Base class of tokenizers whose tokens are words; a text is a string or a list of words."""

    takes_words = True

    def tokenize(self, texts: Iterable[str | bytes | Sequence[str]]) -> list[list[Token]]:
        """Return the tokens of each text: ids, or the words if there is no vocabulary.

        A text is a list of words, or a string or UTF-8 bytes, which `lmzoo.text.word_splitting.split_words` splits.

        Returns:
            One list per text, empty for an empty text.

        Raises:
            TypeError: If `texts` is a single string, or an entry is not a text; the message names its position.
        """
        cleaned_texts = clean_columns({"texts": texts}, words=True)[0]
        id_of = self._make_lookup()
        return [list(map(id_of, list_words(text) if isinstance(text, str) else text)) for text in cleaned_texts]

    @pause_collection()
    def tokenize_with_offsets(self, texts: Iterable[str | bytes | Sequence[str]]) -> list[list[TokenSpan]]:
        """Return the words of each text with their offsets in it.

        Returns:
            One list of `TokenSpan(id, token, start, end)` per text; `token` is the word, and `id` is the token that
            `tokenize` returns for it. Offsets count characters of the string as it was passed, or of the words joined
            by spaces.
        """
        cleaned_texts = clean_columns({"texts": texts}, words=True)[0]
        id_of = self._make_lookup()
        return [
            [TokenSpan(id_of(word), word, start, end) for word, start, end in place_words(text)]
            for text in cleaned_texts
        ]

    def tokenize_words(self, words: Sequence[str]) -> list[list[Token]]:
        """Return one list per word, which holds only the token of the word."""
        return [[token] for token in self.tokenize([list(words)])[0]]

    def tokenize_words_with_offsets(self, words: Sequence[str]) -> list[list[TokenSpan]]:
        spans = self.tokenize_with_offsets([list(words)])[0]
        return [[span._replace(start=0, end=len(span.token))] for span in spans]

    @abstractmethod
    def _make_lookup(self) -> Callable[[str], Token]:
        """Return a function that maps a word to its token."""

    @property
    def pad_id(self) -> int:
        """Id of padding, 0."""
        return 0

    def text_of(self, token: str) -> str:
        """Return the word, without a space, since words do not indicate whether a space precedes them."""
        return token

    def _detokenize(self, ids: Sequence[Token]) -> str:
        """Return the words, joined by spaces."""
        return " ".join(map(self.id_to_token, ids))


@keras.saving.register_keras_serializable(package="lmzoo")
class WordTokenizer(WordLevelTokenizer):
    """A tokenizer with a vocabulary of words, for ELMo models that have cached token vectors or were trained on words.

    The id of a word is its index in the vocabulary plus one: 0 is padding.

    Args:
        vocabulary: words in order of their ids, or None to read them with `load_assets`. "!!!MAXTERMID" is omitted. A
            repeated word has the id of its last entry.
        lowercase: bool, whether a word that the vocabulary lacks is looked up in lowercase.
        **special: special tokens that differ from `<S>`, `</S>` and `<UNK>`, see `lmzoo.text.SpecialTokens`.

    Raises:
        ValueError: If `<S>`, `</S>` or `<UNK>` is missing.

    Example:

    ```python
    from lmzoo.text import WordTokenizer

    tokenizer = WordTokenizer(["<S>", "</S>", "<UNK>", "the", "film"])
    tokenizer.tokenize(["the fine film", ["</S>"]])  # [[4, 3, 5], [2]]
    ```
    """

    start_token = SENTENCE_START
    end_token = SENTENCE_END
    unk_token = UNKNOWN
    roles = ("start_token", "end_token", "unk_token")
    first_id: ClassVar[int] = 1  # id of the first word; an id below it is padding

    def __init__(
        self, vocabulary: Sequence[str] | None = None, lowercase: bool = False, **special: Unpack[SpecialTokens]
    ) -> None:
        self._set_special_tokens(special)
        self.lowercase = lowercase
        if vocabulary is not None:
            self._set_tokens(vocabulary)

    def _set_tokens(self, tokens: Sequence[str]) -> None:
        """Store the vocabulary, in which words may be repeated, as in bilm-tf's files.

        Raises:
            ValueError: If a special token is missing.
        """
        check_is_vocabulary(tokens)
        words = [token for token in tokens if token != NO_ENTRY]
        ids = {token: id for id, token in enumerate(words, self.first_id)}
        if missing_tokens := [token for token in self.special_tokens if token not in ids]:
            raise ValueError(f"The vocabulary lacks the special tokens {', '.join(missing_tokens)}.")
        self._ids = ids
        self._tokens = words

    @classmethod
    def of_words(cls, words: Sequence[str], size: int, **special: Unpack[SpecialTokens]) -> Self:
        """Create a tokenizer with `size` ids, for tests and toy models.

        The ids belong to padding, if it has an id, and to the special tokens, each of `words`, and fillers. If `size`
        is too small, there are more ids, and no fillers.
        """
        tokens = [*cls(**special).special_tokens, *words]
        return cls([*tokens, *(f"filler{i}" for i in range(size - cls.first_id - len(tokens)))], **special)

    @property
    def vocabulary_size(self) -> int:
        """Number of ids: words of the vocabulary, and padding if it has an id."""
        return len(self._tokens) + self.first_id

    def id_to_token(self, id: int) -> str:
        """Return the word with an id, or "" for padding."""
        self._check_id(id)
        return self._tokens[id - self.first_id] if id >= self.first_id else ""

    def _detokenize(self, ids: Sequence[Token]) -> str:
        """Return the words, joined by spaces, without padding."""
        return " ".join(self.id_to_token(i) for i in ids if i >= self.first_id)

    def _make_lookup(self) -> Callable[[str], int]:
        unknown_id = self.token_to_id(self.unk_token)
        ids = self._ids
        if self.lowercase:
            return lambda word: ids[word] if word in ids else ids.get(word.lower(), unknown_id)
        return lambda word: ids.get(word, unknown_id)

    def word_starts(self) -> np.ndarray:
        """Return True for each of the V tokens, since every token is a word: bool (V,)."""
        return np.ones(self.vocabulary_size, bool)

    def features(self, ids: Tensor, mask: Tensor) -> Features:
        """Return the backbone's inputs: `token_ids` (b, t), in which zeros mark padding."""
        return {"token_ids": ids}

    def save_assets(self, directory: str | Path) -> None:
        """Write `vocabulary.txt`, one word per line, into `directory`.

        Raises:
            ValueError: If a word begins or ends with whitespace, which `load_assets` strips.
        """
        if word := next((word for word in self.vocabulary if word != word.strip()), None):
            raise ValueError(
                f"{VOCABULARY_FILE} cannot hold {word!r}: whitespace around words is not read. Leave that word out of "
                "the vocabulary."
            )
        write_lines(Path(directory) / VOCABULARY_FILE, self.vocabulary)

    def load_assets(self, directory: str | Path) -> None:
        """Load the vocabulary from `vocabulary.txt`, which may also be a file of bilm-tf.

        Whitespace around words is stripped.
        """
        self._set_tokens([line.strip() for line in read_lines(Path(directory) / VOCABULARY_FILE)])

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | ({"lowercase": True} if self.lowercase else {})


@keras.saving.register_keras_serializable(package="lmzoo")
class TextWordTokenizer(WordTokenizer):
    """A tokenizer with a vocabulary of words, for left-to-right language models.

    Unlike with `WordTokenizer`, which is for ELMo, the id of a word is its index in the vocabulary, the model gets a
    padding mask, and texts begin and end with `<|endoftext|>`. Words that the vocabulary lacks become `<unk>`, which
    counts as a word in perplexity, so compare perplexities only between models with the same vocabulary.

    Args:
        vocabulary: words in order of their ids, or None to read them with `load_assets`.
        lowercase: bool, whether a word that the vocabulary lacks is looked up in lowercase.
        **special: special tokens that differ from `<|endoftext|>` and `<unk>`, see `lmzoo.text.SpecialTokens`.

    Raises:
        ValueError: If `<|endoftext|>` or `<unk>` is missing.

    Example:

    ```python
    from lmzoo.text import TextWordTokenizer

    tokenizer = TextWordTokenizer(["<|endoftext|>", "<unk>", "the", "film"])
    tokenizer.tokenize(["the fine film"])  # [[2, 1, 3]]
    ```
    """

    start_token = END_OF_TEXT
    end_token = END_OF_TEXT
    unk_token = "<unk>"
    first_id = 0

    def features(self, ids: Tensor, mask: Tensor) -> Features:
        """Return the backbone's inputs: `token_ids` and `padding_mask`, both (b, t)."""
        return {"token_ids": ids, "padding_mask": mask}
