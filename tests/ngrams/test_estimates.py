"""The estimates of n-gram models, compared with a reference in dictionaries and with KenLM."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from lmzoo.data.corpora import train_words
from lmzoo.models import NgramLM
from lmzoo.ngrams.kneser_ney import FALLBACK, estimate
from lmzoo.ngrams.table import END, START, UNKNOWN
from tests.reference.kneser_ney import KneserNey

# The file that KenLM's `lmplz -o 3` writes for the training reviews, one a line, words separated by spaces.
KENLM_FILE = Path(__file__).parent / "kenlm_reviews.arpa.gz"


def scores(model: NgramLM, sentences: list[list[str]]) -> list[float]:
    return [token["log_probability"] for answer in model.score(sentences) for token in answer]


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_equal_to_the_reference(reviews, order):
    model, train = NgramLM(order), reviews["train"] + reviews["test"][:50]
    model.fit([train], verbose=False)
    reference = KneserNey(train, model.vocabulary[3:], order)
    np.testing.assert_allclose(model.discounts, [discounts[1:] for discounts in reference.discounts], rtol=1e-12)
    expected = [value for sentence in reviews["test"] for value in reference.log_probabilities(sentence)]
    np.testing.assert_allclose(scores(model, reviews["test"]), expected, rtol=0, atol=5e-6)


def test_equal_to_the_reference_with_unknown_words(reviews):
    """All words outside the vocabulary are counted as one."""
    tokenizer = train_words([reviews["train"]], vocabulary_size=211, verbose=False)
    model = NgramLM(3, tokenizer)
    model.fit([reviews["train"]], verbose=False)
    assert len(model.vocabulary) == 211
    reference = KneserNey(reviews["train"], tokenizer.vocabulary[3:], 3)
    expected = [value for sentence in reviews["test"] for value in reference.log_probabilities(sentence)]
    np.testing.assert_allclose(scores(model, reviews["test"]), expected, rtol=0, atol=5e-6)
    assert model.perplexity([reviews["test"]], verbose=False) == pytest.approx(math.exp(-np.mean(expected)), rel=1e-6)


def test_equal_to_kenlm(reviews, trigrams):
    """All numbers of KenLM's file and the perplexity of held-out text are equal."""
    kenlm = NgramLM.load(KENLM_FILE, verbose=False)
    assert kenlm.num_ngrams == trigrams.num_ngrams == [1003, 2707, 3386]
    actual, expected = trigrams._table, kenlm._table
    kenlm_ids = {word: token for token, word in enumerate(kenlm.vocabulary)}
    tokens = ngrams = np.array([kenlm_ids[word] for word in trigrams.vocabulary])
    for order in range(1, 4):
        i = order - 1
        if order > 1:
            ngrams = expected.find(order, ngrams[actual.keys[i] // len(tokens)], tokens[actual.keys[i] % len(tokens)])
        assert sorted(ngrams) == list(range(len(ngrams)))
        np.testing.assert_allclose(actual.log10[i], expected.log10[i][ngrams], rtol=0, atol=1e-6)
        if order < 3:
            np.testing.assert_allclose(actual.backoff[i], expected.backoff[i][ngrams], rtol=0, atol=1e-6)
    held_out = [reviews["test"]]
    assert trigrams.perplexity(held_out) == pytest.approx(kenlm.perplexity(held_out, verbose=False), rel=1e-6)


def test_kenlm_reads_our_files(reviews, trigrams, tmp_path):
    kenlm = pytest.importorskip("kenlm")
    trigrams.save(tmp_path / "reviews.arpa", verbose=False)
    model = kenlm.Model(str(tmp_path / "reviews.arpa"))
    expected = [log10 for sentence in reviews["test"] for log10, *_ in model.full_scores(" ".join(sentence))]
    np.testing.assert_allclose(np.array(scores(trigrams, reviews["test"])) / math.log(10), expected, rtol=0, atol=1e-5)


def test_probabilities_add_up(reviews, trigrams):
    """They sum to 1 after known and unknown contexts, and are the same as in a sentence."""
    table, ids = trigrams._table, {word: token for token, word in enumerate(trigrams.vocabulary)}
    contexts = [[START, *(ids.get(word, UNKNOWN) for word in sentence)] for sentence in reviews["test"]]
    contexts += [[], [END], [UNKNOWN, UNKNOWN], [START, START]]
    for context in [sentence[:n] for sentence in contexts for n in range(len(sentence) + 1)]:
        log_probabilities = table.next_log_probabilities(context)
        assert np.exp(log_probabilities).sum() == pytest.approx(1, abs=2e-6)
        assert log_probabilities[START] < -200
    for sentence in contexts[:100]:
        tokens = np.array([*sentence, END])
        expected = [table.next_log_probabilities(tokens[:n])[tokens[n]] for n in range(1, len(tokens))]
        np.testing.assert_allclose(table.log_probabilities(tokens)[1:], expected, rtol=1e-12)


def test_fallback_discounts_by_hand():
    """The text is too small for its own discounts. It holds "a b" twice and "a c" once; words count bigrams."""
    a, b, c = 3, 4, 5
    tokens = [START, a, b, END, START, a, b, END, START, a, c, END]
    with pytest.warns(UserWarning, match=r"of the orders \[2\]: \(0.5, 1.0, 1.5\)"):
        table, discounts = estimate(np.array(tokens, "int32"), 6, 2)
    assert discounts == [FALLBACK, FALLBACK]
    weight = (0.5 * 3 + 1) / 5 / 5  # unigrams: a, b and c after one word each, the end after two; 5 words to predict
    once, twice = 0.5 / 5 + weight, 1 / 5 + weight
    probabilities = np.exp(table.log_probabilities(np.array([START, a, b, END, START, UNKNOWN, a])))
    after_a = (1 + 0.5) / 3  # b twice, c once
    assert probabilities[1:4] == pytest.approx([0.5 + 0.5 * once, 1 / 3 + after_a * once, 0.5 + 0.5 * twice], rel=1e-6)
    assert probabilities[5:] == pytest.approx([0.5 * weight, once], rel=1e-6)
