"""Orders in which the tokens of a text are predicted, for permutation language modeling."""

from __future__ import annotations

import numpy as np


def factorization_order(known: np.ndarray, lengths: np.ndarray, rng: np.random.Generator, parts: int = 2) -> np.ndarray:
    """Draw an order for each sequence, as XLNet's code does (Yang et al., 2019, section 2.2).

    A token is predicted from those of a lower order. A sequence is cut into parts of equal length, and a part has a
    lower order than the next one: it never sees it, and so could be remembered for it. Within a part all known tokens
    come first, with the same order. The others follow in a random permutation, each with its own: those to predict, and
    special tokens, which would otherwise show where a text ends.

    Args:
        known: bool (B, T), tokens that all others of their part may see.
        lengths: int (B,), tokens of each sequence.
        rng: source of randomness.
        parts: int, the number of parts.

    Returns:
        Int32 (B, T). The orders of real tokens do not depend on the width T; those of padding are the highest.

    Example:

    ```python
    import numpy as np
    from lmzoo.text.permutation import factorization_order

    known = np.array([[True, False, True, False]])
    factorization_order(known, np.array([4]), np.random.default_rng(0))[0]  # the first half comes first: [0, 3, 5, 6]
    ```
    """
    lengths = np.asarray(lengths)[:, None]  # (B, 1)
    index = np.arange(known.shape[1])  # (T,)
    real = index < lengths  # (B, T)
    part = np.minimum(index * parts // np.maximum(lengths, 1), parts - 1)  # (B, T)
    noise = np.full(known.shape, 2.0)
    noise[real] = rng.random(np.count_nonzero(real))
    rank = noise.argsort(axis=1, kind="stable").argsort(axis=1)  # (B, T), padding last
    return (part * (lengths + 1) + np.where(known, 0, 1 + rank)).astype("int32")
