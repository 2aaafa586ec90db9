"""Random arrays in which every bit pattern is a value, also NaN."""

from __future__ import annotations

import ml_dtypes  # noqa: F401 - NumPy's bfloat16
import numpy as np


def random_bits(dtype: str, *shape: int, rng: np.random.Generator | None = None) -> np.ndarray:
    """Return an array of random bits, the same ones at each call unless `rng` is given."""
    rng = rng or np.random.default_rng(1301)
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return rng.integers(0, 2 if dtype == "bool" else 256, count, "uint8").view(dtype).reshape(shape)
