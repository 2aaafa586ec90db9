"""The base class of all tokenizers, and what those built on Hugging Face's `tokenizers` share."""

from __future__ import annotations

import itertools
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeAlias, TypedDict, Unpack

import numpy as np

from lmzoo.arguments import is_integer, require
from lmzoo.tensor_types import Features, Tensor
from lmzoo.text.tokenizers.garbage_collection import paused_collection
from lmzoo.text.tokenizers.token_lists import check_is_vocabulary
from lmzoo.text.tokenizers.word_ids import WordIds
from lmzoo.text.validate_text import clean_texts

if TYPE_CHECKING:
    import tokenizers

_FEW_THREADS = 4  # words are looked up in one thread; more threads than these tokenize long texts sooner
_SHORT = 1 << 16  # characters of texts that are not long
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
    either.

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


class Tokenizer(ABC):
    """Turns strings into tokens and back; the base class of the families' tokenizers.

    A subclass names its default special tokens. Its constructor accepts what `get_config` returns, calls
    `_set_special_tokens` with the special tokens that it was given, and `_set_tokens` if it was given a vocabulary;
    otherwise `load_assets` calls the latter.

    Attributes:
        special_tokens: the tokens that are recognised in text and never split, in the order of `roles`, which is their
            order in new vocabularies.

    Example: see `WordPieceTokenizer`.
    """

    pad_token: str | None = None
    unk_token: str | None = None
    start_token: str | None = None
    end_token: str | None = None
    mask_token: str | None = None
    other_tokens: tuple[str, ...] = ()
    special_tokens: tuple[str, ...] = ()
    roles: ClassVar[tuple[str, ...]] = ("pad_token", "unk_token", "start_token", "end_token", "mask_token")
    needs_unknown: ClassVar[bool] = False  # whether an unknown token is required
    has_gaps: ClassVar[bool] = False  # whether "" in a vocabulary is an id without a token
    takes_words: ClassVar[bool] = False  # whether a text may also be a list of words
    space_of_words: ClassVar[str] = ""  # put before a word that is tokenized on its own

    _tokens: Sequence[str] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "special_tokens" not in vars(cls):
            cls.special_tokens = _listed(cls)

    def _set_special_tokens(self, tokens: SpecialTokens) -> None:
        """Sets the special tokens that differ from those of the class.

        Raises:
            TypeError: for an unknown argument.
            ValueError: for a token that is not a string; if a required unknown token is missing.
        """
        if unknown := tokens.keys() - {*self.roles, "other_tokens"}:
            raise TypeError(f"A {type(self).__name__} takes no argument `{min(unknown)}`.")
        if not tokens:
            return
        for role, token in tokens.items():
            if role in self.roles and not isinstance(token, str | None):
                raise ValueError(f"`{role}` must be a string, got {token!r:.60}.")
            setattr(self, role, token)
        self.other_tokens = tuple(self.other_tokens)
        if self.needs_unknown and self.unk_token is None:
            raise ValueError(f"A {type(self).__name__} needs an `unk_token`.")
        self.special_tokens = _listed(self)

    def _set_tokens(self, tokens: Sequence[str]) -> None:
        """Stores the vocabulary.

        Raises:
            ValueError: if a special token is missing or an entry is repeated.
        """
        check_is_vocabulary(tokens)
        numbered = [(index, token) for index, token in enumerate(tokens) if token or not self.has_gaps]
        ids = {token: index for index, token in numbered}
        if len(ids) != len(numbered):
            repeated = next(token for index, token in numbered if ids[token] != index)
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
    def of_words(cls, words: Sequence[str], size: int, **special: Unpack[SpecialTokens]) -> Self:
        """A tokenizer with `size` tokens, each of `words` among them, for tests and toy models."""

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
        """Checks that there is a mask token, which tasks that fill masks need.

        Raises:
            ValueError: if there is none.
        """
        if self.mask_token is None:
            raise ValueError(f"This {type(self).__name__} has no mask token: it can neither mask nor fill masks.")

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
        """Token of an id.

        Raises:
            ValueError: if no token has it.
        """
        self._check_id(id)
        return self._tokens[id]

    def _check_id(self, id: object) -> None:
        self._require_vocabulary()
        last = self.vocabulary_size - 1
        require(is_integer(id, 0, last), "id", f"an integer from 0 to {last}", id)

    @abstractmethod
    def tokenize(self, texts: Iterable[str | bytes]) -> list[list[Token]]:
        """Token ids of each text, without special tokens around them.

        Args:
            texts: a list of strings; see `lmzoo.text.validate_text.clean_texts` for what else is accepted.

        Returns:
            One list of ids per text; empty for an empty text.
        """

    @abstractmethod
    def tokenize_with_offsets(self, texts: Iterable[str | bytes]) -> list[list[TokenSpan]]:
        """Tokens of each text with the characters of the original text that they came from.

        Returns:
            One list of `TokenSpan(id, token, start, end)` per text. Offsets count characters (code points) of the
            string as it was passed, before any normalisation.
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
        """Token ids of each word as it is tokenized after a space; every word has at least one.

        Returns:
            One list of ids per word; the unknown token for a word that normalisation removes.
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
        """The text that a token stands for, with a space in front if the token itself says that it begins a word."""

    def detokenize(self, ids: Iterable[int]) -> str:
        """Text of a sequence of ids."""
        return "".join(self.text_of(self._tokens[i]) for i in ids).strip()

    @abstractmethod
    def word_starts(self) -> np.ndarray:
        """Bool (V,): whether a token begins a word rather than continues one."""

    # === Features of packed sequences ===

    def as_array(self, tokens: Iterable[Token], count: int) -> np.ndarray:
        """`count` tokens of `tokenize` in the form that models take: int32 (count,)."""
        return np.fromiter(tokens, "int32", count=count)

    def features(self, ids: Tensor, mask: Tensor) -> Features:
        """The backbone's inputs, apart from `segment_ids`, from padded ids (b, t) and their mask: arrays or tensors."""
        return {"token_ids": ids, "padding_mask": mask}

    # === Files ===

    @abstractmethod
    def save_assets(self, directory: str | Path) -> None:
        """Writes the vocabulary's files into `directory`."""

    @abstractmethod
    def load_assets(self, directory: str | Path) -> None:
        """Reads what `save_assets` wrote."""

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments that differ from the class, without what `save_assets` writes."""
        names = (*self.roles, "other_tokens")
        return {name: getattr(self, name) for name in names if getattr(self, name) != getattr(type(self), name)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Builds a tokenizer without a vocabulary."""
        return cls(**config)


def _listed(tokenizer: Tokenizer | type[Tokenizer]) -> tuple[str, ...]:
    """All special tokens, each once."""
    tokens = (*(getattr(tokenizer, role) for role in tokenizer.roles), *tokenizer.other_tokens)
    return tuple(dict.fromkeys(token for token in tokens if token is not None))


def special_pattern(tokens: Iterable[str]) -> re.Pattern[str]:
    """Matches special tokens in text; the longest where one begins with another."""
    return re.compile("(" + "|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) + ")")


def _encode(backend: tokenizers.Tokenizer, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


def _threads() -> int:
    """Number of threads that `tokenizers` uses."""
    limit = os.environ.get("RAYON_NUM_THREADS", "")
    return int(limit) if limit.isdecimal() and int(limit) else os.cpu_count() or 1


class RustTokenizer(Tokenizer):
    """A tokenizer that runs on a `tokenizers.Tokenizer`, which the subclass makes and passes to `_set_backend`."""

    _backend: tokenizers.Tokenizer

    def _set_backend(self, backend: tokenizers.Tokenizer) -> None:
        self._backend, self._word_ids = backend, WordIds(partial(_encode, backend))
        self._has_words = not any(map(str.isspace, "".join(self.special_tokens)))

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """The `tokenizers.Tokenizer` that does the work.

        Do not change it, since the ids of words are kept. Change a copy: `Tokenizer.from_str(backend.to_str())`.
        """
        self._require_vocabulary()
        return self._backend

    def tokenize(self, texts: Iterable[str | bytes]) -> list[list[int]]:
        self._require_vocabulary()
        cleaned = clean_texts(texts)
        if self._has_words and (_threads() <= _FEW_THREADS or sum(map(len, cleaned)) < _SHORT):
            return self._word_ids.of(map(self._words_of, cleaned))
        return _encode(self._backend, cleaned)

    def _words_of(self, text: str) -> list[str]:
        """Parts of a text whose ids, joined, are those of the text if no special token holds whitespace."""
        return [text]

    @paused_collection()
    def tokenize_with_offsets(self, texts: Iterable[str | bytes]) -> list[list[TokenSpan]]:
        """See `Tokenizer.tokenize_with_offsets`.

        Example:

        ```python
        from lmzoo.text import WordPieceTokenizer

        tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "cafe", "!"])
        tokenizer.tokenize_with_offsets(["Un café!"])[0][1]  # TokenSpan(id=5, token='cafe', start=3, end=7)
        ```
        """
        return [
            [TokenSpan(i, self._tokens[i], *span) for i, span in zip(encoding.ids, encoding.offsets, strict=True)]
            for encoding in self.backend.encode_batch(clean_texts(texts), add_special_tokens=False)
        ]

    def tokenize_with_spans(self, texts: Iterable[str | bytes]) -> tuple[list[list[int]], np.ndarray]:
        encodings = self.backend.encode_batch(clean_texts(texts), add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        pairs = itertools.chain.from_iterable(encoding.offsets for encoding in encodings)
        spans = np.fromiter(itertools.chain.from_iterable(pairs), "int64", 2 * sum(map(len, ids)))
        return ids, spans.reshape(-1, 2)
