"""CRC-32C against published values and against its definition, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.checkpoints.formats.crc32c import crc32c, masked_crc32c

COUNTING = np.arange(32, dtype=np.uint8)


# RFC 3720, B.4, and the check value of the catalogue of parametrised CRC algorithms.
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (np.zeros(32, np.uint8), 0x8A9136AA),
        (np.full(32, 255, np.uint8), 0x62A8AB43),
        (COUNTING, 0x46DD794E),
        (COUNTING[::-1], 0x113FDB5C),
        (np.frombuffer(b"123456789", np.uint8), 0xE3069283),
        (np.zeros(0, np.uint8), 0),
    ],
)
def test_published_values(data, expected):
    assert crc32c(data) == expected


def by_definition(data: np.ndarray) -> int:
    remainder = 0xFFFFFFFF
    for byte in data.tolist():
        remainder ^= byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (0x82F63B78 if remainder & 1 else 0)
    return remainder ^ 0xFFFFFFFF


def test_every_short_length():
    data = np.random.default_rng(7).integers(0, 256, 700, np.uint8)
    for length in range(data.size):
        assert crc32c(data[length // 3 : length]) == by_definition(data[length // 3 : length]), length


# One piece is 2^18 bytes, after the first four.
@pytest.mark.parametrize("length", [4_099, 2**18 + 3, 2**18 + 4, 2**18 + 5, 2**19 + 4, 600_011])
def test_long(length):
    data = np.random.default_rng(11).integers(0, 256, length, np.uint8)
    kept = data.copy()
    assert crc32c(data) == by_definition(data)
    np.testing.assert_array_equal(data, kept)


def test_any_flipped_bit_shows():
    data = np.zeros(300_007, np.uint8)
    checksum = crc32c(data)
    for place in (0, 3, 4, 150_001, 262_147, 300_006):
        for bit in (0, 7):
            data[place] ^= 1 << bit
            assert crc32c(data) != checksum
            data[place] ^= 1 << bit


def test_masked():
    # What TensorFlow stores for no bytes at all.
    assert masked_crc32c(np.zeros(0, np.uint8)) == 0xA282EAD8
