"""Masking of n-grams and spans of words, and the two ways of rounding the number of masked tokens."""

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
    """Return candidates and word starts of a row of words with so many pieces; None is a special token."""
    candidates = [word is not None for word in words for _ in range(word or 1)]
    starts = [i == 0 for word in words for i in range(word or 1)]
    return np.array(candidates), np.array(starts)


def outcomes(masking: Masking, words: list[int | None], count: int = ROWS) -> dict[tuple[int, ...], float]:
    """Return the fraction of rows in which `choose` gives each set of positions."""
    candidates, starts = (np.tile(part, (count, 1)) for part in row(words))
    lengths = np.full(count, candidates.shape[1])
    positions, chosen = masking.choose(candidates, lengths, starts, np.random.default_rng(7))
    fractions: dict[tuple[int, ...], float] = defaultdict(float)
    for indices, is_chosen in zip(positions, chosen, strict=True):
        fractions[tuple(indices[is_chosen].tolist())] += 1 / count
    return fractions


def exact(words: list[int | None], max_tokens: int, ngram: int, weight=lambda k: 1 / k) -> dict[tuple[int, ...], float]:
    """Return the exact probabilities by ALBERT's rules, from every order of the words and every draw."""
    pieces, begin = [], 0  # of each word
    for word in words:
        pieces.append(None if word is None else list(range(begin, begin + word)))
        begin += word or 1
    indices = [i for i, positions in enumerate(pieces) if positions]
    # For each word, the runs of 1, 2, ... words that begin with it.
    runs = {i: list(itertools.accumulate(itertools.takewhile(bool, pieces[i : i + ngram]))) for i in indices}
    probabilities: dict[tuple[int, ...], float] = defaultdict(float)
    orders = list(itertools.permutations(indices))
    for order in orders:
        for draws in itertools.product(*(range(1, len(runs[i]) + 1) for i in order)):
            probability = 1 / len(orders)
            for i, n in zip(order, draws, strict=True):
                probability *= weight(n) / sum(weight(k) for k in range(1, len(runs[i]) + 1))
            picked: set[int] = set()
            for i, n in zip(order, draws, strict=True):
                fitting = [run for run in runs[i][:n] if len(picked) + len(run) <= max_tokens]
                if fitting and picked.isdisjoint(fitting[-1]):
                    picked |= set(fitting[-1])
            probabilities[tuple(sorted(picked))] += probability
    return probabilities


def assert_close(fractions: dict[tuple[int, ...], float], expected: dict[tuple[int, ...], float]) -> None:
    """Check that fractions differ from probabilities by less than five standard deviations."""
    assert fractions.keys() == expected.keys()
    for positions, probability in expected.items():
        limit = 5 * np.sqrt(probability * (1 - probability) / ROWS) + 1e-9
        assert abs(fractions[positions] - probability) < limit, positions


@pytest.mark.parametrize(
    ("words", "max_tokens", "ngram"),
    [
        ([1, 1, 1, 1], 2, 2),
        ([1, 1, 1, 1, 1], 3, 3),
        ([2, 1, 3, 1], 3, 3),
        ([None, 1, 2, None, 1, 1, None], 3, 3),  # not across special tokens
        ([3, 2], 4, 2),
    ],
)
def test_probabilities_of_all_outcomes(words: list[int | None], max_tokens: int, ngram: int) -> None:
    expected = exact(words, max_tokens, ngram)
    assert sum(expected.values()) == pytest.approx(1)
    length = sum(word or 1 for word in words)
    assert_close(outcomes(Masking(max_tokens / length, whole_word=True, ngram=ngram), words), expected)


def test_probabilities_of_geometric_spans() -> None:
    """Each length of SpanBERT's spans is less probable than the one before by the same factor."""
    words = [1, 2, 1, 1, 1]
    fractions = outcomes(Masking(3 / 6, whole_word=True, ngram=3, geometric=0.9), words)
    assert_close(fractions, exact(words, 3, 3, lambda k: 0.1 ** (k - 1)))
    not_geometric = exact(words, 3, 3)
    assert any(abs(fractions[positions] - not_geometric[positions]) > 0.02 for positions in not_geometric)


def test_spans_have_the_mean_length_of_the_paper() -> None:
    masking = Masking().with_spans()
    is_first = np.zeros(30_011, bool)
    is_first[0] = True
    lengths = _draw_lengths(is_first, masking._compute_length_weights(), np.random.default_rng(3))
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
    fractions = np.bincount(kind[is_first]) / is_first.sum()
    np.testing.assert_allclose(fractions, [0.5, 0.3, 0.2], atol=0.03)
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
    is_first = np.zeros(count, bool)
    is_first[0] = True
    lengths = _draw_lengths(is_first, WEIGHTS, np.random.default_rng(3))
    assert lengths[-1] == 1
    for length, fraction in ((1, 6 / 11), (2, 3 / 11), (3, 2 / 11)):
        assert abs((lengths == length).mean() - fraction) < 5 * np.sqrt(fraction * (1 - fraction) / count)
    # In pairs of words, the first word draws 1 or 2 and the second has no choice.
    lengths = _draw_lengths(np.arange(count) % 2 == 0, WEIGHTS, np.random.default_rng(3))
    assert (lengths[1::2] == 1).all()
    assert set(lengths[::2]) <= {1, 2}
    assert abs((lengths[:-1:2] == 1).mean() - 2 / 3) < 5 * np.sqrt(2 / 9 / (count // 2))


@pytest.mark.parametrize("rounding", ["nearest", "random"])
def test_positions_in_rows_of_all_lengths(rounding: str) -> None:
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
    # Neighboring words are chosen together more than twice as often as without n-grams.
    single = Masking(whole_word=True, rounding=rounding).choose(candidates, lengths, starts, rng)
    picked_singly = np.zeros_like(candidates)
    picked_singly[np.nonzero(single[1])[0], single[0][single[1]]] = True
    begins = candidates[:, 1:] & candidates[:, :-1] & starts[:, 1:]
    together, by_chance = ((p[:, 1:] & p[:, :-1] & begins).sum() for p in (picked, picked_singly))
    assert together > 2 * by_chance


@pytest.mark.quick_cases("False")
@pytest.mark.parametrize("whole_word", [False, True])
def test_random_rounding_keeps_the_mean_number(whole_word: bool) -> None:
    masking = Masking(rounding="random", whole_word=whole_word)
    assert [masking.slots(n) for n in (1, 7, 20, 30, 128, 512)] == [1, 2, 3, 5, 20, 77]
    count = 8009
    for length in (20, 27, 41):
        candidates = np.ones((count, length), bool)
        chosen = masking.choose(candidates, np.full(count, length), candidates, np.random.default_rng(5))[1]
        counts = chosen.sum(axis=1)
        floor, remainder = divmod(length * 0.15, 1)
        assert set(counts) == ({floor, floor + 1} if remainder > 1e-9 else {floor})
        assert abs(counts.mean() - length * 0.15) < 5 * np.sqrt(remainder * (1 - remainder) / count) + 1e-9
    # Every row has a masked token, unlike in RoBERTa's code, where a short row may have none.
    short = np.ones((count, 2), bool)
    assert masking.choose(short, np.full(count, 2), short, np.random.default_rng(5))[1].all()


def test_defaults_do_not_change_the_draws() -> None:
    """Plain masking draws as before n-grams were added: one permutation, or one number for each position."""
    candidates = np.ones((1, 9), bool)
    order = np.random.default_rng(3).permutation(9)
    positions = Masking(0.3, whole_word=True).choose(candidates, np.array([9]), candidates, np.random.default_rng(3))[0]
    assert positions[0].tolist() == sorted(order[:3].tolist())
    noise = np.random.default_rng(3).random(9)
    positions = Masking(0.3).choose(candidates, np.array([9]), candidates, np.random.default_rng(3))[0]
    assert positions[0].tolist() == sorted(np.argsort(noise)[:3].tolist())


def test_errors_of_settings() -> None:
    for arguments in ({"ngram": 0}, {"ngram": 3}, {"whole_word": True, "ngram": -1}):
        with pytest.raises(ValueError, match="`ngram` counts words"):
            Masking(**arguments)
    with pytest.raises(ValueError, match="must be 'nearest' or 'random', got 'up'"):
        Masking(rounding="up")
