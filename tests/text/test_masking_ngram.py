"""Masking of several words at a time, and the two ways of rounding their number."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest

from lmzoo.text import Masking
from lmzoo.text.masking import _draw_lengths, span_offsets

ROWS = 6007
WEIGHTS = 1 / np.arange(1, 4)


def row(words: list[int | None]) -> tuple[np.ndarray, np.ndarray]:
    """Candidates and word starts of a row of words with so many pieces; None is a special token."""
    candidates = [word is not None for word in words for _ in range(word or 1)]
    starts = [i == 0 for word in words for i in range(word or 1)]
    return np.array(candidates), np.array(starts)


def outcomes(masking: Masking, words: list[int | None], count: int = ROWS) -> dict[tuple[int, ...], float]:
    """Shares of the sets of positions that `choose` gives for a row."""
    candidates, starts = row(words)
    tiled = (np.tile(part, (count, 1)) for part in (candidates, starts))
    lengths = np.full(count, len(candidates))
    positions, chosen = masking.choose(next(tiled), lengths, next(tiled), np.random.default_rng(7))
    shares: dict[tuple[int, ...], float] = defaultdict(float)
    for places, keep in zip(positions, chosen, strict=True):
        shares[tuple(places[keep].tolist())] += 1 / count
    return shares


def exact(words: list[int | None], wanted: int, ngram: int, weight=lambda k: 1 / k) -> dict[tuple[int, ...], float]:
    """The same from ALBERT's rules, by going through every order of the words and every draw."""
    places, at = [], 0
    for word in words:
        places.append(None if word is None else list(range(at, at + word)))
        at += word or 1
    indices = [i for i, place in enumerate(places) if place]
    # For each word the runs of 1, 2, ... words that begin with it.
    runs = {i: list(itertools.accumulate(itertools.takewhile(bool, places[i : i + ngram]))) for i in indices}
    shares: dict[tuple[int, ...], float] = defaultdict(float)
    orders = list(itertools.permutations(indices))
    for order in orders:
        for draws in itertools.product(*(range(1, len(runs[i]) + 1) for i in order)):
            chance = 1 / len(orders)
            for i, n in zip(order, draws, strict=True):
                chance *= weight(n) / sum(weight(k) for k in range(1, len(runs[i]) + 1))
            picked: set[int] = set()
            for i, n in zip(order, draws, strict=True):
                fitting = [run for run in runs[i][:n] if len(picked) + len(run) <= wanted]
                if fitting and picked.isdisjoint(fitting[-1]):
                    picked |= set(fitting[-1])
            shares[tuple(sorted(picked))] += chance
    return shares


@pytest.mark.parametrize(
    ("words", "wanted", "ngram"),
    [
        ([1, 1, 1, 1], 2, 2),
        ([1, 1, 1, 1, 1], 3, 3),
        ([2, 1, 3, 1], 3, 3),
        ([None, 1, 2, None, 1, 1, None], 3, 3),  # not across special tokens
        ([3, 2], 4, 2),
    ],
)
def test_shares_of_all_outcomes(words: list[int | None], wanted: int, ngram: int) -> None:
    expected = exact(words, wanted, ngram)
    assert sum(expected.values()) == pytest.approx(1)
    length = sum(word or 1 for word in words)
    found = outcomes(Masking(wanted / length, whole_word=True, ngram=ngram), words)
    assert found.keys() == expected.keys()
    for places, share in expected.items():
        assert abs(found[places] - share) < 5 * np.sqrt(share * (1 - share) / ROWS) + 1e-9, places


def test_shares_of_geometric_spans() -> None:
    """SpanBERT's spans: each length is less probable than the one before by the same factor."""
    masking = Masking(3 / 6, whole_word=True, ngram=3, geometric=0.9)
    expected = exact([1, 2, 1, 1, 1], 3, 3, lambda k: 0.1 ** (k - 1))
    shares = outcomes(masking, [1, 2, 1, 1, 1])
    assert shares.keys() == expected.keys()
    for places, share in expected.items():
        assert abs(shares[places] - share) < 5 * np.sqrt(share * (1 - share) / ROWS) + 1e-9, places
    assert shares.keys() == exact([1, 2, 1, 1, 1], 3, 3).keys()  # but with other shares
    assert any(abs(shares[places] - share) > 0.02 for places, share in exact([1, 2, 1, 1, 1], 3, 3).items())


def test_the_mean_length_of_spans() -> None:
    """3.8 words, as in the paper."""
    masking = Masking().with_spans()
    apart = np.zeros(30_011, bool)
    apart[0] = True
    lengths = _draw_lengths(apart, masking._compute_length_weights(), np.random.default_rng(3))
    assert lengths.max() == 10
    assert lengths.mean() == pytest.approx(3.8, abs=0.05)


def test_a_span_is_replaced_as_a_whole() -> None:
    masking = Masking(0.3, masked=0.5, random=0.3).with_spans()
    rng = np.random.default_rng(5)
    candidates = np.ones((997, 61), bool)
    positions, chosen = masking.choose(candidates, np.full(997, 61), candidates, rng)
    targets = np.full(positions.shape, 7)
    mask_id, vocabulary_size = 3, 1009
    corrupted = masking.corrupt(targets, chosen, mask_id, vocabulary_size, rng, positions)
    is_first = (span_offsets(positions, chosen) == 0) & chosen
    kind = np.where(corrupted == mask_id, 0, np.where(corrupted == 7, 2, 1))
    follows = chosen[:, 1:] & ~is_first[:, 1:]
    # A random token may be the mask or the original by chance.
    assert (kind[:, 1:] != kind[:, :-1])[follows].mean() < 0.01
    shares = np.bincount(kind[is_first]) / is_first.sum()
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.2], atol=0.03)
    # Padding changes nothing.
    rngs = [np.random.default_rng(6) for _ in range(2)]
    wider = [np.pad(x, ((0, 0), (0, 11))) for x in (targets, chosen)]
    padded_positions = np.pad(positions, ((0, 0), (0, 11)))
    narrow = masking.corrupt(targets, chosen, mask_id, vocabulary_size, rngs[0], positions)
    wide = masking.corrupt(*wider, mask_id, vocabulary_size, rngs[1], padded_positions)
    np.testing.assert_array_equal(wide[:, : narrow.shape[1]], narrow)
    with pytest.raises(ValueError, match="With `geometric`, pass `positions`"):
        masking.corrupt(targets, chosen, mask_id, vocabulary_size, rng)


def test_lengths_are_drawn_in_proportion_to_their_inverse() -> None:
    count = 30_011
    apart = np.zeros(count, bool)
    apart[0] = True
    drawn = _draw_lengths(apart, WEIGHTS, np.random.default_rng(3))
    assert drawn[-1] == 1
    for length, share in ((1, 6 / 11), (2, 3 / 11), (3, 2 / 11)):
        assert abs((drawn == length).mean() - share) < 5 * np.sqrt(share * (1 - share) / count)
    # Two words, over and over: the first draws from 1 and 2, the second has no choice.
    drawn = _draw_lengths(np.arange(count) % 2 == 0, WEIGHTS, np.random.default_rng(3))
    assert (drawn[1::2] == 1).all()
    assert set(drawn[::2]) <= {1, 2}
    assert abs((drawn[:-1:2] == 1).mean() - 2 / 3) < 5 * np.sqrt(2 / 9 / (count // 2))


@pytest.mark.parametrize("rounding", ["nearest", "random"])
def test_rows_of_all_lengths(rounding: str) -> None:
    rng = np.random.default_rng(11)
    width = 127
    lengths = rng.integers(3, width + 1, 997)
    index = np.arange(width)
    candidates = (index > 0) & (index < lengths[:, None] - 1)
    starts = rng.random(candidates.shape) < 0.6
    masking = Masking(whole_word=True, ngram=3, rounding=rounding)
    positions, chosen = masking.choose(candidates, lengths, starts, rng)
    assert positions.shape == (997, masking.slots(width))
    picked = np.zeros_like(candidates)
    rows = np.nonzero(chosen)[0]
    picked[rows, positions[chosen]] = True
    assert picked.sum() == chosen.sum(), "no position twice"
    assert not (picked & ~candidates).any()
    # A piece that continues a word is chosen exactly if the piece before it is.
    inside = candidates[:, 1:] & candidates[:, :-1] & ~starts[:, 1:]
    assert (picked[:, 1:] == picked[:, :-1])[inside].all()
    limit = np.rint(lengths * 0.15) if rounding == "nearest" else np.ceil(lengths * 0.15)
    assert (picked.sum(axis=1) <= np.maximum(1, limit)).all()
    assert 0.14 < picked.sum() / lengths.sum() < 0.155
    # Neighboring words are chosen together: twice as often as without n-grams.
    single = Masking(whole_word=True, rounding=rounding).choose(candidates, lengths, starts, rng)
    alone = np.zeros_like(candidates)
    alone[np.nonzero(single[1])[0], single[0][single[1]]] = True
    begins = candidates[:, 1:] & candidates[:, :-1] & starts[:, 1:]
    together, by_chance = ((p[:, 1:] & p[:, :-1] & begins).sum() for p in (picked, alone))
    assert together > 2 * by_chance


@pytest.mark.quick_cases("False")
@pytest.mark.parametrize("whole_word", [False, True])
def test_random_rounding(whole_word: bool) -> None:
    masking = Masking(rounding="random", whole_word=whole_word)
    assert [masking.slots(n) for n in (1, 7, 20, 30, 128, 512)] == [1, 2, 3, 5, 20, 77]
    count = 8009
    for length in (20, 27, 41):
        candidates = np.ones((count, length), bool)
        chosen = masking.choose(candidates, np.full(count, length), candidates, np.random.default_rng(5))[1]
        numbers = chosen.sum(axis=1)
        low, share = divmod(length * 0.15, 1)
        assert set(numbers) == ({low, low + 1} if share > 1e-9 else {low})
        assert abs(numbers.mean() - length * 0.15) < 5 * np.sqrt(share * (1 - share) / count) + 1e-9
    # Never none, unlike RoBERTa's code, where a short row may go without.
    short = np.ones((count, 2), bool)
    assert masking.choose(short, np.full(count, 2), short, np.random.default_rng(5))[1].all()


def test_defaults_do_not_change_the_draws() -> None:
    """Plain masking draws what it drew before there were n-grams: one permutation, or one number for each place."""
    candidates = np.ones((1, 9), bool)
    order = np.random.default_rng(3).permutation(9)
    found = Masking(0.3, whole_word=True).choose(candidates, np.array([9]), candidates, np.random.default_rng(3))[0]
    assert found[0].tolist() == sorted(order[:3].tolist())
    noise = np.random.default_rng(3).random(9)
    found = Masking(0.3).choose(candidates, np.array([9]), candidates, np.random.default_rng(3))[0]
    assert found[0].tolist() == sorted(np.argsort(noise)[:3].tolist())


def test_errors() -> None:
    for arguments in ({"ngram": 0}, {"ngram": 3}, {"whole_word": True, "ngram": -1}):
        with pytest.raises(ValueError, match="`ngram` counts words"):
            Masking(**arguments)
    with pytest.raises(ValueError, match="must be 'nearest' or 'random', got 'up'"):
        Masking(rounding="up")
