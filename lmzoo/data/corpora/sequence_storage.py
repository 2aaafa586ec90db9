"""Storage of blocks of sequences, in memory or in a file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from lmzoo.data.corpora.tokenized_documents import make_splits
from lmzoo.errors import ArgumentError
from lmzoo.text import Preprocessor
from lmzoo.text.preprocessor import check_is_preprocessor


def room_in_sequence(preprocessor: Preprocessor, pair: bool) -> int:
    """Return the number of tokens, besides special tokens, that fit into a sequence of one segment or of a pair.

    Raises:
        TypeError: If `preprocessor` is not a preprocessor.
        ValueError: If `sequence_length` has no room for one token, or for one token per segment of a pair.
    """
    check_is_preprocessor(preprocessor)
    length = preprocessor.sequence_length
    overhead = preprocessor.packing.overhead(pair)
    room = length - overhead
    min_room = 2 if pair else 1
    if room < min_room:
        raise ArgumentError(
            f"`sequence_length` is {length}, which leaves room for {max(0, room)} tokens{' of a pair' * pair}: it must "
            f"be at least {overhead + min_room}.",
            "sequence_length",
        )
    return room


def join_blocks(
    blocks: Iterable[tuple[np.ndarray, np.ndarray]], folder: Path | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate blocks of sequences into the arrays of `EncodedTexts`.

    Args:
        blocks: iterable of `(token_ids, lengths)`: the tokens of consecutive sequences, and the sequences' lengths.
        folder: path, directory for a temporary file of the tokens, which exists as long as the array; None to keep the
            tokens in memory.

    Returns:
        `(token_ids, sequence_splits)`: the tokens of all n sequences, read-only if they are in a file, and the
        boundaries of the sequences, int64 (n + 1,).

    Raises:
        OSError: If the temporary file cannot be written.
    """
    length_blocks = [np.zeros(0, "int32")]

    def collect_blocks() -> Iterator[np.ndarray]:
        for block_ids, block_lengths in blocks:
            length_blocks.append(block_lengths)
            yield block_ids

    if folder is None:
        token_ids = np.concatenate([np.zeros(0, "int32"), *collect_blocks()])
    else:
        # Write the file before mapping it: on a full disk, writing to a map would kill the process without an error.
        with tempfile.TemporaryFile(dir=folder) as file:
            dtype = np.dtype("int32")
            for block_ids in collect_blocks():
                block_ids.tofile(file)
                dtype = block_ids.dtype
            file.flush()
            token_ids = np.asarray(np.memmap(file, dtype, "r")) if file.tell() else np.zeros(0, dtype)
    return token_ids, make_splits(np.concatenate(length_blocks))
