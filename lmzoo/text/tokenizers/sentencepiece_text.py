"""How ALBERT cleans a text before SentencePiece splits it."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

QUOTES = ("``", "''")  # a double quote in PTB-style text
_QUOTES = re.compile("|".join(QUOTES))
_SEPARATOR = "\x01"  # not changed
WHITE_SPACE = [c for c in map(chr, range(0x3001)) if c.isspace() and not "\x1c" <= c <= "\x1f"]  # Unicode's property
# The characters that may change. Surrogates are not characters, and planes 4 to 13, 15 and 16 are empty or private.
_SPANS = (0, 0xD800), (0xE000, 0x40000), (0xE0000, 0xF0000)


class CharacterMap(dict[int, str]):
    """A map from code points to the text that replaces them; filled as `str.translate` looks them up.

    The steps are Hugging Face's: compatibility decomposition and the removal of combining marks unless accents are
    kept, then lower-casing. Whitespace becomes a space. Characters can be mapped one by one: decomposition reorders
    only combining marks, which are removed.

    Attributes:
        steps: the steps as a normalizer of `tokenizers`.
    """

    def __init__(self, lowercase: bool, keep_accents: bool) -> None:
        # Imported here so that `import lmzoo` stays as light as Keras.
        from tokenizers import normalizers

        steps = [] if keep_accents else [normalizers.NFKD(), normalizers.StripAccents()]
        self.steps = normalizers.Sequence([*steps, *([normalizers.Lowercase()] if lowercase else [])])

    def __missing__(self, code: int) -> str:
        self[code] = _spaces(self.steps.normalize_str(chr(code)))
        return self[code]

    def changes(self) -> dict[int, str]:
        """Return the code points of all characters that change, with the text that replaces them."""
        codes = [c for c in every_character() if c != _SEPARATOR]
        after = self.steps.normalize_str(_SEPARATOR.join(codes)).split(_SEPARATOR)
        mapped = zip(codes, map(_spaces, after), strict=True)
        return {ord(code): text for code, text in mapped if text != code}


def every_character() -> list[str]:
    """Return all Unicode characters that may change."""
    return [chr(code) for span in _SPANS for code in range(*span)]


def _spaces(text: str) -> str:
    return "".join(" " if c.isspace() else c for c in text)


character_map = functools.lru_cache(maxsize=8)(CharacterMap)


class Aligned(NamedTuple):
    """A cleaned text and the characters of the original that its characters come from.

    Attributes:
        text: the cleaned text of c characters.
        starts: int64 (c + 1,), where the origin of each character starts, and the end of the original.
        ends: int64 (c,), where the origin of each character ends.
    """

    text: str
    starts: np.ndarray
    ends: np.ndarray


def clean(text: str, characters: CharacterMap, quotes: bool = True) -> str:
    """Return the text with every character mapped, whitespace squeezed and, with `quotes`, PTB quotes replaced.

    Example:

    ```python
    from lmzoo.text.tokenizers.sentencepiece_text import character_map, clean

    clean("  A ``naïve''  ﬁlm", character_map(lowercase=True, keep_accents=False))  # 'a "naive" film'
    ```
    """
    for quote in QUOTES if quotes else ():
        text = text.replace(quote, '"')
    return " ".join(text.translate(characters).split())


def align(text: str, characters: CharacterMap, begin: int = 0, quotes: bool = True) -> Aligned:
    """As `clean`, with offsets, counted from `begin`."""
    after = list(map(characters.__getitem__, map(ord, text)))
    width = np.ones(len(text), "int64")  # characters of the original that `after[i]` replaces
    for match in _QUOTES.finditer(text) if quotes else ():
        after[match.start() : match.end()] = '"', ""
        width[match.start()] = 2
    return squeeze(after, width, begin)


def squeeze(after: Sequence[str], width: np.ndarray, begin: int) -> Aligned:
    """Join what replaces the characters of a text, without extra spaces.

    Args:
        after: The text that replaces each of c characters; "" if it is removed, or replaced by the one before.
        width: int64 (c,), the characters that each of `after` replaces.
        begin: Offset of the first character.
    """
    source = np.repeat(np.arange(len(after)), list(map(len, after)))  # (c,)
    codes = np.frombuffer("".join(after).encode("utf-32-le"), "<u4")  # (c,)
    space = codes == ord(" ")
    kept = ~space | ~np.concatenate([[True], space[:-1]])[: len(space)]
    source, cleaned = source[kept], codes[kept].tobytes().decode("utf-32-le").rstrip(" ")
    starts, ends = begin + source, begin + source + width[source]
    return Aligned(cleaned, np.concatenate([starts, [begin + len(after)]]), ends[: len(cleaned)])
