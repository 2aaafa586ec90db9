"""Rotary positions: rotation of queries and keys by angles that grow with their position (Su et al., 2021).

https://arxiv.org/abs/2104.09864
"""

from __future__ import annotations

import numpy as np
from keras import ops

from lmzoo.common.tensor_types import Tensor


def compute_rotation_rates(width: int, wavelength: float) -> np.ndarray:
    """Return the angle between adjacent positions, float32 (width / 2,), for each pair of entries.

    Exponents, powers and quotients are each rounded to float32, as in PyTorch. At position 8,000 the last bit of a rate
    moves an angle by up to 1e-3, so only the same rounding reproduces the angles that models were trained with.
    """
    exponents = (np.arange(0, width, 2) / width).astype("float32")  # (D/2,)
    powers = np.power(float(wavelength), exponents.astype("float64")).astype("float32")  # (D/2,)
    return np.float32(1) / powers


def rotate(x: Tensor, positions: Tensor, wavelength: float) -> Tensor:
    """Rotate head vectors by angles that depend on their positions, pairing entry i with entry i + D / 2.

    Args:
        x: float (B, N, T, D), queries or keys of an even width D.
        positions: int (T,), positions of the vectors, or (B, T) if the sequences differ.
        wavelength: float, base of the geometric series of D / 2 wavelengths.

    Returns:
        The rotated vectors, of the shape and dtype of `x`; the rotation is computed in at least float32.
    """
    width = x.shape[-1]
    wide_dtype = "float64" if x.dtype == "float64" else "float32"
    rates = ops.cast(compute_rotation_rates(width, wavelength), wide_dtype)  # (D/2,)
    angles = ops.expand_dims(ops.cast(positions, wide_dtype), -1) * rates  # (T, D/2) or (B, T, D/2)
    if len(angles.shape) == 3:
        angles = ops.expand_dims(angles, 1)  # (B, 1, T, D/2)
    cosines = ops.cos(angles)
    sines = ops.sin(angles)
    first_half, second_half = ops.split(ops.cast(x, wide_dtype), 2, axis=-1)  # (B, N, T, D/2)
    rotated_vectors = ops.concatenate(
        [first_half * cosines - second_half * sines, second_half * cosines + first_half * sines], axis=-1
    )
    return ops.cast(rotated_vectors, x.dtype)
