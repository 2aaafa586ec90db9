"""From generated tokens to text, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence

from lmzoo.text.tokenizers.tokenizer import Tokenizer

_UNFINISHED = "\ufffd"  # what the first bytes of a character become


class TextPieces:
    """The text of tokens that arrive in parts.

    Text is held back until it is certain: the first bytes of a character until the others are there, and what may be
    the beginning of a stop string. The text ends before the first stop string.

    Args:
        tokenizer: of the tokens.
        before: the tokens before the first one, which may be part of its word.
        stop: strings that end the text.

    Example:

    ```python
    from lmzoo.text import BytePairTokenizer
    from lmzoo.text.text_pieces import TextPieces

    tokenizer = BytePairTokenizer.of_words(["film"], size=270)
    pieces = TextPieces(tokenizer, [], stop=["!"])
    ids = tokenizer.tokenize(["É, a film! No"])[0]
    [pieces.add(ids[:1]), pieces.add(ids[1:5]), pieces.add(ids[5:])]  # ['', 'É, a', ' film']
    ```
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = (), stop: Sequence[str] = ()) -> None:
        self.tokenizer, self.tokens, self.stop = tokenizer, list(before), tuple(stop)
        self.ended = False
        self._given = len(tokenizer.detokenize(self.tokens))
        self._first = self._given

    @property
    def text(self) -> str:
        """All text so far, whether certain or not, up to a stop string."""
        text = self.tokenizer.detokenize(self.tokens)
        places = [place for stop in self.stop if (place := text.find(stop, self._first)) >= 0]
        self.ended = self.ended or bool(places)
        return text[: min(places, default=len(text))]

    def add(self, tokens: Sequence[int]) -> str:
        """Return the text that became certain with these tokens."""
        if self.ended:
            return ""
        self.tokens += tokens
        text = self.text
        return self._give(text if self.ended else text[: self._certain(text)])

    def rest(self) -> str:
        """Return what was held back, once no more tokens come."""
        return self._give(self.text)

    def _certain(self, text: str) -> int:
        """Return how many characters no later token can change."""
        certain = len(text.rstrip(_UNFINISHED))
        for stop in self.stop:
            begun = next((n for n in range(min(len(stop) - 1, certain), 0, -1) if text[:certain].endswith(stop[:n])), 0)
            certain = min(certain, certain - begun)
        return certain

    def _give(self, text: str) -> str:
        piece, self._given = text[self._given :], max(self._given, len(text))
        return piece


def tokens_holding(tokenizer: Tokenizer, stops: Sequence[str]) -> list[int]:
    """Return the ids of the tokens that hold one of these strings."""
    if not stops:
        return []
    texts = map(tokenizer.text_of, tokenizer.vocabulary)
    return [id for id, text in enumerate(texts) if any(stop in text for stop in stops)]
