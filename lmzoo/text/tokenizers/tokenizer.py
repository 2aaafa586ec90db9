"""The base class of all tokenizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, TypedDict, Unpack, overload

import numpy as np

from lmzoo.common.arguments import is_integer, require
from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.text.tokenizers.added_tokens import AddedToken, read_added_tokens, special_token
from lmzoo.text.tokenizers.keras_hub_names import KerasHubTokenizerNames
from lmzoo.text.tokenizers.token_lists import check_is_vocabulary, to_list
from lmzoo.text.validate_text import is_column

# A token as `tokenize` returns it: its id, or the word itself if there is no vocabulary (`CharacterTokenizer`).
Token: TypeAlias = Any


class TokenSpan(NamedTuple):
    """A token with the characters that it came from: `text[start:end]`.

    Example: see `BytePairTokenizer`.
    """

    id: int
    token: str
    start: int
    end: int


class SpecialTokens(TypedDict, total=False):
    """The special tokens of a tokenizer that differ from those of its class; None if it has no such token.

    `pad_token` is padding, `unk_token` stands for what the vocabulary lacks, `start_token` and `end_token` for the
    beginning of a sequence and the end of a text, `mask_token` for a token to predict. `other_tokens` are not split
    either. `added_tokens` say how tokens are found in texts (see `lmzoo.text.AddedToken`); those that the vocabulary
    lacks come after it.

    Example:

    ```python
    from lmzoo.text import SpecialTokens, WordPieceTokenizer

    words = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "film"]
    own = SpecialTokens(
        pad_token="<pad>", unk_token="<unk>", start_token="<s>", end_token="</s>", mask_token="<mask>"
    )
    WordPieceTokenizer(words, **own).tokenize(["film"])  # [[5]]
    ```
    """

    pad_token: str | None
    unk_token: str | None
    start_token: str | None
    end_token: str | None
    mask_token: str | None
    other_tokens: Sequence[str]
    added_tokens: Sequence[str | AddedToken | Mapping[str, Any]]


class Tokenizer(KerasHubTokenizerNames, ABC):
    """The base class of tokenizers, which turn strings into tokens and back.

    A subclass names its default special tokens. Its constructor accepts what `get_config` returns, calls
    `_set_special_tokens` with the special tokens that it was given, and `_set_tokens` if it was given a vocabulary;
    otherwise `load_assets` calls the latter.

    Attributes:
        special_tokens: the tokens that are recognized in text and never split, in the order of `roles`, which is their
            order in new vocabularies.
        added_tokens: tokens that were added, or are found in texts in another way than by default.

    Example: see `WordPieceTokenizer`.
    """

    pad_token: str | None = None
    unk_token: str | None = None
    start_token: str | None = None
    end_token: str | None = None
    mask_token: str | None = None
    other_tokens: tuple[str, ...] = ()
    added_tokens: tuple[AddedToken, ...] = ()
    special_tokens: tuple[str, ...] = ()
    roles: ClassVar[tuple[str, ...]] = ("pad_token", "unk_token", "start_token", "end_token", "mask_token")
    vocabulary_argument: ClassVar[str] = "vocabulary"  # of the constructor
    needs_unknown: ClassVar[bool] = False  # whether an unknown token is required
    has_gaps: ClassVar[bool] = False  # whether "" in a vocabulary is an id without a token
    takes_added_tokens: ClassVar[bool] = False
    takes_words: ClassVar[bool] = False  # whether a text may also be a list of words
    space_of_words: ClassVar[str] = ""  # put before a word that is tokenized on its own

    _tokens: Sequence[str] = ()
    _base_size = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "special_tokens" not in vars(cls):
            cls.special_tokens = _listed(cls)

    def _set_special_tokens(self, tokens: SpecialTokens) -> None:
        """Set the special tokens that differ from those of the class.

        Raises:
            TypeError: for an unknown argument.
            ValueError: for a token that is not a string; if a required unknown token is missing.
        """
        if unknown := tokens.keys() - {*self.roles, "other_tokens", "added_tokens"}:
            raise TypeError(f"A {type(self).__name__} takes no argument `{min(unknown)}`.")
        if not tokens:
            return
        for role, token in tokens.items():
            if role in self.roles and not isinstance(token, str | None):
                raise ValueError(f"`{role}` must be a string, got {token!r:.60}.")
            setattr(self, role, token)
        self.other_tokens = tuple(self.other_tokens)
        self.added_tokens = tuple(read_added_tokens(self.added_tokens))
        if self.added_tokens:
            self._check_takes_added_tokens()
        if self.needs_unknown and self.unk_token is None:
            raise ValueError(f"A {type(self).__name__} needs an `unk_token`.")
        self.special_tokens = _listed(self)

    def _set_tokens(self, tokens: Sequence[str]) -> None:
        """Store the vocabulary.

        Raises:
            ValueError: if a special token is missing or an entry is repeated.
        """
        check_is_vocabulary(tokens)
        numbered = [(index, token) for index, token in enumerate(tokens) if token or not self.has_gaps]
        ids = {token: index for index, token in numbered}
        appended = [token.content for token in self.added_tokens if token.content not in ids]
        if len(ids) != len(numbered):
            repeated = next(token for index, token in numbered if ids[token] != index)
            raise ValueError(f"The vocabulary holds {repeated!r} twice.")
        ids |= {token: index for index, token in enumerate(appended, len(tokens))}
        missing = [token for token in self.special_tokens if token not in ids]
        if missing:
            raise ValueError(f"The vocabulary lacks the special tokens {', '.join(missing)}.")
        self._ids = ids
        self._tokens = [*tokens, *appended]
        self._base_size = len(tokens)

    def _require_vocabulary(self) -> None:
        if not self._tokens:
            argument = self.vocabulary_argument
            raise ValueError(f"The tokenizer has no vocabulary yet: pass `{argument}` or call `load_assets`.")

    @classmethod
    @abstractmethod
    def of_words(cls, words: Sequence[str], size: int, **special: Unpack[SpecialTokens]) -> Self:
        """Return a tokenizer with `size` tokens, each of `words` among them, for tests and toy models."""

    @property
    def vocabulary(self) -> list[str]:
        """Tokens in order of their ids, with those that were added."""
        self._require_vocabulary()
        return list(self._tokens)

    @property
    def base_vocabulary(self) -> list[str]:
        """The vocabulary without tokens that were added to it: those into which words are split."""
        self._require_vocabulary()
        return list(self._tokens[: self._base_size])

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens."""
        return len(self._tokens)

    @property
    def pad_id(self) -> int:
        """Id of the padding token; 0 if there is none, since padding is masked whatever its id."""
        return 0 if self.pad_token is None else self.token_to_id(self.pad_token)

    @property
    def target_side(self) -> Tokenizer:
        """The tokenizer of the target that a model writes from a source; by default the same."""
        return self

    @property
    def mask_id(self) -> int:
        """Id of the mask token.

        Raises:
            ValueError: if there is none.
        """
        self.check_has_mask()
        return self.token_to_id(self.mask_token)

    def check_has_mask(self) -> None:
        """Check that there is a mask token, which tasks that fill masks need.

        Raises:
            ValueError: if there is none.
        """
        if self.mask_token is None:
            raise ValueError(f"This {type(self).__name__} has no mask token: it can neither mask nor fill masks.")

    def token_to_id(self, token: str | None) -> int:
        """Return the id of a token.

        Raises:
            ValueError: if the vocabulary lacks it.
        """
        self._require_vocabulary()
        if token not in self._ids:
            raise ValueError(f"The vocabulary has no token {token!r}.")
        return self._ids[token]

    def id_to_token(self, id: int) -> str:
        """Return the token of an id.

        Raises:
            ValueError: if no token has it.
        """
        self._check_id(id)
        return self._tokens[id]

    def _check_id(self, id: object) -> None:
        self._require_vocabulary()
        last = self.vocabulary_size - 1
        require(is_integer(id, 0, last), "id", f"an integer from 0 to {last}", id)

    # === Added tokens ===

    @property
    def text_tokens(self) -> tuple[AddedToken, ...]:
        """The tokens that are found in texts before these are split into words."""
        special = filter(None, map(self._found_by_default, self.special_tokens))
        return tuple({token.content: token for token in (*special, *self.added_tokens)}.values())

    def _found_by_default(self, token: str) -> AddedToken | None:
        """Return how a special token is found in texts, or None if it is text there."""
        return special_token(token)

    def add_tokens(self, tokens: Sequence[str | AddedToken], special_tokens: bool = False) -> int:
        """Add tokens, as `add_tokens` of transformers does; or change how tokens are found in texts.

        New tokens get the ids after the vocabulary's. If a model has no embeddings for them,
        `Backbone.resize_token_embeddings` makes them.

        Args:
            tokens: tokens, or strings for tokens without flags (see `lmzoo.text.AddedToken`).
            special_tokens: whether strings are special tokens, which are found as they are written and never masked.

        Returns:
            How many of the tokens are new.

        Raises:
            ValueError: for an entry that is no token; if this kind of tokenizer takes no tokens.
        """
        self._check_takes_added_tokens()
        base = self.base_vocabulary
        size = self.vocabulary_size
        self.added_tokens = tuple(read_added_tokens([*self.added_tokens, *read_added_tokens(tokens, special_tokens)]))
        self.special_tokens = _listed(self)
        self._set_tokens(base)
        self._set_text_tokens()
        return self.vocabulary_size - size

    def _check_takes_added_tokens(self) -> None:
        if not self.takes_added_tokens:
            raise ValueError(f"A {type(self).__name__} takes no added tokens.")

    def _set_text_tokens(self) -> None:
        """Prepare finding `text_tokens` in texts, for tokenizers that take added tokens."""
        raise NotImplementedError

    # === Text to tokens ===

    @abstractmethod
    def tokenize(self, texts: Iterable[str | bytes]) -> list[list[Token]]:
        """Return the token ids of each text, without special tokens around them.

        Args:
            texts: a list of strings; see `lmzoo.text.validate_text.clean_texts` for what else is accepted.

        Returns:
            One list of ids per text; empty for an empty text.
        """

    @abstractmethod
    def tokenize_with_offsets(self, texts: Iterable[str | bytes]) -> list[list[TokenSpan]]:
        """Return tokens of each text with the characters of the original text that they came from.

        Returns:
            One list of `TokenSpan(id, token, start, end)` per text. Offsets count characters (code points) of the
            string as it was passed, before any normalization.
        """

    def tokenize_with_spans(self, texts: Iterable[str | bytes]) -> tuple[list[list[Token]], np.ndarray]:
        """As `tokenize_with_offsets`, but faster: no object is made for each token.

        Returns:
            One list of ids per text, and int64 (total, 2), the start and end of all tokens of all texts.
        """
        found = self.tokenize_with_offsets(texts)
        offsets = [span[2:] for spans in found for span in spans]
        return [[span.id for span in spans] for spans in found], np.array(offsets, "int64").reshape(-1, 2)

    def tokenize_words(self, words: Sequence[str]) -> list[list[Token]]:
        """Return the token ids of each word as it is tokenized after a space; every word has at least one.

        Returns:
            One list of ids per word; the unknown token for a word that normalization removes.
        """
        unique, space = list(dict.fromkeys(words)), self.space_of_words
        found = self.tokenize([space + word for word in unique])
        ids = {word: tokens or [self.token_to_id(self.unk_token)] for word, tokens in zip(unique, found, strict=True)}
        return [ids[word] for word in words]

    def tokenize_words_with_offsets(self, words: Sequence[str]) -> list[list[TokenSpan]]:
        """As `tokenize_words`, with the characters of its word that each token came from."""
        unique, space = list(dict.fromkeys(words)), self.space_of_words
        found = self.tokenize_with_offsets([space + word for word in unique])
        spans_of = {
            word: [s._replace(start=max(s.start - len(space), 0), end=s.end - len(space)) for s in spans]
            or [TokenSpan(self.token_to_id(self.unk_token), str(self.unk_token), 0, len(word))]
            for word, spans in zip(unique, found, strict=True)
        }
        return [spans_of[word] for word in words]

    @abstractmethod
    def text_of(self, token: str) -> str:
        """Return the text that a token stands for, with a space in front if the token says that it begins a word."""

    @overload
    def detokenize(self, ids: Iterable[int]) -> str: ...
    @overload
    def detokenize(self, ids: Iterable[Iterable[int]]) -> list[str]: ...

    def detokenize(self, ids: Iterable[Any]) -> str | list[str]:
        """Return the text of a sequence of ids, or a list with the text of each of several sequences."""
        rows = to_list(ids)
        if rows and is_column(rows[0]):
            return [self._detokenize(to_list(row)) for row in rows]
        return self._detokenize(rows)

    def _detokenize(self, ids: Sequence[Token]) -> str:
        """Return the text of a sequence of ids."""
        return "".join(self.text_of(self._tokens[i]) for i in ids).strip()

    @abstractmethod
    def word_starts(self) -> np.ndarray:
        """Return bool (V,): whether a token begins a word rather than continues one."""

    # === Features of packed sequences ===

    def as_array(self, tokens: Iterable[Token], count: int) -> np.ndarray:
        """Return `count` tokens of `tokenize` in the form that models take: int32 (count,)."""
        return np.fromiter(tokens, "int32", count=count)

    def features(self, ids: Tensor, mask: Tensor) -> Features:
        """Return the backbone's inputs but for `segment_ids`, from padded ids (b, t) and their mask."""
        return {"token_ids": ids, "padding_mask": mask}

    # === Files ===

    @abstractmethod
    def save_assets(self, directory: str | Path) -> None:
        """Write the vocabulary's files into `directory`."""

    @abstractmethod
    def load_assets(self, directory: str | Path) -> None:
        """Read what `save_assets` wrote."""

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments that differ from the class, without what `save_assets` writes."""
        names = (*self.roles, "other_tokens")
        config = {name: getattr(self, name) for name in names if getattr(self, name) != getattr(type(self), name)}
        if self.added_tokens:
            config["added_tokens"] = [asdict(token) for token in self.added_tokens]
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Build a tokenizer without a vocabulary."""
        return cls(**config)


def _listed(tokenizer: Tokenizer | type[Tokenizer]) -> tuple[str, ...]:
    """Return all special tokens, each once."""
    added = (token.content for token in tokenizer.added_tokens if token.special)
    tokens = (*(getattr(tokenizer, role) for role in tokenizer.roles), *tokenizer.other_tokens, *added)
    return tuple(dict.fromkeys(token for token in tokens if token is not None))
