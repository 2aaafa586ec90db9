"""ALBERT's cleaning of a text before SentencePiece splits it."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

QUOTES = ("``", "''")  # double quotes in PTB-style text
_QUOTE_PATTERN = re.compile("|".join(QUOTES))
_SEPARATOR = "\x01"  # a character that no step changes
# Characters with Unicode's property White_Space.
WHITE_SPACE = [c for c in map(chr, range(0x3001)) if c.isspace() and not "\x1c" <= c <= "\x1f"]
# Ranges of characters that may change. Surrogates are not characters; planes 4 to 13, 15 and 16 are empty or private.
_CODE_POINT_RANGES = (0, 0xD800), (0xE000, 0x40000), (0xE0000, 0xF0000)


class CharacterMap(dict[int, str]):
    """Map from each code point to its replacement text, which is computed when `str.translate` looks it up.

    The steps are Hugging Face's: compatibility decomposition and the removal of combining marks (both skipped if
    accents are kept), then lowercasing. Whitespace becomes a space. Characters can be mapped one by one: decomposition
    reorders only combining marks, which are removed.

    Attributes:
        steps: the steps before whitespace becomes a space, as a `tokenizers.normalizers.Normalizer`.
    """

    def __init__(self, lowercase: bool, keep_accents: bool) -> None:
        # Imported here so that `import lmzoo` stays as light as Keras.
        from tokenizers import normalizers

        steps = [] if keep_accents else [normalizers.NFKD(), normalizers.StripAccents()]
        self.steps = normalizers.Sequence([*steps, *([normalizers.Lowercase()] if lowercase else [])])

    def __missing__(self, code: int) -> str:
        self[code] = _replace_whitespace(self.steps.normalize_str(chr(code)))
        return self[code]

    def changes(self, whitespace: bool = True) -> dict[int, str]:
        """Return the replacements of all characters that change, by code point.

        Args:
            whitespace: bool, whether whitespace becomes a space.
        """
        characters = [c for c in list_cleaned_characters() if c != _SEPARATOR]
        replacements = self.steps.normalize_str(_SEPARATOR.join(characters)).split(_SEPARATOR)
        replacement_pairs = zip(
            characters, map(_replace_whitespace, replacements) if whitespace else replacements, strict=True
        )
        return {ord(character): text for character, text in replacement_pairs if text != character}


def list_cleaned_characters() -> list[str]:
    """Return all Unicode characters that cleaning may change."""
    return [chr(code) for bounds in _CODE_POINT_RANGES for code in range(*bounds)]


def _replace_whitespace(text: str) -> str:
    """Replace each whitespace character by a space."""
    return "".join(" " if c.isspace() else c for c in text)


character_map = functools.lru_cache(maxsize=8)(CharacterMap)


class Aligned(NamedTuple):
    """A cleaned text, and the offsets of its characters in the original.

    Attributes:
        text: str, the cleaned text of c characters.
        starts: int64 (c + 1,), start of each character's origin, and the end of the original.
        ends: int64 (c,), end of each character's origin.
    """

    text: str
    starts: np.ndarray
    ends: np.ndarray


def clean(text: str, characters: CharacterMap, quotes: bool = True) -> str:
    """Clean a text: map each of its characters, collapse whitespace, and strip it at both ends.

    With `quotes`, two backticks or two apostrophes become one double quote.

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
    """Clean a text like `clean`, and return it with the original offsets of its characters, counted from `begin`."""
    replacements = list(map(characters.__getitem__, map(ord, text)))
    widths = np.ones(len(text), "int64")  # number of original characters that `replacements[i]` replaces
    for match in _QUOTE_PATTERN.finditer(text) if quotes else ():
        replacements[match.start() : match.end()] = '"', ""
        widths[match.start()] = 2
    return squeeze(replacements, widths, begin)


def squeeze(after: Sequence[str], width: np.ndarray, begin: int) -> Aligned:
    """Join the strings that replace a text's characters, collapse spaces, and strip them at both ends.

    Args:
        after: c strings that replace the c characters; "" if a character is removed, or replaced together with the
            previous character.
        width: int64 (c,), number of original characters that each string replaces.
        begin: int, offset of the first character.
    """
    origins = np.repeat(np.arange(len(after)), list(map(len, after)))  # (d,), for d characters after replacement
    codes = np.frombuffer("".join(after).encode("utf-32-le"), "<u4")  # (d,)
    is_space = codes == ord(" ")
    is_kept = ~is_space | ~np.concatenate([[True], is_space[:-1]])[: len(is_space)]
    origins = origins[is_kept]
    cleaned_text = codes[is_kept].tobytes().decode("utf-32-le").rstrip(" ")
    starts = begin + origins
    ends = begin + origins + width[origins]
    return Aligned(cleaned_text, np.concatenate([starts, [begin + len(after)]]), ends[: len(cleaned_text)])
