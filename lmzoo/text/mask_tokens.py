"""Positions of mask tokens, and of tokens that may be masked."""

from __future__ import annotations

import numpy as np

from lmzoo.text.packing import EncodedTexts, ranges
from lmzoo.text.tokenizers.tokenizer import Tokenizer


def maskable(tokenizer: Tokenizer, ids: np.ndarray) -> np.ndarray:
    """Return whether each token may be masked: bool, in the shape of `ids`.

    Special tokens may not be masked, except for the unknown token.
    """
    special = [tokenizer.token_to_id(token) for token in tokenizer.special_tokens if token != tokenizer.unk_token]
    return ~np.isin(ids, special)


def find_masks(tokenizer: Tokenizer, encoded: EncodedTexts) -> tuple[np.ndarray, np.ndarray]:
    """Return the sequence index and the position of every mask token: two int64 (total,)."""
    flat_positions = np.flatnonzero(encoded.token_ids == tokenizer.mask_id)
    sequence = np.searchsorted(encoded.sequence_splits, flat_positions, side="right") - 1
    return sequence, flat_positions - encoded.sequence_splits[sequence]


def mask_positions(tokenizer: Tokenizer, encoded: EncodedTexts) -> np.ndarray:
    """Return the positions of the mask tokens of each sequence, at most M: int32 (n, M), padded with 0."""
    sequence, position = find_masks(tokenizer, encoded)
    counts = np.bincount(sequence, minlength=len(encoded))
    positions = np.zeros((len(encoded), max(1, counts.max(initial=0))), "int32")
    positions[sequence, ranges(np.zeros_like(counts), counts)] = position
    return positions
