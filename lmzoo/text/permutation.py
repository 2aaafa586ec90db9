"""Token orders for permutation language modeling."""

from __future__ import annotations

import numpy as np


def factorization_order(known: np.ndarray, lengths: np.ndarray, rng: np.random.Generator, parts: int = 2) -> np.ndarray:
    """Draw a random prediction order for each sequence, for permutation language modeling (Yang et al., 2019).

    As in XLNet's code and section 2.2 of the paper, a token is predicted from the tokens of lower order. A sequence is
    split into parts of equal length, and each part has a lower order than the next. A part never sees the next part,
    and could therefore serve as its memory. Within a part all known tokens come first and share an order. The remaining
    tokens follow in a random permutation, each with its own order: the tokens to predict, and the special tokens, which
    would otherwise show where a text ends.

    Args:
        known: bool (B, T), tokens of B sequences that all other tokens of their part may see; T is the padded width.
        lengths: int (B,), number of tokens of each sequence.
        rng: numpy generator, source of randomness.
        parts: int, number of parts.

    Returns:
        The order of each token, int32 (B, T), independent of T. Padding has the highest orders.

    Example:

    ```python
    import numpy as np
    from lmzoo.text.permutation import factorization_order

    known = np.array([[True, False, True, False]])
    factorization_order(known, np.array([4]), np.random.default_rng(0))[0]  # the first half comes first: [0, 3, 5, 6]
    ```
    """
    lengths = np.asarray(lengths)[:, None]  # (B, 1)
    positions = np.arange(known.shape[1])  # (T,)
    is_token = positions < lengths  # (B, T)
    part_indices = np.minimum(positions * parts // np.maximum(lengths, 1), parts - 1)  # (B, T)
    noise = np.full(known.shape, 2.0)
    noise[is_token] = rng.random(np.count_nonzero(is_token))
    ranks = noise.argsort(axis=1, kind="stable").argsort(axis=1)  # (B, T), padding last
    return (part_indices * (lengths + 1) + np.where(known, 0, 1 + ranks)).astype("int32")
