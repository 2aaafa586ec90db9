"""Orders of prediction, compared with the masks that XLNet's code makes token by token."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lmzoo.text.permutation import factorization_order

KNOWN = np.random.default_rng(3).random((5, 13)) < 0.6
LENGTHS = np.array([13, 8, 1, 0, 12])


def original_mask(known: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return the mask of a part by the function `_local_perm` of XLNet's code: whether a query does not see a token."""
    rank = np.where(known, -1, index)
    return (rank[:, None] <= rank[None]) & ~known[None]


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_orders_give_the_original_masks(parts):
    order = factorization_order(KNOWN, LENGTHS, np.random.default_rng(7), parts)
    for known, length, row in zip(KNOWN, LENGTHS.tolist(), order, strict=True):
        bounds = [-(-length * part // parts) for part in range(parts + 1)]
        for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
            index = row[begin:end].argsort(kind="stable").argsort(kind="stable")
            hidden = ~(row[begin:end, None] > row[None, begin:end])  # from a query
            both = known[begin:end, None] & known[None, begin:end]  # visible to each other in the original
            assert np.array_equal(hidden & ~both, original_mask(known[begin:end], index))
            assert (row[:begin] < row[begin:end].min(initial=10**6)).all(), f"part {number} does not see an earlier one"
            assert (row[end:length] > row[begin:end].max(initial=-1)).all(), f"part {number} sees a later one"


def test_orders_are_random_and_repeat_with_the_seed():
    orders = [factorization_order(KNOWN, LENGTHS, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], orders[2])
    unknown = np.flatnonzero(~KNOWN[0][:6])
    orders = [factorization_order(KNOWN[:1], LENGTHS[:1], np.random.default_rng(seed))[0] for seed in range(60)]
    assert {int(unknown[order[unknown].argmin()]) for order in orders} == set(unknown.tolist())


def test_the_width_of_the_padding_changes_no_order():
    known = KNOWN & (np.arange(KNOWN.shape[1]) < LENGTHS[:, None])
    expected = factorization_order(known, LENGTHS, np.random.default_rng(7))
    for extra in (1, 11):
        wide = factorization_order(np.pad(known, ((0, 0), (0, extra))), LENGTHS, np.random.default_rng(7))
        for row, expected_row, length in zip(wide, expected, LENGTHS.tolist(), strict=True):
            assert np.array_equal(row[:length], expected_row[:length])
            assert (row[length:] > row[:length].max(initial=-1)).all(), "padding is not last"
