"""What every tokenizer offers, and the part that those on Hugging Face's `tokenizers` share."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from lmzoo.text.validate_text import clean_texts


class Piece(NamedTuple):
    """A token with the characters that it came from: `text[start:end]`."""

    id: int
    token: str
    start: int
    end: int


class Tokenizer(ABC):
    """From strings to tokens and back; the base of the families' tokenizers.

    A subclass calls `_set_tokens` once it knows its vocabulary, from its constructor or from `load_assets`, and takes
    what `get_config` returns as its constructor's arguments.
    """

    special_tokens: ClassVar[tuple[str, ...]] = ()
    pad_token: ClassVar[str | None] = None
    unk_token: ClassVar[str | None] = None
    mask_token: ClassVar[str | None] = None
    takes_words: ClassVar[bool] = False  # whether a text may also be a list of words
    space_of_words: ClassVar[str] = ""  # what stands before a word that is tokenised on its own

    _tokens: Sequence[str] = ()

    def _set_tokens(self, tokens: Sequence[str]) -> None:
        """Keeps the vocabulary.

        Raises:
            ValueError: if a special token is missing or an entry is repeated.
        """
        ids = {token: index for index, token in enumerate(tokens)}
        if len(ids) != len(tokens):
            repeated = next(token for index, token in enumerate(tokens) if ids[token] != index)
            raise ValueError(f"The vocabulary holds {repeated!r} twice.")
        missing = [token for token in self.special_tokens if token not in ids]
        if missing:
            raise ValueError(f"The vocabulary lacks the special tokens {', '.join(missing)}.")
        self._ids, self._tokens = ids, list(tokens)

    def _require_vocabulary(self) -> None:
        if not self._tokens:
            raise ValueError("The tokenizer has no vocabulary yet: pass `vocabulary` or call `load_assets`.")

    @classmethod
    @abstractmethod
    def of_words(cls, words: Sequence[str], size: int) -> Self:
        """A tokenizer of `size` tokens, among them `words`, whole: for tests and toy models."""

    @property
    def vocabulary(self) -> list[str]:
        """Tokens in order of their ids."""
        self._require_vocabulary()
        return list(self._tokens)

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens."""
        return len(self._tokens)

    @property
    def pad_id(self) -> int:
        """Id of the padding token."""
        return self.token_to_id(self.pad_token)

    @property
    def mask_id(self) -> int:
        """Id of the mask token."""
        return self.token_to_id(self.mask_token)

    def token_to_id(self, token: str | None) -> int:
        """Id of a token.

        Raises:
            ValueError: if the vocabulary lacks it.
        """
        self._require_vocabulary()
        if token not in self._ids:
            raise ValueError(f"The vocabulary has no token {token!r}.")
        return self._ids[token]

    def id_to_token(self, id: int) -> str:
        """Token of an id."""
        return self._tokens[id]

    @abstractmethod
    def tokenize(self, texts: Iterable[str | bytes]) -> list[list[Any]]:
        """Token ids of each text, without special tokens around them.

        Args:
            texts: a list of strings; see `lmzoo.text.validate_text.clean_texts` for what else is taken.

        Returns:
            One list of ids per text; empty for an empty text.
        """

    @abstractmethod
    def tokenize_with_offsets(self, texts: Iterable[str | bytes]) -> list[list[Piece]]:
        """Tokens of each text with the characters of the original text that they came from.

        Args:
            texts: a list of strings.

        Returns:
            One list of `Piece(id, token, start, end)` per text. Offsets count characters (code points) of the string as
            it was passed, whatever normalisation did to it.
        """

    def tokenize_with_spans(self, texts: Iterable[str | bytes]) -> tuple[list[list[Any]], np.ndarray]:
        """`tokenize_with_offsets` in less time, without an object for each token.

        Args:
            texts: a list of strings.

        Returns:
            One list of ids per text; and int64 (total, 2), start and end of all tokens of all texts.
        """
        rows = self.tokenize_with_offsets(texts)
        spans = [piece[2:] for row in rows for piece in row]
        return [[piece.id for piece in row] for row in rows], np.array(spans, "int64").reshape(-1, 2)

    def tokenize_words(self, words: Sequence[str]) -> list[list[Any]]:
        """Tokens of words, each as it stands after a space: of every word at least one.

        Args:
            words: strings, each a word.

        Returns:
            One list of ids per word; a word of which nothing is left is the unknown token.
        """
        unique, space = list(dict.fromkeys(words)), self.space_of_words
        nothing, found = [self.token_to_id(self.unk_token)], self.tokenize([space + word for word in unique])
        ids = {word: tokens or nothing for word, tokens in zip(unique, found, strict=True)}
        return [ids[word] for word in words]

    def tokenize_words_with_offsets(self, words: Sequence[str]) -> list[list[Piece]]:
        """As `tokenize_words`, with the characters of its word that each token came from."""
        unique, space = list(dict.fromkeys(words)), self.space_of_words
        found = self.tokenize_with_offsets([space + word for word in unique])
        pieces = {
            word: [p._replace(start=max(p.start - len(space), 0), end=p.end - len(space)) for p in tokens]
            or [Piece(self.token_to_id(self.unk_token), str(self.unk_token), 0, len(word))]
            for word, tokens in zip(unique, found, strict=True)
        }
        return [pieces[word] for word in words]

    @abstractmethod
    def text_of(self, token: str) -> str:
        """What a token stands for inside a text, a space in front included if it begins a word and says so."""

    def detokenize(self, ids: Iterable[int]) -> str:
        """Text of a sequence of ids."""
        return "".join(self.text_of(self._tokens[i]) for i in ids).strip()

    @abstractmethod
    def word_starts(self) -> np.ndarray:
        """Bool (V,): whether a token begins a word rather than continues one."""

    # === Features of packed rows ===

    def as_array(self, tokens: Iterable[Any], count: int) -> np.ndarray:
        """`count` tokens, as `tokenize` returns them, in the form that models take: int32 (count,)."""
        return np.fromiter(tokens, "int32", count=count)

    def features(self, ids: Any, mask: Any) -> dict[str, Any]:
        """The backbone's inputs, apart from segments: numpy arrays or TensorFlow tensors.

        Args:
            ids: int32 (b, t), padded token ids.
            mask: int32 (b, t), 1 at real tokens.
        """
        return {"token_ids": ids, "padding_mask": mask}

    # === Files ===

    @abstractmethod
    def save_assets(self, directory: str | Path) -> None:
        """Writes the vocabulary's files into `directory`."""

    @abstractmethod
    def load_assets(self, directory: str | Path) -> None:
        """Reads what `save_assets` wrote."""

    @abstractmethod
    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments without the vocabulary, which `save_assets` writes."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Builds a tokenizer without a vocabulary."""
        return cls(**config)


class RustTokenizer(Tokenizer):
    """A tokenizer whose work is done by a `tokenizers.Tokenizer`, which the subclass makes."""

    _backend: Any

    @property
    def backend(self) -> Any:
        """The `tokenizers.Tokenizer` that does the work."""
        self._require_vocabulary()
        return self._backend

    def tokenize(self, texts: Iterable[str | bytes]) -> list[list[int]]:
        """See `Tokenizer.tokenize`."""
        encodings = self.backend.encode_batch_fast(clean_texts(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def tokenize_with_offsets(self, texts: Iterable[str | bytes]) -> list[list[Piece]]:
        """See `Tokenizer.tokenize_with_offsets`.

        Example:

        ```python
        from lmzoo.text import WordPieceTokenizer

        tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "cafe", "!"])
        tokenizer.tokenize_with_offsets(["Un café!"])[0][1]  # Piece(id=5, token='cafe', start=3, end=7)
        ```
        """
        return [
            [Piece(i, t, *o) for i, t, o in zip(encoding.ids, encoding.tokens, encoding.offsets, strict=True)]
            for encoding in self.backend.encode_batch(clean_texts(texts), add_special_tokens=False)
        ]

    def tokenize_with_spans(self, texts: Iterable[str | bytes]) -> tuple[list[list[int]], np.ndarray]:
        """See `Tokenizer.tokenize_with_spans`."""
        encodings = self.backend.encode_batch(clean_texts(texts), add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        pairs = itertools.chain.from_iterable(encoding.offsets for encoding in encodings)
        spans = np.fromiter(itertools.chain.from_iterable(pairs), "int64", 2 * sum(map(len, ids)))
        return ids, spans.reshape(-1, 2)


def in_order(ids: Any) -> list[str]:
    """The tokens of a token -> id mapping in the order of their ids.

    Raises:
        ValueError: if it is no such mapping, two tokens share an id, or an id is left out.
    """
    numbers = ids.values() if isinstance(ids, Mapping) else (None,)
    if not all(isinstance(i, Integral) and not isinstance(i, bool) for i in numbers):
        raise ValueError("The vocabulary must be an object with an id for each token.")
    tokens = sorted(ids, key=ids.__getitem__)
    for place, token in enumerate(tokens):
        found, last = ids[token], len(ids) - 1
        if 0 <= found < place:
            raise ValueError(f"The id {found} belongs to two tokens, {tokens[place - 1]!r} and {token!r}.")
        if found != place:
            gap = f" and no token has {place}" if found > place else ""
            raise ValueError(f"The ids must be 0 to {last}, with none left out, but {token!r} has {found}{gap}.")
    return tokens
