"""Orders of prediction, against the masks that XLNet's code makes token by token."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lmzoo.text.permutation import factorization_order

KNOWN = np.random.default_rng(3).random((5, 13)) < 0.6
LENGTHS = np.array([13, 8, 1, 0, 12])


def original_mask(known: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Who does not see whom in a part, by the rules of the function `_local_perm` of XLNet's code."""
    rank = np.where(known, -1, index)
    return (rank[:, None] <= rank[None]) & ~known[None]


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_it_says_what_the_original_masks_say(parts):
    order = factorization_order(KNOWN, LENGTHS, np.random.default_rng(7), parts)
    for known, length, row in zip(KNOWN, LENGTHS.tolist(), order, strict=True):
        bounds = [-(-length * part // parts) for part in range(parts + 1)]
        for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
            index = row[begin:end].argsort(kind="stable").argsort(kind="stable")
            hidden = ~(row[begin:end, None] > row[None, begin:end])  # from a query
            both = known[begin:end, None] & known[None, begin:end]  # which the original lets see each other
            assert np.array_equal(hidden & ~both, original_mask(known[begin:end], index))
            assert (row[:begin] < row[begin:end].min(initial=10**6)).all(), f"part {number} does not see an earlier one"
            assert (row[end:length] > row[begin:end].max(initial=-1)).all(), f"part {number} sees a later one"


def test_orders_are_random_and_repeat_with_the_seed():
    found = [factorization_order(KNOWN, LENGTHS, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])
    places = np.flatnonzero(~KNOWN[0][:6])
    firsts = {
        int(places[factorization_order(KNOWN[:1], LENGTHS[:1], np.random.default_rng(seed))[0][places].argmin()])
        for seed in range(60)
    }
    assert firsts == set(places.tolist())


def test_the_width_of_the_padding_changes_no_order():
    known = KNOWN & (np.arange(KNOWN.shape[1]) < LENGTHS[:, None])
    expected = factorization_order(known, LENGTHS, np.random.default_rng(7))
    for extra in (1, 11):
        wide = factorization_order(np.pad(known, ((0, 0), (0, extra))), LENGTHS, np.random.default_rng(7))
        for found, right, length in zip(wide, expected, LENGTHS.tolist(), strict=True):
            assert np.array_equal(found[:length], right[:length])
            assert (found[length:] > found[:length].max(initial=-1)).all(), "padding comes last"
