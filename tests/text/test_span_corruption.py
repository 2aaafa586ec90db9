"""Span corruption, compared with T5's own rules, written token by token."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from lmzoo.text import EncodedTexts, SpanCorruption

SENTINELS = [997, 991, 983, 977, 971, 967, 953, 947, 941, 937, 929, 919, 911, 907, 887, 883, 881, 877, 863, 859]
END = 1


def t5_mask(length, probability, mean_length, rng):
    """Draw a mask by T5's `random_spans_noise_mask`, with its helper that divides numbers by shuffled marks."""
    dropped = min(max(int(np.round(np.float32(length) * probability)), 1), length - 1)
    spans = min(max(int(np.round(np.float32(dropped) / mean_length)), 1), length - dropped)

    def divide(total, count):
        marks = rng.permutation([1] * (count - 1) + [0] * (total - count))
        segment = np.cumsum([0, *marks])
        return [int((segment == i).sum()) for i in range(count)]

    lengths = zip(divide(length - dropped, spans), divide(dropped, spans), strict=True)
    return [
        value for kept_length, dropped_length in lengths for value in [False] * kept_length + [True] * dropped_length
    ]


def draw_mask(corruption, length, rng):
    lengths = corruption.draw(np.array([length]), rng)
    return np.repeat(np.arange(len(lengths)) % 2 == 1, lengths).tolist()


def count_spans(mask):
    return sum(key for key, _ in itertools.groupby(mask))


def corrupt_by_hand(ids, mask):
    """Return the source and the target of one text, token by token."""
    source, target, spans = [], [], 0
    for i, (token, is_dropped) in enumerate(zip(ids, mask, strict=True)):
        if is_dropped and not mask[i - 1]:
            source.append(SENTINELS[spans])
            target.append(SENTINELS[spans])
            spans += 1
        (target if is_dropped else source).append(token)
    return [*source, END], [*target, SENTINELS[spans], END]


@pytest.mark.parametrize(("probability", "mean_length"), [(0.15, 3.0), (0.5, 2.0), (0.3, 10.0), (0.9, 1.0), (1.0, 7.0)])
def test_counts_are_those_of_t5(probability, mean_length):
    corruption = SpanCorruption(probability, mean_length)
    rng = np.random.default_rng(7)
    for length in [*range(2, 40), 101, 568]:
        mask, expected = draw_mask(corruption, length, rng), t5_mask(length, probability, mean_length, rng)
        assert (len(mask), sum(mask), count_spans(mask)) == (length, sum(expected), count_spans(expected))
        assert not mask[0]
        assert mask[-1]


def test_all_masks_are_equally_likely():
    """There are 18 masks of 11 tokens with 4 dropped tokens in 2 spans."""
    corruption = SpanCorruption(0.4, 2.0)
    rng = np.random.default_rng(11)
    lengths = corruption.draw(np.full(9000, 11), rng).reshape(9000, 4)
    counts = Counter(map(tuple, lengths.tolist()))
    expected = {tuple(len([*run]) for _, run in itertools.groupby(t5_mask(11, 0.4, 2.0, rng))) for _ in range(1000)}
    assert counts.keys() == expected
    assert len(expected) == 18
    assert 400 < min(counts.values()) <= max(counts.values()) < 600


def test_sources_and_targets():
    """Source and target hold every token in order, and their sentinels are in the same order."""
    corruption = SpanCorruption(0.3, 2.0)
    lengths = [2, 17, 3, 61, 5]
    texts = [[*range(1000 * i, 1000 * i + length)] for i, length in enumerate(lengths, 1)]
    pairs = corruption.corrupt(EncodedTexts.of_ids(texts), SENTINELS, END, np.random.default_rng(3))
    part_lengths = corruption.draw(np.array(lengths), np.random.default_rng(3))
    masks = np.split(np.repeat(np.arange(len(part_lengths)) % 2 == 1, part_lengths), np.cumsum(lengths)[:-1])
    for i, (text, mask) in enumerate(zip(texts, masks, strict=True)):
        source, target = (part.select([i]).token_ids.tolist() for part in (pairs.sources, pairs.targets))
        assert (source, target) == corrupt_by_hand(text, mask.tolist())
        assert sorted(id for id in source + target if id >= 1000) == text
        sentinels = [id for id in target if END < id < 1000]
        assert sentinels == SENTINELS[: len(sentinels)]
        assert [id for id in source if END < id < 1000] == sentinels[:-1]
        assert (len(source), len(target)) == (corruption.source_length(len(text)), corruption.target_length(len(text)))


def test_draws_stay_the_same():
    """An interrupted run continues with the same spans on every backend and in later versions."""
    parts = SpanCorruption().draw(np.array([11, 29, 41]), np.random.default_rng(17))
    assert parts.tolist() == [9, 2, 25, 4, 20, 1, 15, 5]


def test_small_unsigned_ids_become_int32():
    """A corpus may store ids in 8 or 16 bits, which cannot hold sentinels."""
    texts = EncodedTexts(np.arange(2, 25, dtype="uint8"), np.array([0, 23]), np.array([23], "int32"))
    pairs = SpanCorruption().corrupt(texts, SENTINELS, END, np.random.default_rng(0))
    assert pairs.sources.token_ids.dtype == pairs.targets.token_ids.dtype == "int32"
    assert SENTINELS[0] in pairs.sources.token_ids


def test_the_longest_text_that_fits():
    """The longest text for 512 tokens has 568 tokens, as in T5's `random_spans_helper`."""
    for corruption, max_length in itertools.product(
        (SpanCorruption(), SpanCorruption(0.5, 1.0), SpanCorruption(0.9, 5.0)), (4, 5, 19, 64, 128, 512)
    ):
        fitting = [
            length
            for length in range(2, 2 * max_length)
            if corruption.source_length(length) <= max_length and corruption.target_length(length) <= max_length
        ]
        assert corruption.text_length(max_length) == fitting[-1]
    corruption = SpanCorruption()
    assert corruption.text_length(512) == 568
    assert (corruption.source_length(568), corruption.target_length(568)) == (512, 115)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"probability": 0}, r"`probability` must be a number in \(0, 1\], got 0"),
        ({"probability": 1.1}, r"`probability` must be a number in \(0, 1\], got 1.1"),
        ({"mean_length": 0.5}, "`mean_length` must be a finite number of at least 1, got 0.5"),
        ({"mean_length": float("inf")}, "`mean_length` must be a finite number of at least 1, got inf"),
    ],
)
def test_errors_of_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        SpanCorruption(**arguments)


def test_short_sequences_are_refused():
    with pytest.raises(ValueError, match="`sequence_length` must be at least 4 for span corruption, got 3"):
        SpanCorruption().text_length(3)
