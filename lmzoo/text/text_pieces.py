"""Incremental detokenization of generated tokens."""

from __future__ import annotations

from collections.abc import Sequence

from lmzoo.text.tokenizers.tokenizer import Tokenizer

_INCOMPLETE = "\ufffd"  # the text of an incomplete character


class TextPieces:
    """Text of generated tokens, returned in pieces as the tokens arrive.

    Incomplete characters, and a possible beginning of a stop string, are buffered until no later token can change them.
    The text ends before the first stop string.

    Args:
        tokenizer: `lmzoo.text.Tokenizer` of the tokens.
        before: ids of the tokens before the generated tokens; the first generated token may continue their last word.
        stop: list of strings that end the text.

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
        self.tokenizer = tokenizer
        self.tokens = list(before)
        self.stop = tuple(stop)
        self.ended = False
        self._num_returned = len(tokenizer.detokenize(self.tokens))  # in characters
        self._first = self._num_returned

    @property
    def text(self) -> str:
        """Text of all tokens so far, up to the first stop string, including buffered text."""
        text = self.tokenizer.detokenize(self.tokens)
        stop_starts = [start for stop in self.stop if (start := text.find(stop, self._first)) >= 0]
        self.ended = self.ended or bool(stop_starts)
        return text[: min(stop_starts, default=len(text))]

    def add(self, tokens: Sequence[int]) -> str:
        """Add tokens, and return the text that has become final since the last call; "" after a stop string."""
        if self.ended:
            return ""
        self.tokens += tokens
        text = self.text
        return self._return_new(text if self.ended else text[: self._count_final_characters(text)])

    def rest(self) -> str:
        """Return the text still buffered after the last token."""
        return self._return_new(self.text)

    def _count_final_characters(self, text: str) -> int:
        """Return the length of the prefix of `text` that no later token can change."""
        num_final = len(text.rstrip(_INCOMPLETE))
        for stop in self.stop:
            overlap = next(
                (n for n in range(min(len(stop) - 1, num_final), 0, -1) if text[:num_final].endswith(stop[:n])), 0
            )
            num_final = min(num_final, num_final - overlap)
        return num_final

    def _return_new(self, text: str) -> str:
        """Return the part of `text` that was not returned before."""
        piece = text[self._num_returned :]
        self._num_returned = max(self._num_returned, len(text))
        return piece


class TokenPieces:
    """Generated tokens, returned in pieces as they arrive, with the methods of `TextPieces`."""

    ended = False

    def add(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens."""
        return [*tokens]

    def rest(self) -> list[int]:
        """Return an empty list, since no tokens are buffered."""
        return []


def tokens_holding(tokenizer: Tokenizer, stops: Sequence[str]) -> list[int]:
    """Return the ids of the tokens that contain any of the strings `stops`."""
    if not stops:
        return []
    texts = map(tokenizer.text_of, tokenizer.vocabulary)
    return [id for id, text in enumerate(texts) if any(stop in text for stop in stops)]
