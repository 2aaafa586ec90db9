"""Table of the changes that a WordPiece tokenizer makes to each code point, small enough for a graph.

The table is determined by running the tokenizer's own normalizer and word splitter on every code point, so that it
always follows their version of Unicode.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from lmzoo.text.tokenizers.wordpiece import WordPieceTokenizer

RANK_UNIT = 1 << 21  # more than any code point; the value of a combining mark is its code point plus rank times this
NOTHING = -1
BLOCKER = 0  # replaces a dropped character that combining marks do not move across
PRIVATE_USE = 0xE000  # the first of the private-use characters, which the normalizer drops
_SPACE = 0x20
_SEPARATOR = 0x30  # "0": no character becomes a digit, and a digit is a word character
_LAST_MARK = 0x345  # the combining mark that sorts after all other marks


class CharacterMap(NamedTuple):
    """The replacements of all code points, in runs of code points that are treated alike.

    Code point c of run r becomes the W values `base[r] + step[r] * c`. Each value is a code point (for a combining
    mark, plus `RANK_UNIT` times its rank), `NOTHING` for no character, or `BLOCKER` for a dropped character that marks
    do not move across. Ideographs and punctuation get spaces around them if they are split off.

    Attributes:
        starts: int32 (R,), first code point of each run, in ascending order from 0.
        base: int32 (R, W), constant part of the values of each run.
        step: int32 (R, W), 0 or 1, factor of the code point.
    """

    starts: np.ndarray
    base: np.ndarray
    step: np.ndarray


@functools.lru_cache(maxsize=8)
def character_map(
    lowercase: bool, strip_accents: bool | None, split_on_cjk: bool = True, split_punctuation: bool = True
) -> CharacterMap:
    """Return the map of a `WordPieceTokenizer` with these options.

    Without `split_punctuation`, the map covers the normalizer alone. The first call with given options takes a second
    or two.

    Example:

    ```python
    from lmzoo.text.graphs.unicode_map import character_map

    table = character_map(lowercase=True, strip_accents=None)
    run = table.starts.searchsorted(ord("É"), side="right") - 1
    table.base[run] + table.step[run] * ord("É")  # [101, -1, -1]: "e"
    ```
    """
    tokenizer = WordPieceTokenizer(WordPieceTokenizer.special_tokens, lowercase, strip_accents, split_on_cjk).backend
    normalize = tokenizer.normalizer.normalize_str
    split = tokenizer.pre_tokenizer.pre_tokenize_str

    codes = code_points()  # (N,)
    normalized_codes = to_codes(normalize(to_text(_stack_columns(codes, _SEPARATOR))))
    result_codes = np.flatnonzero(np.bincount(normalized_codes))
    pieces = {piece for piece, _ in split("0".join(map(chr, result_codes)))}
    punctuation = [ord(piece) for piece in pieces if len(piece) == 1 and piece != "0"]

    is_padded = np.isin(normalized_codes, punctuation) & split_punctuation
    widths = 1 + 2 * is_padded
    padded_codes = np.full(widths.sum(), _SPACE)
    padded_codes[np.cumsum(widths) - widths + is_padded] = normalized_codes

    ends = np.flatnonzero(padded_codes == _SEPARATOR)
    ends = np.delete(ends, _SEPARATOR)  # the separator as one of the code points
    lengths = np.diff(ends, prepend=-1) - 1
    first_indices = ends - lengths
    table = np.full((len(codes), lengths.max()), NOTHING)
    for column in range(table.shape[1]):
        has_value = column < lengths
        table[has_value, column] = padded_codes[first_indices[has_value] + column]

    if normalize("é") != "é":  # accents are stripped: the normalizer decomposes characters and sorts marks
        marks, ranks = ranked_marks(result_codes)
        is_mark = np.isin(table, marks)
        table[is_mark] += ranks[np.searchsorted(marks, table[is_mark])] * RANK_UNIT
        low_mark = marks[ranks.argmin()]
        high_mark = marks[ranks.argmax()]
        dropped_indices = np.flatnonzero(lengths == 0)
        sorted_probes = to_codes(
            normalize(to_text(_stack_columns(_SEPARATOR, high_mark, codes[dropped_indices], low_mark)))
        ).reshape(-1, 3)
        table[dropped_indices[sorted_probes[:, 1] == high_mark], 0] = BLOCKER
    return _compress_to_runs(codes, table)


def code_points() -> np.ndarray:
    """Return the code points for which tokenizers' rules are determined, in ascending order: int64 (N,).

    Surrogates are left out, since they are not characters. Planes 4 to 13 have no assigned characters, so that all
    their code points are treated alike; only the first and the last are included.
    """
    return np.concatenate([np.arange(0xD800), np.arange(0xE000, 0x40001), np.arange(0xDFFFF, 0x110000)])


def _stack_columns(*columns: np.ndarray | int) -> np.ndarray:
    """Broadcast columns, and return them as a single array."""
    return np.stack(np.broadcast_arrays(*columns), axis=1)


def to_text(codes: np.ndarray) -> str:
    """Convert an array of code points to a string."""
    return codes.astype("<u4").tobytes().decode("utf-32-le")


def to_codes(text: str) -> np.ndarray:
    """Convert a string to an array of code points, int64."""
    return np.frombuffer(text.encode("utf-32-le"), "<u4").astype("int64")


def ranked_marks(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the combining marks among code points, with the ranks by which normalization sorts adjacent marks.

    Returns:
        The M marks in ascending order, and their ranks from 1, (M,); marks of equal rank keep their order.
    """
    from tokenizers import normalizers

    sort = normalizers.NFD().normalize_str
    # A character that moves in front of the mark that sorts last is itself a mark.
    sorted_rows = to_codes(sort(to_text(_stack_columns(_SEPARATOR, _LAST_MARK, codes)))).reshape(-1, 3)
    marks = sorted_rows[sorted_rows[:, 2] == _LAST_MARK, 1]
    sorted_marks = to_codes(sort(to_text(marks)))
    swapped_rows = _stack_columns(_SEPARATOR, sorted_marks[1:], sorted_marks[:-1])
    is_reordered = (to_codes(sort(to_text(swapped_rows))).reshape(-1, 3) != swapped_rows)[:, 1]
    ranks = 1 + np.concatenate([[0], np.cumsum(is_reordered)])
    return marks, ranks[np.argsort(sorted_marks)]


def _compress_to_runs(codes: np.ndarray, table: np.ndarray) -> CharacterMap:
    """Compress a table of values into runs of code points whose values are constant or increase with the code point."""
    differences = np.diff(table, axis=0)
    increases = differences == np.diff(codes)[:, None]
    is_steady = (increases | (differences == 0)).all(axis=1)
    # Row i + 1 continues the run of row i if the values change in the same way as before.
    continues_run = is_steady.copy()
    continues_run[1:] &= ~is_steady[:-1] | (increases[1:] == increases[:-1]).all(axis=1)
    run_starts = np.flatnonzero(np.concatenate([[True], ~continues_run]))
    is_longer = np.diff(run_starts, append=len(table))[:, None] > 1
    steps = increases[np.minimum(run_starts, len(increases) - 1)] & is_longer
    bases = table[run_starts] - steps * codes[run_starts][:, None]
    return CharacterMap(codes[run_starts].astype("int32"), bases.astype("int32"), steps.astype("int32"))
