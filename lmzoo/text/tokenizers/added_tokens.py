"""Added tokens, which are matched in a text before it is split into words."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import tokenizers
    from tokenizers.normalizers import Normalizer


@dataclass(frozen=True)
class AddedToken:
    r"""A token that is matched in a text before it is split into words, as in Hugging Face's `tokenizers`.

    Of several tokens that begin at the same character, the longest matches.

    Args:
        content: str, the token.
        lstrip: bool, whether a match includes the whitespace before the token.
        rstrip: bool, whether a match includes the whitespace after the token.
        single_word: bool, whether the token matches only where no letter, digit or "_" is next to it.
        normalized: bool, whether the token is normalized and then matched in the normalized text, for example
            regardless of case if the tokenizer lowercases. No two such tokens can be equal after normalization.
        special: bool, whether the token is a special token, which is never masked.

    Raises:
        ValueError: If `content` is empty or not a string, or a flag is not a bool.

    Example:

    ```python
    from lmzoo.text import AddedToken, WordPieceTokenizer

    tokenizer = WordPieceTokenizer.of_words(["films", "about"], size=7)
    tokenizer.add_tokens(["SciFi", AddedToken("[E1]", normalized=False, special=True)])  # 2
    tokenizer.tokenize(["Scifi films [E1]"])  # [[7, 5, 8]]
    ```
    """

    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = True
    special: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.content, str) or not self.content:
            raise ValueError(f"A token must be a string of at least one character, got {self.content!r:.60}.")
        for name, value in asdict(self).items():
            if name != "content" and not isinstance(value, bool):
                raise ValueError(f"`{name}` of the token {self.content!r} must be True or False, got {value!r:.60}.")

    def to_library(self) -> tokenizers.AddedToken:
        """Return the token as a `tokenizers.AddedToken`."""
        # Imported here so that `import lmzoo` stays as light as Keras.
        from tokenizers import AddedToken as LibraryToken

        return LibraryToken(**asdict(self))


def special_token(content: str, lstrip: bool = False) -> AddedToken:
    """Create a special token that is matched literally."""
    return AddedToken(content, lstrip=lstrip, normalized=False, special=True)


def read_added_tokens(
    tokens: Iterable[str | AddedToken | Mapping[str, Any]], special: bool = False
) -> list[AddedToken]:
    """Convert tokens, strings and dicts to added tokens without duplicates.

    If several entries have the same content, the last entry takes the place of the first.

    Args:
        tokens: list of `AddedToken`, strings, or dicts of an `AddedToken`'s fields, as in a configuration.
        special: bool, whether strings are special tokens.

    Raises:
        ValueError: If `tokens` is a string, or an entry is not a token.
    """
    if isinstance(tokens, str):
        raise ValueError(f"Tokens must be a list, got {tokens!r:.60}.")
    by_content: dict[str, AddedToken] = {}
    for token in tokens:
        if isinstance(token, Mapping):
            token = _make_from_fields(token)
        elif not isinstance(token, AddedToken):
            token = AddedToken(token, normalized=not special, special=special)
        by_content[token.content] = token
    return list(by_content.values())


def _make_from_fields(fields: Mapping[str, Any]) -> AddedToken:
    """Create a token from a dict of its fields.

    Raises:
        ValueError: If the dict lacks `content`, or has an unknown field or an invalid value.
    """
    try:
        return AddedToken(**fields)
    except TypeError:
        raise ValueError(f"An added token has a `content` and flags, got {dict(fields)!r:.100}.") from None


class TextPart(NamedTuple):
    """A part of a text, from offset `start` to `end`: an added token, or the text between two added tokens.

    Attributes:
        id: int, id of the added token, or None for the text between two tokens.
        start: int, offset of the first character.
        end: int, offset after the last character.
        text: str, the part, normalized if the splitter normalizes texts.
        offsets: list of pairs, start and end of the origin of each character in `text`. Only set for normalized text
            between tokens, and only valid if requested by `with_offsets`.
    """

    id: int | None
    start: int
    end: int
    text: str
    offsets: Sequence[tuple[int, int]] = ()


class TextCutter:
    """A splitter of texts at added tokens, for tokenizers that do not run on a `tokenizers.Tokenizer`.

    Args:
        tokens: list of `AddedToken` to match.
        ids: dict from tokens to ids.
        normalizer: `tokenizers.normalizers.Normalizer` of texts and of tokens with the flag `normalized`, or None.

    Attributes:
        normalizes: bool, whether text between tokens is normalized, since some tokens are matched in normalized text.

    Example:

    ```python
    from lmzoo.text.tokenizers.added_tokens import AddedToken, TextCutter

    cutter = TextCutter([AddedToken("[E1]", rstrip=True)], {"[E1]": 7})
    [part.text for part in cutter.cut(["[E1] A film"])[0]]  # ['[E1] ', 'A film']
    ```
    """

    def __init__(
        self, tokens: Iterable[AddedToken], ids: Mapping[str, int], normalizer: Normalizer | None = None
    ) -> None:
        # Imported here so that `import lmzoo` stays as light as Keras.
        from tokenizers import Regex, Tokenizer, models, pre_tokenizers

        tokens = list(tokens)
        self.normalizes = normalizer is not None and any(token.normalized for token in tokens)
        # To `_backend`, the text between two added tokens is one unknown word; to `_characters`, each character is one.
        self._backend = Tokenizer(models.Unigram([("", 0.0)], 0, byte_fallback=False))
        self._characters = Tokenizer(models.Unigram([("", 0.0)], 0, byte_fallback=False))
        self._characters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        if not self.normalizes:
            self._backend = Tokenizer(models.WordLevel({"": 0}, unk_token=""))  # quicker, but forgets the text
        for backend in (self._backend, self._characters):
            if normalizer is not None and self.normalizes:
                backend.normalizer = normalizer
            backend.add_tokens([token.to_library() for token in tokens])
        self._ids: list[int | None] = [None, *(ids[token.content] for token in tokens)]

    def cut(self, texts: list[str], with_offsets: bool = False) -> list[list[TextPart]]:
        """Return the parts of each text.

        Args:
            texts: list of strings.
            with_offsets: bool, whether normalized parts have the `offsets` of their characters.
        """
        if not self.normalizes:
            encodings = self._backend.encode_batch(texts, add_special_tokens=False)
            return [self._parts(text, encoding) for text, encoding in zip(texts, encodings, strict=True)]
        backend = self._characters if with_offsets else self._backend
        return [
            self._find_normalized_parts(encoding) for encoding in backend.encode_batch(texts, add_special_tokens=False)
        ]

    def _parts(self, text: str, encoding: tokenizers.Encoding) -> list[TextPart]:
        """Return the parts of one text from its encoding by `tokenizers`."""
        parts: list[TextPart] = []
        end = 0
        for library_id, span in zip(encoding.ids, encoding.offsets, strict=True):
            if library_id:
                if end < span[0]:
                    parts.append(TextPart(None, end, span[0], text[end : span[0]]))
                parts.append(TextPart(self._ids[library_id], *span, text[slice(*span)]))
                end = span[1]
        return [*parts, TextPart(None, end, len(text), text[end:])] if end < len(text) else parts

    def _find_normalized_parts(self, encoding: tokenizers.Encoding) -> list[TextPart]:
        """Return the parts of one normalized text from its encoding, in which each token is a part or a character."""
        parts: list[TextPart] = []
        encoded_tokens = zip(encoding.ids, encoding.tokens, encoding.offsets, strict=True)
        for library_id, group in itertools.groupby(encoded_tokens, key=lambda encoded_token: encoded_token[0]):
            tokens = list(group)
            offsets = [span for _, _, span in tokens]
            if library_id:
                parts += [TextPart(self._ids[library_id], *span, text) for _, text, span in tokens]
            else:
                text = "".join(text for _, text, _ in tokens)
                parts.append(TextPart(None, offsets[0][0], offsets[-1][1], text, offsets))
        return parts
