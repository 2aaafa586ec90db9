"""Masked-LM corruption: the number of masked tokens, their positions, and their replacements."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.text import Masking

ROWS, WIDTH = 997, 61
VOCABULARY, MASK = 131, 4


@pytest.fixture
def batch() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return candidates, lengths and word starts of padded rows, with special tokens at both ends and one inside."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(3, WIDTH + 1, ROWS)
    index = np.arange(WIDTH)
    candidates = (index > 0) & (index < lengths[:, None] - 1)
    candidates[:, 17] = False
    starts = rng.random((ROWS, WIDTH)) < 0.6
    return candidates, lengths, starts


def chosen_positions(positions: np.ndarray, chosen: np.ndarray) -> list[list[int]]:
    return [row[keep].tolist() for row, keep in zip(positions, chosen, strict=True)]


def words(candidates: np.ndarray, starts: np.ndarray) -> list[list[int]]:
    """Return runs of candidates, split where a word begins."""
    runs: list[list[int]] = []
    for i in np.flatnonzero(candidates).tolist():
        if runs and runs[-1][-1] == i - 1 and not starts[i]:
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs


@pytest.mark.parametrize("whole_word", [False, True])
@pytest.mark.parametrize("probability", [0.15, 0.4])
def test_number_and_positions_of_masked_tokens(batch: tuple, probability: float, whole_word: bool) -> None:
    candidates, lengths, starts = batch
    masking = Masking(probability, whole_word)
    positions, chosen = masking.choose(candidates, lengths, starts, np.random.default_rng(5))
    assert positions.shape == chosen.shape == (ROWS, masking.slots(WIDTH))
    assert (positions.dtype, chosen.dtype) == (np.int32, bool)
    assert not positions[~chosen].any(), "padded with 0"
    for row, allowed, begins, length in zip(
        chosen_positions(positions, chosen), candidates, starts, lengths.tolist(), strict=True
    ):
        count = max(1, round(length * probability))  # of all tokens, with halves rounded to even
        assert row == sorted(set(row))
        assert allowed[row].all()
        if not whole_word:
            assert len(row) == min(count, allowed.sum())
            continue
        groups = words(allowed, begins)
        assert all(len({i in row for i in group}) == 1 for group in groups), "a part of a word is masked"
        room = count - len(row)
        assert room >= 0
        assert all(len(group) > room for group in groups if group[0] not in row), "a word that fits is left out"


def test_slots_round_half_to_even() -> None:
    assert [Masking().slots(n) for n in (1, 3, 10, 30, 50, 128, 512)] == [1, 1, 2, 4, 8, 19, 77]
    assert [Masking(0.5).slots(n) for n in (5, 7)] == [2, 4]


@pytest.mark.parametrize("whole_word", [False, True])
def test_candidates_are_equally_likely(whole_word: bool) -> None:
    candidates = np.zeros((4001, 41), bool)
    candidates[:, 1:40] = True
    starts = np.ones_like(candidates)
    positions, chosen = Masking(0.15, whole_word).choose(
        candidates, np.full(4001, 41), starts, np.random.default_rng(1)
    )
    counts = np.bincount(positions[chosen], minlength=41)
    assert counts[0] == counts[40] == 0
    expected = 4001 * 6 / 39
    assert np.abs(counts[1:40] - expected).max() < 5 * np.sqrt(expected)


def test_words_that_do_not_fit_are_skipped() -> None:
    # There are words of 3, 1 and 2 pieces, and room for 3. A word that no longer fits is skipped.
    candidates = np.ones((300, 6), bool)
    starts = np.tile([True, False, False, True, True, False], (300, 1))
    outcomes = chosen_positions(
        *Masking(0.5, True).choose(candidates, np.full(300, 6), starts, np.random.default_rng(2))
    )
    assert {tuple(row) for row in outcomes} == {(0, 1, 2), (3, 4, 5)}
    # The word of 3 is first in 1 of 3 orders.
    assert 70 < sum(row == [0, 1, 2] for row in outcomes) < 130


@pytest.mark.parametrize("whole_word", [False, True])
def test_rows_without_candidates(whole_word: bool) -> None:
    no_candidates = np.zeros((3, 9), bool)
    positions, chosen = Masking(0.15, whole_word).choose(
        no_candidates, np.array([0, 2, 9]), no_candidates, np.random.default_rng(0)
    )
    assert not chosen.any()
    assert not positions.any()


def test_settings_of_replacements() -> None:
    targets, chosen = np.full((997, 101), 7), np.ones((997, 101), bool)
    result = Masking(masked=0.3, random=0).corrupt(targets, chosen, MASK, VOCABULARY, np.random.default_rng(2))
    assert (result == MASK).mean() == pytest.approx(0.3, abs=0.01)
    assert (result == 7).mean() == pytest.approx(0.7, abs=0.01)
    with pytest.raises(ValueError, match=r"`masked` must be a number from 0 to 1, got 1\.5"):
        Masking(masked=1.5)
    with pytest.raises(ValueError, match=r"`masked` and `random` must be at most 1 together, got 0\.8 and 0\.3"):
        Masking(random=0.3)


def test_replacements() -> None:
    rng = np.random.default_rng(11)
    targets = np.full((1999, 97), 7)
    chosen = rng.random(targets.shape) < 0.9
    result = Masking().corrupt(targets, chosen, MASK, VOCABULARY, rng)
    assert (result[~chosen] == 7).all()
    values = result[chosen]
    random_ids = values[(values != MASK) & (values != 7)]
    count = len(values)
    random_probability = 0.1 / VOCABULARY  # a random token may be the mask token or the original
    for fraction, expected in (
        ((values == MASK).mean(), 0.8 + random_probability),
        ((values == 7).mean(), 0.1 + random_probability),
        (len(random_ids) / count, 0.1 - 2 * random_probability),
    ):
        assert abs(fraction - expected) < 5 * np.sqrt(expected * (1 - expected) / count)
    counts = np.bincount(random_ids, minlength=VOCABULARY)
    assert len(counts) == VOCABULARY, "an id is not in the vocabulary"
    assert counts[[0, 1, 2, 3, VOCABULARY - 1]].min() > 0, "the whole vocabulary is drawn from"
    mean = count * random_probability
    assert np.abs(np.delete(counts, [MASK, 7]) - mean).max() < 5 * np.sqrt(mean)


@pytest.mark.parametrize("whole_word", [False, True])
def test_draws_repeat_with_the_seed(batch: tuple, whole_word: bool) -> None:
    masking = Masking(0.15, whole_word)
    draws = []
    for seed in (1, 1, 2):
        rng = np.random.default_rng(seed)
        positions, chosen = masking.choose(*batch, rng)
        draws.append((positions, masking.corrupt(np.full(positions.shape, 7), chosen, MASK, VOCABULARY, rng)))
    for first, second in zip(*draws[:2], strict=True):
        np.testing.assert_array_equal(first, second)
    assert (draws[1][0] != draws[2][0]).mean() > 0.3
    assert (draws[1][1] != draws[2][1]).mean() > 0.05


@pytest.mark.parametrize(
    "masking", [Masking(), Masking(0.4, rounding="random"), Masking(0.3, True), Masking(0.3, True, 3)]
)
def test_the_width_of_the_padding_changes_no_draw(batch: tuple, masking: Masking) -> None:
    candidates, lengths, starts = batch
    draws = []
    for width in (WIDTH, WIDTH + 1, WIDTH + 23):
        padded = [np.pad(array, ((0, 0), (0, width - WIDTH))) for array in (candidates, starts)]
        rng = np.random.default_rng(13)
        positions, chosen = masking.choose(padded[0], lengths, padded[1], rng)
        corrupted = masking.corrupt(positions % VOCABULARY, chosen, MASK, VOCABULARY, rng)
        draws.append((chosen_positions(positions, chosen), chosen_positions(corrupted, chosen)))
    assert draws[1:] == [draws[0]] * 2
