"""Byte-level BPE, the tokenizer of GPT-2 and RoBERTa."""

from __future__ import annotations

import itertools
import json
import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

import keras
import numpy as np

from lmzoo.text.tokenizers.added_tokens import AddedToken, special_token
from lmzoo.text.tokenizers.rust_tokenizer import RustTokenizer
from lmzoo.text.tokenizers.token_lists import (
    in_order,
    make_token_entries,
    make_token_ids,
    read_ids,
    read_lines,
    write_lines,
)
from lmzoo.text.tokenizers.tokenizer import SpecialTokens

if TYPE_CHECKING:
    import tokenizers
    from tokenizers.normalizers import Normalizer

VOCABULARY_FILE = "vocabulary.json"
MERGES_FILE = "merges.txt"
_HEADER = "#version: 0.2"  # the first line of published files
# GPT-2's alphabet: a printable Latin-1 byte is its own character; all other bytes, in order, are U+0100 and following.
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_UNPRINTABLE = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_TOKENS = tuple(chr(byte if byte in _PRINTABLE else 256 + _UNPRINTABLE.index(byte)) for byte in range(256))
_BYTES = {token: byte for byte, token in enumerate(BYTE_TOKENS)}
_SPACE = BYTE_TOKENS[0x20]  # "Ġ"
_BETWEEN_WORDS = re.compile(r"(?<=\S)(?= \S)")  # before each space between words, which belongs to the next word
_UNUSED_BYTE = BYTE_TOKENS[0xFF]  # does not occur in UTF-8
# The only special token of GPT-2 and other left-to-right language models.
END_OF_TEXT = "<|endoftext|>"
ONLY_END_OF_TEXT = SpecialTokens(
    start_token=END_OF_TEXT, end_token=END_OF_TEXT, unk_token=END_OF_TEXT, pad_token=None, mask_token=None
)


class MergesTokenizer(RustTokenizer):
    """Base class of tokenizers that merge pairs of tokens; a subclass creates the `tokenizers.Tokenizer`.

    Args:
        vocabulary: dict from tokens to ids, or tokens in order of their ids, "" for an id without a token; None to read
            them with `load_assets`.
        merges: pairs of tokens to merge, highest priority first: "a b" or ("a", "b").
        **special: special tokens that differ from the class's defaults, see `lmzoo.text.SpecialTokens`.

    Raises:
        ValueError: If only one of `vocabulary` and `merges` is passed, or their content is invalid.
    """

    has_gaps = True

    _pairs: Sequence[tuple[str, str]] = ()

    def __init__(
        self,
        vocabulary: Mapping[str, int] | Sequence[str] | None = None,
        merges: Iterable[str | Sequence[str]] | None = None,
        **special: Unpack[SpecialTokens],
    ) -> None:
        self._set_special_tokens(special)
        if vocabulary is not None and merges is not None:
            self._set_vocabulary(vocabulary, merges)
        elif vocabulary is not None or merges is not None:
            raise ValueError("Pass both `vocabulary` and `merges`, or neither and call `load_assets`.")

    def _set_vocabulary(
        self, vocabulary: Mapping[str, int] | Sequence[str], merges: Iterable[str | Sequence[str]], first_line: int = 1
    ) -> None:
        self._set_tokens(in_order(vocabulary, allow_gaps=True) if isinstance(vocabulary, Mapping) else vocabulary)
        self._pairs = read_merges(merges, self._ids, first_line)
        self._set_backend(self._make_backend())

    @abstractmethod
    def _make_backend(self) -> tokenizers.Tokenizer:
        """Create the `tokenizers.Tokenizer` that splits text, from the vocabulary and `_pairs`."""


@keras.saving.register_keras_serializable(package="lmzoo")
class BytePairTokenizer(MergesTokenizer):
    """Byte-level byte-pair encoding (Radford et al., 2019) in RoBERTa's form (Liu et al., 2019).

    The ids are the same as in Hugging Face's RoBERTa tokenizers, except for a literal `<pad>`: it is text rather than
    the padding token, since a model counts positions without padding. A token is written in the alphabet of GPT-2, one
    printable character for each byte: "Ġworld" is " world", and "Ã©" is "é". By default, no space is put in front of a
    text. All special tokens except `<pad>` are recognized in text and never split; `<mask>` absorbs the whitespace
    before it.

    With `add_prefix_space`, each part of a text between special tokens begins with a space, which is added if it is
    missing. `detokenize` does not remove it. Offsets are then also the same as in Hugging Face's tokenizers, which
    count the added space as the first character of the part: after a special token, the span of the next token
    therefore lacks its first character.

    Offsets follow Hugging Face's `trim_offsets`: spaces at the ends of a token do not count. "Ġworld" covers
    "world", and a token of spaces covers nothing (`start == end`). If a character's bytes are split among
    several tokens, each of these covers the character.

    Args:
        vocabulary: dict from tokens to ids, or tokens in order of their ids, "" for an id without a token; None to read
            them with `load_assets`.
        merges: pairs of tokens to merge, highest priority first: "a b" or ("a", "b").
        add_prefix_space: bool, whether to put a space in front of a text, so that its first word is tokenized like any
            other.
        **special: special tokens that differ from RoBERTa's, see `lmzoo.text.SpecialTokens`; GPT-2 has only
            `<|endoftext|>`.

    Raises:
        ValueError: If the vocabulary lacks a special token or one of the 256 byte tokens, or repeats a token, or if a
            merge is malformed or names a token that the vocabulary lacks.

    Example:

    ```python
    from lmzoo.text import BytePairTokenizer

    tokenizer = BytePairTokenizer.of_words(["good", "film"], size=270)
    [span.token for span in tokenizer.tokenize_with_offsets(["A good film"])[0]]  # ['A', 'Ġgood', 'Ġfilm']
    ```
    """

    start_token = "<s>"
    pad_token = "<pad>"
    end_token = "</s>"
    unk_token = "<unk>"
    mask_token = "<mask>"
    roles = ("start_token", "pad_token", "end_token", "unk_token", "mask_token")
    space_of_words = " "

    _literal_tokens: Collection[str] = ()  # tokens that are not written in the alphabet of bytes

    def __init__(
        self,
        vocabulary: Mapping[str, int] | Sequence[str] | None = None,
        merges: Iterable[str | Sequence[str]] | None = None,
        add_prefix_space: bool = False,
        **special: Unpack[SpecialTokens],
    ) -> None:
        self.add_prefix_space = add_prefix_space
        super().__init__(vocabulary, merges, **special)

    def _set_tokens(self, tokens: Sequence[str]) -> None:
        super()._set_tokens(tokens)
        if missing_tokens := [token for token in BYTE_TOKENS if token not in self._ids]:
            raise ValueError(
                f"The vocabulary lacks {len(missing_tokens)} of the 256 byte tokens, such as {missing_tokens[0]!r}."
            )

    @classmethod
    def normalizer(cls) -> Normalizer | None:
        """Return the normalizer to apply to texts before splitting them into words, or None for no normalization."""
        return None

    def _make_backend(self) -> tokenizers.Tokenizer:
        # Imported here so that `import lmzoo` stays as light as Keras.
        from tokenizers import Tokenizer, models, pre_tokenizers, processors

        backend = Tokenizer(models.BPE(make_token_entries(self.base_vocabulary), self._pairs))
        if (normalizer := self.normalizer()) is not None:
            backend.normalizer = normalizer
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=self.add_prefix_space)
        # The post-processor only trims offsets.
        backend.post_processor = processors.ByteLevel(add_prefix_space=self.add_prefix_space, trim_offsets=True)
        return backend

    def _make_default_added_token(self, token: str) -> AddedToken | None:
        roles = [role for role in self.roles if getattr(self, role) == token]
        if roles == ["pad_token"] and token not in self.other_tokens:
            return None  # a literal token that is only used for padding is plain text
        return special_token(token, lstrip=token == self.mask_token)

    def _prepare_text_tokens(self) -> None:
        super()._prepare_text_tokens()
        # A token that words are split into is written in bytes, even if a special token is the same string.
        pieces = {*BYTE_TOKENS, *map("".join, self._pairs)}
        self._literal_tokens = {*self.special_tokens, *self._tokens[self._base_size :]} - pieces

    def _crosses_words(self, token: AddedToken) -> bool:
        return token.rstrip or super()._crosses_words(token)

    def _split_in_cacheable_parts(self, text: str) -> list[str]:
        if "\0" not in text and text.split(" ") == text.split():
            return text.replace(" ", "\0 ").split("\0")  # the same parts as below, several times faster
        return _BETWEEN_WORDS.split(text)

    @classmethod
    def of_words(cls, words: Sequence[str], size: int, **special: Unpack[SpecialTokens]) -> Self:
        """Create a tokenizer with a vocabulary of `size` tokens, for tests and toy models.

        The tokens are the special tokens, the 256 bytes, `words` with a leading space, such as "Ġfilm" for " film", the
        prefixes from which they are merged, and fillers. If `size` is too small for all words, the vocabulary includes
        as many as possible.

        Raises:
            ValueError: If `size` leaves no room for the special tokens and the bytes.
        """
        tokens = cls(**special).special_tokens
        max_merges = size - len(tokens) - len(BYTE_TOKENS)
        if max_merges < 0:
            raise ValueError(
                f"`size` is {size}, but the special tokens and the 256 bytes alone need {size - max_merges}."
            )
        # Every merge appends one byte to a prefix of a word, so that no merge prevents another.
        merges: dict[str, tuple[str, str]] = {}
        prefixes_by_word = [
            list(itertools.accumulate([_SPACE, *(BYTE_TOKENS[b] for b in word.encode())])) for word in words
        ]
        while prefixes_by_word:
            prefixes_by_word = [
                [token for token in prefixes if len(token) > 1 and token not in merges] for prefixes in prefixes_by_word
            ]
            prefixes_by_word.sort(key=len)  # the word that needs the fewest merges first
            if len(prefixes_by_word[0]) > max_merges - len(merges):
                break
            merges |= {token: (token[:-1], token[-1]) for token in prefixes_by_word.pop(0)}
        fillers = ((token[:-1], token[-1]) for token in _iterate_unused_tokens())
        pairs = [*merges.values(), *itertools.islice(fillers, max_merges - len(merges))]
        vocabulary = [*tokens[:-1], *BYTE_TOKENS, *("".join(pair) for pair in pairs), *tokens[-1:]]
        return cls(vocabulary, pairs, **special)

    @property
    def merges(self) -> list[str]:
        """Pairs of tokens to merge, as strings "a b", highest priority first."""
        self._require_vocabulary()
        return [" ".join(pair) for pair in self._pairs]

    def text_of(self, token: str) -> str:
        """Return the text of a token; bytes that are not a whole character become U+FFFD."""
        return self.bytes_of(token).decode(errors="replace")

    def _detokenize(self, ids: Sequence[int]) -> str:
        """Return the exact text of ids, except for whitespace before `<mask>`; incomplete characters become U+FFFD."""
        return b"".join(self.bytes_of(self._tokens[i]) for i in ids).decode(errors="replace")

    def bytes_of(self, token: str) -> bytes:
        """Return the UTF-8 bytes of a token."""
        return token.encode() if token in self._literal_tokens else as_bytes(token)

    def word_starts(self) -> np.ndarray:
        """Return whether each of the V tokens begins a word, rather than continuing one: bool (V,).

        A token begins a word if it begins with a space or is special, as in fairseq's whole-word masking. The first
        word of a text is therefore not recognized, and a punctuation mark after a letter counts as part of its word.
        """
        return np.array([token.startswith(_SPACE) or token in self.special_tokens for token in self._tokens])

    def save_assets(self, directory: str | Path) -> None:
        """Write `vocabulary.json` (ids by token) and `merges.txt` (one pair "a b" per line) into `directory`."""
        self._require_vocabulary()
        write_merges(Path(directory), make_token_ids(self.base_vocabulary), self.merges)

    def load_assets(self, directory: str | Path) -> None:
        """Load the vocabulary and the merges from the files that `save_assets` writes, or from published files."""
        vocabulary = read_ids(Path(directory) / VOCABULARY_FILE)
        self._set_vocabulary(vocabulary, *split_merges(Path(directory) / MERGES_FILE))

    def get_config(self) -> dict[str, Any]:
        return {"add_prefix_space": self.add_prefix_space, **super().get_config()}


def read_merges(merges: Iterable[str | Sequence[str]], ids: Collection[str], first_line: int) -> list[tuple[str, str]]:
    """Check merges and return them as pairs of tokens.

    Args:
        merges: pairs of tokens, "a b" or ("a", "b").
        ids: tokens of the vocabulary.
        first_line: int, line number of the first merge, for messages.

    Raises:
        ValueError: If a merge is malformed, or needs a token that `ids` lacks; the message names the line.
    """
    pairs = []
    for line_number, merge in enumerate(merges, first_line):
        parts = merge.split(" ") if isinstance(merge, str) else list(merge)
        if len(parts) != 2 or not all(part and not {" ", "\n", "\r"} & {*part} for part in parts):
            raise ValueError(
                f"Line {line_number} of the merges, {merge!r}, is not two tokens with one space between them."
            )
        for token in (*parts, "".join(parts)):
            if token not in ids:
                raise ValueError(
                    f"Line {line_number} of the merges, {merge!r}, needs {token!r}, which the vocabulary lacks."
                )
        pairs.append((parts[0], parts[1]))
    return pairs


def write_merges(directory: Path, ids: Mapping[str, int], merges: Iterable[str]) -> None:
    """Write `vocabulary.json` and `merges.txt` into `directory`."""
    vocabulary = json.dumps(ids, ensure_ascii=False)
    (directory / VOCABULARY_FILE).write_text(vocabulary, encoding="utf-8", newline="\n")
    write_lines(directory / MERGES_FILE, (_HEADER, *merges))


def split_merges(file: Path) -> tuple[list[str], int]:
    """Return the lines of a `merges.txt` after the `#version` line, and the number of the first of these lines."""
    lines = read_lines(file)
    has_header = len(lines) > 0 and lines[0].startswith("#version:")
    return lines[has_header:], 1 + has_header


def as_bytes(token: str) -> bytes:
    """Return the bytes of a token; a token outside the alphabet, such as a special token, is encoded as UTF-8."""
    if all(character in _BYTES for character in token):
        return bytes(_BYTES[character] for character in token)
    return token.encode()


def _iterate_unused_tokens() -> Iterator[str]:
    """Yield tokens that cannot occur in text, each one byte longer than an earlier token."""
    for earlier_token in itertools.chain([_UNUSED_BYTE], _iterate_unused_tokens()):
        yield from (earlier_token + byte for byte in BYTE_TOKENS)
