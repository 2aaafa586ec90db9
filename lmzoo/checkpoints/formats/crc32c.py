"""CRC-32C (Castagnoli), the checksum in TensorFlow's files, in array operations: about a gigabyte a second.

A checksum is the remainder of a division by a polynomial P, with bits as coefficients. There is a multiple of P,
Q = x^D + ..., with few terms and none of them close below x^D, and with Q(x) every Q(x)^(2^k) = Q(x^(2^k)) is one. So
bytes at the front are removed without changing the remainder: each is added (XOR) to few places further on, the same
places for all of them, many thousands at a time. What is left at the end is some hundred bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

_P = 0x82F63B78  # without x^32; the lowest bit is the coefficient of x^31
_ONES = 0xFFFFFFFF


def _times_x(remainder: int, times: int) -> int:
    for _ in range(times):
        remainder = remainder >> 1 ^ (remainder & 1) * _P
    return remainder


_DEGREE = 75  # D: none below 600 leaves fewer terms
_LOWER_TERMS = [power for power in range(32) if _times_x(1 << 31, _DEGREE) >> 31 - power & 1]
_GAP = _DEGREE - _LOWER_TERMS[-1]
_LONGEST_ROW = 1 << 11  # bytes between two neighbouring powers: a power of two, so that Q has that many powers of x
_PIECE = 1 << 18  # bytes read at a time: they stay in the processor's cache
_BYTES = [_times_x(byte, 8) for byte in range(256)]


def crc32c(data: np.ndarray) -> int:
    """The checksum of bytes.

    Args:
        data: uint8 (n,); it is not changed.
    """
    remainder, rest = _ONES, data
    if data.size > _DEGREE:
        remainder, rest = 0, _shortened(data)
    for byte in rest.tolist():
        remainder = _BYTES[(remainder ^ byte) & 255] ^ remainder >> 8
    return remainder ^ _ONES


def masked_crc32c(data: np.ndarray) -> int:
    """The checksum of uint8 (n,) as TensorFlow stores it: changed, for checksums of what holds checksums."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & _ONES


def _shortened(data: np.ndarray) -> np.ndarray:
    """At most D bytes whose remainder, begun with zero, is that of `data`, begun with ones."""
    rest = data[:4] ^ np.uint8(255)
    for start in range(4, data.size, _PIECE):
        rest = _fold(np.concatenate([rest, data[start : start + _PIECE]]), _LONGEST_ROW)
    for row in _halves(_LONGEST_ROW):
        rest = _fold(rest, row)
    return rest


def _halves(number: int) -> Iterator[int]:
    while number := number // 2:
        yield number


def _fold(data: np.ndarray, row: int) -> np.ndarray:
    """Removes all but the last D rows, in place."""
    start, kept = 0, _DEGREE * row
    while (excess := data.size - start - kept) > 0:
        count = min(excess, _GAP * row)
        front = data[start : start + count]
        for power in _LOWER_TERMS:
            place = start + (_DEGREE - power) * row
            target = data[place : place + count]
            np.bitwise_xor(target, front, out=target)
        start += count
    return data[start:]
