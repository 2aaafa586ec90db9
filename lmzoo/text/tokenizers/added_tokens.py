"""Tokens that are found in texts before these are split into words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import tokenizers
    from tokenizers.normalizers import Normalizer


@dataclass(frozen=True)
class AddedToken:
    r"""A token that is found in texts before these are split into words, as in Hugging Face's `tokenizers`.

    Of several tokens that begin at the same character, the longest is found.

    Args:
        content: the token.
        lstrip: whether the token includes the whitespace before it.
        rstrip: whether the token includes the whitespace after it.
        single_word: whether the token is found only where neither a letter, a digit nor "_" is next to it.
        normalized: whether the token is normalized, and then found in the normalized text: for example in any case, if
            the tokenizer lowercases.
        special: whether the token is special: it is never masked, and is not part of a text that is decoded.

    Raises:
        ValueError: if `content` is empty or not a string, or a flag is neither true nor false.

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
        """Return the token as an object of `tokenizers`."""
        # Imported here so that `import lmzoo` stays as light as Keras.
        from tokenizers import AddedToken as TheirToken

        return TheirToken(**asdict(self))


def special_token(content: str, lstrip: bool = False) -> AddedToken:
    """Return a special token that is found as it is written."""
    return AddedToken(content, lstrip=lstrip, normalized=False, special=True)


def read_added_tokens(
    tokens: Iterable[str | AddedToken | Mapping[str, Any]], special: bool = False
) -> list[AddedToken]:
    """Return each token once, the last one of equal contents, in the order of the first ones.

    Args:
        tokens: tokens, strings, or the fields of tokens as a configuration has them.
        special: whether strings are special tokens.

    Raises:
        ValueError: for an entry that is no token.
    """
    if isinstance(tokens, str):
        raise ValueError(f"Tokens must be a list, got {tokens!r:.60}.")
    by_content: dict[str, AddedToken] = {}
    for token in tokens:
        if isinstance(token, Mapping):
            token = _of_fields(token)
        elif not isinstance(token, AddedToken):
            token = AddedToken(token, normalized=not special, special=special)
        by_content[token.content] = token
    return list(by_content.values())


def _of_fields(fields: Mapping[str, Any]) -> AddedToken:
    try:
        return AddedToken(**fields)
    except TypeError:
        raise ValueError(f"An added token has a `content` and flags, got {dict(fields)!r:.100}.") from None


class TextPart(NamedTuple):
    """A part of a text, `text[start:end]`: an added token with this id, or what is between two if `id` is None."""

    id: int | None
    start: int
    end: int


class TextCutter:
    """A search for added tokens in texts, for tokenizers that do not run on a `tokenizers.Tokenizer`.

    Args:
        tokens: the tokens to find.
        ids: token -> id.
        normalizer: normalizes texts and tokens, to find the tokens that are normalized.

    Example:

    ```python
    from lmzoo.text.tokenizers.added_tokens import AddedToken, TextCutter

    cutter = TextCutter([AddedToken("[E1]", rstrip=True)], {"[E1]": 7})
    cutter.cut(["[E1] A film"])  # [[(7, 0, 5), (None, 5, 11)]]
    ```
    """

    def __init__(
        self, tokens: Iterable[AddedToken], ids: Mapping[str, int], normalizer: Normalizer | None = None
    ) -> None:
        # Imported here so that `import lmzoo` stays as light as Keras.
        from tokenizers import Tokenizer, models

        tokens = list(tokens)
        # A tokenizer to which every text between added tokens is one unknown word.
        self._backend = Tokenizer(models.WordLevel({"": 0}, unk_token=""))
        if normalizer is not None and any(token.normalized for token in tokens):
            self._backend.normalizer = normalizer
        self._backend.add_tokens([token.to_library() for token in tokens])
        self._ids: list[int | None] = [None, *(ids[token.content] for token in tokens)]

    def cut(self, texts: list[str]) -> list[list[TextPart]]:
        """Return the parts of each text."""
        encodings = self._backend.encode_batch(texts, add_special_tokens=False)
        return [self._parts(text, encoding) for text, encoding in zip(texts, encodings, strict=True)]

    def _parts(self, text: str, encoding: tokenizers.Encoding) -> list[TextPart]:
        parts: list[TextPart] = []
        end = 0
        for number, span in zip(encoding.ids, encoding.offsets, strict=True):
            if number:
                if end < span[0]:
                    parts.append(TextPart(None, end, span[0]))
                parts.append(TextPart(self._ids[number], *span))
                end = span[1]
        return [*parts, TextPart(None, end, len(text))] if end < len(text) else parts
