"""Word splitting with offsets, in the style of the Penn Treebank.

The published ELMo models were trained on text that was split in this way. The rules look only a few characters ahead
and back, so that `lmzoo.text.graphs.word_splitting` can express them in TensorFlow ops, with the character kinds of
this module.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np

# Kinds of characters. An ATTACHED character, such as a mark or a joiner, always stays with the character before it.
SPACE, LETTER, DIGIT, ATTACHED, PUNCTUATION, OTHER = range(6)

APOSTROPHES = "'\u2019"
HYPHENS = "-\u2010\u2011"
JOINER = "\u200d"  # joins emoji into one

_KIND_OF_CATEGORY = {"Z": SPACE, "L": LETTER, "N": LETTER, "Nd": DIGIT, "M": ATTACHED, "Cf": ATTACHED, "P": PUNCTUATION}
_KIND_OF_CHARACTERS = {
    "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85": SPACE,  # all that str.isspace() accepts
    "_": LETTER,
    "$+<=>^`|~": PUNCTUATION,  # Unicode calls them symbols; "``" is a quotation mark of the Penn Treebank
    "\u200b\ufeff": OTHER,  # zero-width spaces are not part of words
    "".join(map(chr, range(0x1F3FB, 0x1F400))): ATTACHED,  # skin tones
}


@functools.cache
def character_kinds() -> tuple[np.ndarray, np.ndarray]:
    """Return the kinds of all code points, as runs of the same kind, by this Python's version of Unicode.

    Returns:
        Two int32 arrays (R,) for R runs: the first code point of each run, in ascending order from 0, and the kind of
        the run (`SPACE`, `LETTER`, `DIGIT`, `ATTACHED`, `PUNCTUATION` or `OTHER`).
    """
    categories = [*map(unicodedata.category, map(chr, range(sys.maxunicode + 1)))]
    kind_by_category = {c: _KIND_OF_CATEGORY.get(c, _KIND_OF_CATEGORY.get(c[0], OTHER)) for c in set(categories)}
    kinds = np.array([kind_by_category[category] for category in categories], "int32")
    for characters, kind in _KIND_OF_CHARACTERS.items():
        kinds[[ord(character) for character in characters]] = kind
    starts = np.flatnonzero(np.diff(kinds, prepend=-1))
    return starts.astype("int32"), kinds[starts]


@functools.cache
def _compile_pattern(limit: int) -> re.Pattern[str]:
    """Return a pattern that matches the words of texts without code points above `limit`; a lower limit is faster."""
    starts, kinds = (array.tolist() for array in character_kinds())
    runs = [*zip(starts, [start - 1 for start in starts[1:]] + [sys.maxunicode], kinds, strict=True)]

    def make_ranges(*selected_kinds: int) -> str:
        ranges = [(first, min(last, limit)) for first, last, kind in runs if kind in selected_kinds and first <= limit]
        return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)

    letter = f"[{make_ranges(LETTER)}]"
    digit = f"[{make_ranges(DIGIT)}]"
    letter_or_digit = f"[{make_ranges(LETTER, DIGIT)}]"
    in_word = f"[{make_ranges(LETTER, DIGIT, ATTACHED)}]"
    # An unassigned code point stands for a kind without characters.
    attached_class, other_class = (f"[{make_ranges(kind) or chr(0x378)}]" for kind in (ATTACHED, OTHER))
    apostrophe = f"[{APOSTROPHES}]"
    word_end = f"(?!{in_word})"

    clitic = f"(?:[nN]{apostrophe}[tT]|{apostrophe}(?:[sSmMdD]|[rRvV][eE]|[lL][lL])){word_end}"
    # Characters of a word, up to the "n" of "n't". An initial is a letter without other word characters next to it.
    word_characters = f"{in_word}+(?!(?<=[nN]){apostrophe}[tT]{word_end})"
    after_initial = f"(?<={letter})(?<!{in_word}{letter})"
    before_initial = f"(?={letter}{word_end})"
    joiner = (
        f"(?=[{HYPHENS}{APOSTROPHES}.,])(?!{clitic})"
        f"(?:[{HYPHENS}{APOSTROPHES}](?={letter_or_digit})|(?<={digit})[.,](?={digit})|{after_initial}\\.{before_initial})"
    )
    final_point = f"\\.(?<={letter}\\.{letter}\\.)(?<!{in_word}{letter}\\.{letter}\\.)(?!\\.|{attached_class})"
    word = f"{word_characters}(?:{joiner}{word_characters})*(?:{final_point})?"
    punctuation = f"([{make_ranges(PUNCTUATION)}])\\1*{attached_class}*"
    symbol = f"{other_class}{attached_class}*(?:(?<={JOINER}){other_class}{attached_class}*)*"
    return re.compile(f"{clitic}|{word}|{punctuation}|{symbol}")


def split_words(text: str) -> list[tuple[str, int, int]]:
    """Split a text into words with their offsets.

    * Whitespace separates words and is dropped; every other character is in a word.
    * Consecutive letters, digits, combining marks and underscores form a word. Hyphens and apostrophes inside it stay
      ("well-known", "o'clock"), and so do periods and commas between digits ("1,000.5") and the periods of initials
      ("U.S.", "e.g.").
    * The clitics 's, 're, 've, 'm, 'll, 'd and n't at the end of a word are words of their own: "do" "n't".
    * A punctuation character is a word; repetitions of the same character form one word ("...", "--").
    * Any other symbol is a word, together with its combining marks, skin tones and the symbols that zero-width joiners
      add to it.

    Text in scripts without spaces between words is not split; pass lists of words instead.

    Returns:
        `(word, start, end)` for each word, where `text[start:end] == word`.

    Example:

    ```python
    from lmzoo.text.word_splitting import split_words

    split_words("Don't!")  # [("Do", 0, 2), ("n't", 2, 5), ("!", 5, 6)]
    ```
    """
    return [(match[0], *match.span()) for match in _match_words(text)]


def place_words(text: str | Sequence[str]) -> list[tuple[str, int, int]]:
    """Return the words of a text, or of a list of words joined by spaces, with their offsets."""
    if isinstance(text, str):
        return split_words(text)
    ends = np.cumsum([len(word) + 1 for word in text], dtype="int64") - 1
    return [(word, end - len(word), end) for word, end in zip(text, ends.tolist(), strict=True)]


def list_words(text: str) -> list[str]:
    """Split a text into words as `split_words` does, but without offsets, which is faster."""
    return [match[0] for match in _match_words(text)]


def _match_words(text: str) -> Iterator[re.Match[str]]:
    """Yield a match for each word."""
    limit = 0x7F if text.isascii() else 0xFFFF if max(text) <= "\uffff" else sys.maxunicode
    return _compile_pattern(limit).finditer(text)
