"""Positions of mask tokens, and of tokens that may be masked."""

from __future__ import annotations

import numpy as np

from lmzoo.text.packing import EncodedTexts, ranges
from lmzoo.text.tokenizers.tokenizer import Tokenizer


def maskable(tokenizer: Tokenizer, ids: np.ndarray) -> np.ndarray:
    """Return whether each token may be masked: bool, in the shape of `ids`.

    Special tokens may not be masked, except for the unknown token.
    """
    special_ids = [tokenizer.token_to_id(token) for token in tokenizer.special_tokens if token != tokenizer.unk_token]
    return ~np.isin(ids, special_ids)


def find_masks(tokenizer: Tokenizer, encoded: EncodedTexts) -> tuple[np.ndarray, np.ndarray]:
    """Return the sequence index and the position of every mask token: two int64 arrays (total,)."""
    flat_positions = np.flatnonzero(encoded.token_ids == tokenizer.mask_id)
    sequence_indices = np.searchsorted(encoded.sequence_splits, flat_positions, side="right") - 1
    return sequence_indices, flat_positions - encoded.sequence_splits[sequence_indices]


def mask_positions(tokenizer: Tokenizer, encoded: EncodedTexts) -> np.ndarray:
    """Return the positions of the mask tokens of each sequence, padded with 0: int32 (n, M).

    M is the largest number of mask tokens in a sequence, but at least 1.
    """
    sequence_indices, token_positions = find_masks(tokenizer, encoded)
    mask_counts = np.bincount(sequence_indices, minlength=len(encoded))
    padded_positions = np.zeros((len(encoded), max(1, mask_counts.max(initial=0))), "int32")
    padded_positions[sequence_indices, ranges(np.zeros_like(mask_counts), mask_counts)] = token_positions
    return padded_positions
