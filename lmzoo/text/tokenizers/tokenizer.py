"""Base class of tokenizers, token spans and special tokens."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeAlias, TypedDict, Unpack, overload

import numpy as np

from lmzoo.common.arguments import is_integer, require
from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.text.tokenizers.added_tokens import AddedToken, read_added_tokens, special_token
from lmzoo.text.tokenizers.keras_hub_names import KerasHubTokenizerNames
from lmzoo.text.tokenizers.token_lists import check_is_vocabulary, to_list
from lmzoo.text.validate_text import is_column

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer

# A token in the result of `tokenize`: an id, or a word if there is no vocabulary (`CharacterTokenizer`).
Token: TypeAlias = Any


class TokenSpan(NamedTuple):
    """A token and its character offsets: it covers `text[start:end]`.

    Example: see `BytePairTokenizer`.
    """

    id: int
    token: str
    start: int
    end: int


class SpecialTokens(TypedDict, total=False):
    """Special tokens that override the defaults of a tokenizer's class; None removes a token.

    The arguments are the strings of the tokens:

    * `pad_token` pads sequences.
    * `unk_token` replaces whatever the vocabulary lacks.
    * `start_token` and `end_token` mark the beginning of a sequence and the end of a text.
    * `mask_token` hides a token to predict.
    * `other_tokens` are further special tokens.
    * `added_tokens` are tokens with their own rules for matching in texts (see `lmzoo.text.AddedToken`). Tokens that
      the vocabulary lacks get the ids after it.

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
    """Base class of tokenizers, which turn strings into tokens and back.

    A subclass names its default special tokens. Its constructor accepts the result of `get_config`, and passes the
    special tokens to `_set_special_tokens` and the vocabulary, if it gets one, to `_set_tokens`. If it gets none,
    `load_assets` calls `_set_tokens`.

    Attributes:
        special_tokens: tuple of strings, tokens that are recognized in text and never split. They are in the order of
            `roles`, which is also their order in new vocabularies, followed by further special tokens.
        added_tokens: tuple of `AddedToken`, tokens that were added or that are not matched in the default way.

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
    vocabulary_argument: ClassVar[str] = "vocabulary"  # constructor argument that holds the vocabulary
    needs_unknown: ClassVar[bool] = False  # whether an unknown token is required
    has_gaps: ClassVar[bool] = False  # whether "" in a vocabulary is an id without a token
    takes_added_tokens: ClassVar[bool] = False
    takes_words: ClassVar[bool] = False  # whether a text may also be a list of words
    space_of_words: ClassVar[str] = ""  # prefix of a word that is tokenized separately
    has_offsets_in_graphs: ClassVar[bool] = True  # whether the tokenizer as TensorFlow ops computes offsets

    _tokens: Sequence[str] = ()
    _base_size = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "special_tokens" not in vars(cls):
            cls.special_tokens = _list_all_special_tokens(cls)

    def _set_special_tokens(self, tokens: SpecialTokens) -> None:
        """Set the special tokens that differ from the class's defaults.

        Raises:
            TypeError: If an argument is unknown.
            ValueError: If a token is not a string, a required unknown token is missing, or added tokens are invalid or
                not supported.
        """
        if unknown_names := tokens.keys() - {*self.roles, "other_tokens", "added_tokens"}:
            raise TypeError(f"A {type(self).__name__} takes no argument `{min(unknown_names)}`.")
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
        self.special_tokens = _list_all_special_tokens(self)

    def _set_tokens(self, tokens: Sequence[str]) -> None:
        """Store the vocabulary, and assign the next ids to added tokens that it lacks.

        Raises:
            TypeError: If `tokens` is not a list of strings.
            ValueError: If a special token is missing or an entry is repeated.
        """
        check_is_vocabulary(tokens)
        indexed_tokens = [(index, token) for index, token in enumerate(tokens) if token or not self.has_gaps]
        ids = {token: index for index, token in indexed_tokens}
        new_tokens = [token.content for token in self.added_tokens if token.content not in ids]
        if len(ids) != len(indexed_tokens):
            repeated_token = next(token for index, token in indexed_tokens if ids[token] != index)
            raise ValueError(f"The vocabulary holds {repeated_token!r} twice.")
        ids |= {token: index for index, token in enumerate(new_tokens, len(tokens))}
        missing_tokens = [token for token in self.special_tokens if token not in ids]
        if missing_tokens:
            raise ValueError(f"The vocabulary lacks the special tokens {', '.join(missing_tokens)}.")
        self._ids = ids
        self._tokens = [*tokens, *new_tokens]
        self._base_size = len(tokens)

    def _require_vocabulary(self) -> None:
        """Raise a ValueError if there is no vocabulary yet."""
        if not self._tokens:
            argument = self.vocabulary_argument
            raise ValueError(f"The tokenizer has no vocabulary yet: pass `{argument}` or call `load_assets`.")

    @classmethod
    @abstractmethod
    def of_words(cls, words: Sequence[str], size: int, **special: Unpack[SpecialTokens]) -> Self:
        """Create a tokenizer with a vocabulary of `size` tokens that includes `words`, for tests and toy models."""

    @property
    def vocabulary(self) -> list[str]:
        """All tokens in order of their ids, including added tokens."""
        self._require_vocabulary()
        return list(self._tokens)

    @property
    def base_vocabulary(self) -> list[str]:
        """Vocabulary without added tokens: the tokens that words are split into."""
        self._require_vocabulary()
        return list(self._tokens[: self._base_size])

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens, including added tokens."""
        return len(self._tokens)

    @property
    def pad_id(self) -> int:
        """Id of the padding token, or 0 without one, since padding is always masked."""
        return 0 if self.pad_token is None else self.token_to_id(self.pad_token)

    @property
    def target_side(self) -> Tokenizer:
        """Tokenizer for the texts that a model generates; by default, this tokenizer."""
        return self

    @property
    def mask_id(self) -> int:
        """Id of the mask token.

        Raises:
            ValueError: If there is no mask token.
        """
        self.check_has_mask()
        return self.token_to_id(self.mask_token)

    def check_has_mask(self) -> None:
        """Check that there is a mask token, which masked language modeling needs.

        Raises:
            ValueError: If there is no mask token.
        """
        if self.mask_token is None:
            raise ValueError(f"This {type(self).__name__} has no mask token: it can neither mask nor fill masks.")

    def token_to_id(self, token: str | None) -> int:
        """Return the id of a token.

        Raises:
            ValueError: If the vocabulary lacks the token.
        """
        self._require_vocabulary()
        if token not in self._ids:
            raise ValueError(f"The vocabulary has no token {token!r}.")
        return self._ids[token]

    def id_to_token(self, id: int) -> str:
        """Return the token with an id.

        Raises:
            ValueError: If no token has the id.
        """
        self._check_id(id)
        return self._tokens[id]

    def _check_id(self, id: object) -> None:
        """Raise a ValueError if `id` is not the id of a token."""
        self._require_vocabulary()
        last_id = self.vocabulary_size - 1
        require(is_integer(id, 0, last_id), "id", f"an integer from 0 to {last_id}", id)

    # === Added tokens ===

    @property
    def text_tokens(self) -> tuple[AddedToken, ...]:
        """The special and added tokens that are matched in a text before it is split into words."""
        special_tokens = filter(None, map(self._make_default_added_token, self.special_tokens))
        return tuple({token.content: token for token in (*special_tokens, *self.added_tokens)}.values())

    def _make_default_added_token(self, token: str) -> AddedToken | None:
        """Return the `AddedToken` by which a special token is matched, or None to treat it as plain text."""
        return special_token(token)

    def add_tokens(self, tokens: Sequence[str | AddedToken], special_tokens: bool = False) -> int:
        """Add tokens, like `add_tokens` of transformers, or change how existing tokens are matched in texts.

        New tokens get the ids after the vocabulary. If a model has no embeddings for them, create them with
        `Backbone.resize_token_embeddings`.

        Args:
            tokens: list of `lmzoo.text.AddedToken`, or of strings for tokens without flags.
            special_tokens: bool, whether the strings are special tokens, which are matched literally and never masked.

        Returns:
            The number of new tokens.

        Raises:
            ValueError: If an entry is not a token, normalization removes a token completely or makes two added tokens
                equal, or the tokenizer does not support added tokens.
        """
        self._check_takes_added_tokens()
        base_vocabulary = self.base_vocabulary
        old_size = self.vocabulary_size
        added_tokens = read_added_tokens([*self.added_tokens, *read_added_tokens(tokens, special_tokens)])
        if equal_forms := self._find_equal_forms(added_tokens):
            token, earlier_token = next(iter(equal_forms.items()))
            raise ValueError(
                f"The added tokens {earlier_token.content!r} and {token.content!r} are equal after normalization. Keep "
                f"one of them, or pass `AddedToken({token.content!r}, normalized=False)`."
            )
        self.added_tokens = tuple(added_tokens)
        self.special_tokens = _list_all_special_tokens(self)
        self._set_tokens(base_vocabulary)
        self._prepare_text_tokens()
        return self.vocabulary_size - old_size

    def _check_takes_added_tokens(self) -> None:
        """Raise a ValueError if the tokenizer does not support added tokens."""
        if not self.takes_added_tokens:
            raise ValueError(f"A {type(self).__name__} takes no added tokens.")

    def _separate_equal_forms(self) -> None:
        """Match an added token only in original texts, with a warning, if it equals an earlier one after normalization.

        `tokenizers` would choose one of them at random.
        """
        equal_forms = self._find_equal_forms(self.added_tokens)
        if not equal_forms:
            return
        contents = " ".join(repr(token.content) for token in equal_forms)
        warnings.warn(
            f"The added tokens {contents} are equal to earlier ones after normalization, so they are matched exactly, "
            "as with `normalized=False`.",
            stacklevel=2,
        )
        self.added_tokens = tuple(
            replace(token, normalized=False) if token in equal_forms else token for token in self.added_tokens
        )

    def _find_equal_forms(self, tokens: Iterable[AddedToken]) -> dict[AddedToken, AddedToken]:
        """Return each `normalized` token that equals an earlier one after normalization, with the earlier token.

        Raises:
            ValueError: If normalization removes all characters of a `normalized` token.
        """
        normalizer = self._make_token_normalizer()
        if normalizer is None:
            return {}
        first_tokens: dict[str, AddedToken] = {}
        equal_forms = {}
        for token in tokens:
            if not token.normalized:
                continue
            form = normalizer.normalize_str(token.content)
            if not form:
                raise ValueError(
                    f"Nothing of the token {token.content!r} is left after normalization, so no text can contain it. "
                    f"Pass `AddedToken({token.content!r}, normalized=False)`."
                )
            if form in first_tokens:
                equal_forms[token] = first_tokens[form]
            first_tokens.setdefault(form, token)
        return equal_forms

    def _make_token_normalizer(self) -> Normalizer | None:
        """Return the normalizer of texts, and of added tokens with the flag `normalized`; None if there is none."""
        return None

    def _prepare_text_tokens(self) -> None:
        """Prepare to match `text_tokens` in texts.

        Called whenever the tokens change; tokenizers that support added tokens override it.
        """
        raise NotImplementedError

    # === Text to tokens ===

    @abstractmethod
    def tokenize(self, texts: Iterable[str | bytes]) -> list[list[Token]]:
        """Return the token ids of each text, without special tokens around them.

        Args:
            texts: n strings; `lmzoo.text.validate_text.clean_texts` lists the other accepted types.

        Returns:
            One list of ids per text, empty for an empty text.
        """

    @abstractmethod
    def tokenize_with_offsets(self, texts: Iterable[str | bytes]) -> list[list[TokenSpan]]:
        """Return the tokens of each text with their offsets in it.

        Returns:
            One list of `TokenSpan(id, token, start, end)` per text. Offsets count characters (code points) of the
            string as it was passed, before any normalization.
        """

    def tokenize_with_spans(self, texts: Iterable[str | bytes]) -> tuple[list[list[Token]], np.ndarray]:
        """Return token ids and offsets as lists and an array, which is faster than one `TokenSpan` per token.

        Returns:
            One list of ids per text; and the start and end of all tokens, text after text, int64 (total, 2).
        """
        spans_by_text = self.tokenize_with_offsets(texts)
        offsets = [span[2:] for spans in spans_by_text for span in spans]
        return [[span.id for span in spans] for spans in spans_by_text], np.array(offsets, "int64").reshape(-1, 2)

    def tokenize_words(self, words: Sequence[str]) -> list[list[Token]]:
        """Return the token ids of each word, tokenized as if it followed a space.

        Returns:
            One non-empty list of ids per word: the unknown token for a word that normalization removes.
        """
        unique_words = list(dict.fromkeys(words))
        space = self.space_of_words
        token_lists = self.tokenize([space + word for word in unique_words])
        ids_by_word = {
            word: tokens or [self.token_to_id(self.unk_token)]
            for word, tokens in zip(unique_words, token_lists, strict=True)
        }
        return [ids_by_word[word] for word in words]

    def tokenize_words_with_offsets(self, words: Sequence[str]) -> list[list[TokenSpan]]:
        """Return the token spans of each word, tokenized as if it followed a space, with offsets in the word."""
        unique_words = list(dict.fromkeys(words))
        space = self.space_of_words
        span_lists = self.tokenize_with_offsets([space + word for word in unique_words])
        spans_by_word = {
            word: [span._replace(start=max(span.start - len(space), 0), end=span.end - len(space)) for span in spans]
            or [TokenSpan(self.token_to_id(self.unk_token), str(self.unk_token), 0, len(word))]
            for word, spans in zip(unique_words, span_lists, strict=True)
        }
        return [spans_by_word[word] for word in words]

    @abstractmethod
    def text_of(self, token: str) -> str:
        """Return the text of a token, with a leading space if the token marks the beginning of a word."""

    @overload
    def detokenize(self, ids: Iterable[int]) -> str: ...
    @overload
    def detokenize(self, ids: Iterable[Iterable[int]]) -> list[str]: ...

    def detokenize(self, ids: Iterable[Any]) -> str | list[str]:
        """Return the text of one sequence of ids, or a list of texts for several sequences.

        Raises:
            ValueError: If an id is not the id of a token, such as -100, the label of ignored positions.
        """
        items = to_list(ids)
        is_batch = bool(items) and is_column(items[0])
        sequences = list(map(to_list, items)) if is_batch else [items]
        for sequence in sequences:
            self._check_ids(sequence)
        texts = [self._detokenize(sequence) for sequence in sequences]
        return texts if is_batch else texts[0]

    def _check_ids(self, ids: Sequence[Token]) -> None:
        """Raise a ValueError if one of `ids` is not the id of a token."""
        self._require_vocabulary()
        last_id = self.vocabulary_size - 1
        for id in (min(ids, default=0), max(ids, default=0)):
            if not 0 <= id <= last_id:
                raise ValueError(
                    f"`ids` must be from 0 to {last_id:,}, got {id:,}. Remove other ids first, such as the label -100 "
                    "of ignored positions."
                )

    def _detokenize(self, ids: Sequence[Token]) -> str:
        """Return the text of one sequence of ids, without spaces at its ends."""
        return "".join(self.text_of(self._tokens[i]) for i in ids).strip(" ")

    @abstractmethod
    def word_starts(self) -> np.ndarray:
        """Return whether each of the V tokens begins a word, rather than continuing one: bool (V,)."""

    # === Features of packed sequences ===

    def as_array(self, tokens: Iterable[Token], count: int) -> np.ndarray:
        """Return `count` tokens from `tokenize` as the array that models take: int32 (count,)."""
        return np.fromiter(tokens, "int32", count=count)

    def features(self, ids: Tensor, mask: Tensor) -> Features:
        """Return the backbone's inputs, except for `segment_ids`, from padded ids (b, t) and their mask."""
        return {"token_ids": ids, "padding_mask": mask}

    # === Files ===

    @abstractmethod
    def save_assets(self, directory: str | Path) -> None:
        """Write the vocabulary files into `directory`."""

    @abstractmethod
    def load_assets(self, directory: str | Path) -> None:
        """Load the vocabulary from the files that `save_assets` writes."""

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments that differ from the class defaults, without the vocabulary."""
        names = (*self.roles, "other_tokens")
        config = {name: getattr(self, name) for name in names if getattr(self, name) != getattr(type(self), name)}
        if self.added_tokens:
            config["added_tokens"] = [asdict(token) for token in self.added_tokens]
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Create a tokenizer without a vocabulary from the result of `get_config`."""
        return cls(**config)


def _list_all_special_tokens(tokenizer: Tokenizer | type[Tokenizer]) -> tuple[str, ...]:
    """Return the special tokens of a tokenizer or its class, without duplicates."""
    added_tokens = (token.content for token in tokenizer.added_tokens if token.special)
    tokens = (*(getattr(tokenizer, role) for role in tokenizer.roles), *tokenizer.other_tokens, *added_tokens)
    return tuple(dict.fromkeys(token for token in tokens if token is not None))
