"""Rows that come block by block, in memory or in a file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from lmzoo.data.corpora.tokenized_documents import splits_of
from lmzoo.text import Preprocessor


def room_in_row(preprocessor: Preprocessor, pair: bool) -> int:
    """How many tokens fit into a row beside the special ones.

    Args:
        preprocessor: says how long a row is.
        pair: whether it holds two segments.

    Raises:
        ValueError: if there is not room for one, or for one of each segment.
    """
    length, overhead = preprocessor.sequence_length, preprocessor.packing.overhead(pair)
    room, least = length - overhead, 2 if pair else 1
    if room < least:
        raise ValueError(
            f"`sequence_length` is {length}, which leaves room for {max(0, room)} tokens{' of a pair' * pair}: it must "
            f"be at least {overhead + least}."
        )
    return room


def join_rows(
    blocks: Iterable[tuple[np.ndarray, np.ndarray]], folder: Path | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Rows that come block by block, as `EncodedTexts` wants them.

    Args:
        blocks: `(token_ids, lengths)` of some rows each, rows one after another.
        folder: where to keep the tokens in a file without a name, which goes with the array; None for memory.

    Returns:
        `token_ids` (total,), read-only if they are in a file, and `sequence_splits` int64 (n + 1,).

    Raises:
        OSError: if the file cannot be written.
    """
    lengths = [np.zeros(0, "int32")]
    if folder is None:
        parts = [np.zeros(0, "int32")]
        for ids, counts in blocks:
            parts.append(ids)
            lengths.append(counts)
        flat = np.concatenate(parts)
    else:
        # Written and not mapped at once: a full disk would end the process instead of raising an error.
        with tempfile.TemporaryFile(dir=folder) as file:
            dtype = np.dtype("int32")
            for ids, counts in blocks:
                ids.tofile(file)
                dtype = ids.dtype
                lengths.append(counts)
            file.flush()
            flat = np.asarray(np.memmap(file, dtype, "r")) if file.tell() else np.zeros(0, dtype)
    return flat, splits_of(np.concatenate(lengths))
