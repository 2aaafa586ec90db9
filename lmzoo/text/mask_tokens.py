"""Where mask tokens stand in rows of text, and where they may."""

from __future__ import annotations

import numpy as np

from lmzoo.text.packing import EncodedTexts
from lmzoo.text.tokenizers.tokenizer import Tokenizer


def maskable(tokenizer: Tokenizer, ids: np.ndarray) -> np.ndarray:
    """Where `ids` are not special tokens (an unknown word is an ordinary one here)."""
    special = [tokenizer.token_to_id(token) for token in tokenizer.special_tokens if token != tokenizer.unk_token]
    return ~np.isin(ids, special)


def find_masks(tokenizer: Tokenizer, encoded: EncodedTexts) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of every mask token."""
    flat = np.flatnonzero(encoded.token_ids == tokenizer.mask_id)
    row = np.searchsorted(encoded.sequence_splits, flat, side="right") - 1
    return row, flat - encoded.sequence_splits[row]


def mask_positions(tokenizer: Tokenizer, encoded: EncodedTexts) -> np.ndarray:
    """Int32 (n, M): where the mask tokens of each row stand, padded with 0."""
    row, column = find_masks(tokenizer, encoded)
    counts = np.bincount(row, minlength=len(encoded))
    positions = np.zeros((len(encoded), max(1, counts.max(initial=0))), "int32")
    positions[row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)] = column
    return positions
