"""The trigram model that language models are compared with, on counts that can be followed by hand."""

from __future__ import annotations

import math

import pytest

from benchmarks.kneser_ney import KneserNey, read

S = "<S>"


def test_by_hand():
    """Discounts: 2/3 (four trigrams once, one twice), 2/3 (four bigrams, one), 3/5 (three words, one)."""
    model = KneserNey([["a b"], [["a", "c"]]], [S, "</S>", "<UNK>", "a", "b", "c"])
    assert model.discounts == pytest.approx([3 / 5, 2 / 3, 2 / 3])
    b, unknown = 0.4 / 5 + 0.6 * 4 / 5 / 5, 0.6 * 4 / 5 / 5
    assert model.probability(("b",)) == pytest.approx(b)
    assert model.probability(("a", "b")) == pytest.approx(1 / 6 + 2 / 3 * b)
    assert model.probability((S, "a", "b")) == pytest.approx(1 / 6 + 2 / 3 * (1 / 6 + 2 / 3 * b))
    # In the sentence "a x": "a" at the beginning, the unknown word after it, the end after a context never seen.
    first = 2 / 3 + 1 / 3 * (2 / 3 + 1 / 3 * b)
    assert model.probability((S, S, "a")) == pytest.approx(first)
    second, third = 2 / 3 * 2 / 3 * unknown, 1.4 / 5 + unknown
    assert model.perplexity([["a x"]]) == pytest.approx((first * second * third) ** (-1 / 3))


def test_probabilities_add_up(tmp_path):
    (tmp_path / "text.txt").write_text("the film was fine .\na fine film\n\nthe plot was a plot .", encoding="utf-8")
    documents = read(tmp_path / "text.txt")
    assert documents == [["the film was fine .", "a fine film"], ["the plot was a plot ."]]
    model = KneserNey(documents, ["the", "film", "a", "was", "."], order=3)
    for before in [(S, S), (S, "the"), ("the", "film"), ("was", "was"), ("<UNK>", "."), ("a", "<UNK>")]:
        assert math.fsum(model.probability((*before, word)) for word in model.vocabulary) == pytest.approx(1)
    assert model.perplexity(documents) < len(model.vocabulary) < 8
