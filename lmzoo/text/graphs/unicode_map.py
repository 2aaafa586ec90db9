"""How a WordPiece tokenizer changes each code point, as a small table that a graph can hold.

The table is measured by running the tokenizer's own normalizer and word splitter on every code point, so that it always
follows their version of Unicode.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from lmzoo.text.tokenizers.wordpiece import WordPieceTokenizer

RANK_UNIT = 1 << 21  # more than any code point; a combining mark has this added once per rank
NOTHING = -1
BLOCKER = 0  # replaces a dropped character that combining marks do not move across
PRIVATE_USE = 0xE000  # the first of the private-use characters, which the normalizer drops
_SPACE, _SEPARATOR = 0x20, 0x30  # "0": no character becomes a digit, and a digit is a word character
_LAST_MARK = 0x345  # the combining mark that sorts after all others


class CharacterMap(NamedTuple):
    """The replacements of all code points, in runs of code points that are treated alike.

    Code point c of run r becomes the W values `base[r] + step[r] * c`. Each is a code point (for a combining mark plus
    `RANK_UNIT` times its rank), `NOTHING` or `BLOCKER`. Ideographs and punctuation get spaces around them if they are
    split off.

    Attributes:
        starts: int32 (R,), first code point of each run, rising from 0.
        base: int32 (R, W).
        step: int32 (R, W), 0 or 1.
    """

    starts: np.ndarray
    base: np.ndarray
    step: np.ndarray


@functools.lru_cache(maxsize=8)
def character_map(
    lowercase: bool, strip_accents: bool | None, split_on_cjk: bool = True, split_punctuation: bool = True
) -> CharacterMap:
    """Return the map of a `WordPieceTokenizer` with these options. Takes a second or two; the result is cached.

    Without `split_punctuation`, it is the map of the normalizer alone.

    Example:

    ```python
    from lmzoo.text.graphs.unicode_map import character_map

    table = character_map(lowercase=True, strip_accents=None)
    run = table.starts.searchsorted(ord("É"), side="right") - 1
    table.base[run] + table.step[run] * ord("É")  # [101, -1, -1]: "e"
    ```
    """
    tokenizer = WordPieceTokenizer(WordPieceTokenizer.special_tokens, lowercase, strip_accents, split_on_cjk).backend
    normalize, split = tokenizer.normalizer.normalize_str, tokenizer.pre_tokenizer.pre_tokenize_str

    codes = code_points()  # (N,)
    after = to_codes(normalize(to_text(_rows(codes, _SEPARATOR))))
    seen = np.flatnonzero(np.bincount(after))
    pieces = {piece for piece, _ in split("0".join(map(chr, seen)))}
    punctuation = [ord(piece) for piece in pieces if len(piece) == 1 and piece != "0"]

    padded = np.isin(after, punctuation) & split_punctuation
    width = 1 + 2 * padded
    values = np.full(width.sum(), _SPACE)
    values[np.cumsum(width) - width + padded] = after

    ends = np.flatnonzero(values == _SEPARATOR)
    ends = np.delete(ends, _SEPARATOR)  # the separator as one of the code points
    lengths = np.diff(ends, prepend=-1) - 1
    index = ends - lengths
    table = np.full((len(codes), lengths.max()), NOTHING)
    for column in range(table.shape[1]):
        there = column < lengths
        table[there, column] = values[index[there] + column]

    if normalize("é") != "é":  # accents are stripped: the normalizer decomposes characters and sorts marks
        marks, ranks = ranked_marks(seen)
        is_mark = np.isin(table, marks)
        table[is_mark] += ranks[np.searchsorted(marks, table[is_mark])] * RANK_UNIT
        low, high = marks[ranks.argmin()], marks[ranks.argmax()]
        gone = np.flatnonzero(lengths == 0)
        probe = to_codes(normalize(to_text(_rows(_SEPARATOR, high, codes[gone], low)))).reshape(-1, 3)
        table[gone[probe[:, 1] == high], 0] = BLOCKER
    return _runs(codes, table)


def code_points() -> np.ndarray:
    """Return the code points that show how all are treated, int64 (N,), rising.

    Surrogates are not characters, and planes 4 to 13 are empty: both ends of these stand for the rest.
    """
    return np.concatenate([np.arange(0xD800), np.arange(0xE000, 0x40001), np.arange(0xDFFFF, 0x110000)])


def _rows(*columns: np.ndarray | int) -> np.ndarray:
    return np.stack(np.broadcast_arrays(*columns), axis=1)


def to_text(codes: np.ndarray) -> str:
    """Return the text of code points."""
    return codes.astype("<u4").tobytes().decode("utf-32-le")


def to_codes(text: str) -> np.ndarray:
    """Return the code points of a text, int64 (c,)."""
    return np.frombuffer(text.encode("utf-32-le"), "<u4").astype("int64")


def ranked_marks(seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return combining marks that survive accent stripping, and the order in which normalization sorts adjacent ones.

    Returns:
        `marks` (M,), rising, and `ranks` (M,), from 1; marks of equal rank keep their order.
    """
    from tokenizers import normalizers

    sort = normalizers.NFD().normalize_str
    # Every character that moves in front of the mark that sorts last is a mark.
    after = to_codes(sort(to_text(_rows(_SEPARATOR, _LAST_MARK, seen)))).reshape(-1, 3)
    marks = after[after[:, 2] == _LAST_MARK, 1]
    in_order = to_codes(sort(to_text(marks)))
    swapped = _rows(_SEPARATOR, in_order[1:], in_order[:-1])
    differ = (to_codes(sort(to_text(swapped))).reshape(-1, 3) != swapped)[:, 1]
    ranks = 1 + np.concatenate([[0], np.cumsum(differ)])
    return marks, ranks[np.argsort(in_order)]


def _runs(codes: np.ndarray, table: np.ndarray) -> CharacterMap:
    """Compress a table of values into runs of code points whose values are constant or rise with the code point."""
    change = np.diff(table, axis=0)
    rises = change == np.diff(codes)[:, None]
    steady = (rises | (change == 0)).all(axis=1)
    # i + 1 continues the run of i if the values change in the same way as before.
    joins = steady.copy()
    joins[1:] &= ~steady[:-1] | (rises[1:] == rises[:-1]).all(axis=1)
    first = np.flatnonzero(np.concatenate([[True], ~joins]))
    several = np.diff(first, append=len(table))[:, None] > 1
    step = rises[np.minimum(first, len(rises) - 1)] & several
    base = table[first] - step * codes[first][:, None]
    return CharacterMap(codes[first].astype("int32"), base.astype("int32"), step.astype("int32"))
