"""Answers from logits, compared with `tests/reference/squad.py` and with cases by hand."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from lmzoo.families.bert import FAMILY
from lmzoo.text import BytePairTokenizer, Preprocessor, WordPieceTokenizer
from lmzoo.text.answer_ranking import Answer, insert_null, null_scores, rank_answers
from lmzoo.text.windows import encode_windows
from tests.reference import squad as reference

WORDS = ["café", "b", "İ", "😀", "d!", "unknown", "b", "e\u0301f", "ﬁne", "(b)", "中文", "g"]


def preprocessor_of(length):
    tokens = ["cafe", "b", "##c", "d", "!", "e", "##f", "fine", "(", ")", "中", "文", "g", "q"]
    return Preprocessor(WordPieceTokenizer([*WordPieceTokenizer.special_tokens, *tokens]), FAMILY.packing, length)


def contexts_of(rng, count):
    spaces = [" ", "  ", "\n", "\u202f"]
    return ["".join(rng.choice(WORDS) + rng.choice(spaces) for _ in range(rng.randrange(1, 41))) for _ in range(count)]


def slicer_of(encoded, example):
    """Return a function that gives the text from one token of the context to another."""
    first, after = encoded.context_bounds[example]
    spans, context = encoded.spans[first:after], encoded.contexts[example]

    def slice_text(low, high):
        end = spans[high, 1] + (context[spans[high, 1] :][:1] == "\u0301")
        return context[spans[low, 0] : end].strip()

    return slice_text


def reference_rows(logits, encoded, example):
    """Return an example's windows and their spans in the form that the reference takes."""
    rows = np.flatnonzero(encoded.examples == example)
    windows = [
        reference.Row(*logits[row, : encoded.lengths[row]].astype(float).T.tolist(), int(encoded.second[row]))
        for row in rows
    ]
    begins, counts = encoded.windows
    return windows, [(int(begins[row] - encoded.context_bounds[example, 0]), int(counts[row])) for row in rows]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("threshold", [None, -1.5, 0.0, 2.0])
def test_answers_are_those_of_the_reference(threshold, ties):
    rng, numbers = random.Random(13), np.random.default_rng(17)
    with_several_windows = empty = 0
    for _ in range(25):
        n_best, longest = rng.randrange(1, 24), rng.randrange(1, 9)
        questions, contexts = rng.choices(["", "q", "q b?"], k=7), contexts_of(rng, 7)
        encoded = encode_windows(preprocessor_of(rng.randrange(9, 53)), questions, contexts, rng.randrange(1, 19))
        logits = numbers.normal(size=(len(encoded), encoded.lengths.max(), 2)).astype("float32")
        if ties:
            logits = np.round(logits)
        logits[np.arange(logits.shape[1]) >= encoded.lengths[:, None]] = 99  # padding must not count
        ranked, null = rank_answers(logits, encoded, n_best, longest), null_scores(logits, encoded)
        for i, answers in enumerate(ranked):
            rows, spans = reference_rows(logits, encoded, i)
            with_several_windows += len(rows) > 1
            expected, probabilities, null_score = reference.n_best(
                rows, spans, slicer_of(encoded, i), n_best, longest, null=threshold is not None
            )
            assert null[i] == null_score
            context = encoded.contexts[i]
            if threshold is None:
                scores = None
            else:
                answers, scores = insert_null(answers, null[i], threshold, n_best)
                best = answers[0]
                best_text = context[best.start : best.end]
                assert best_text == reference.prediction(expected, null_score, threshold)
                empty += best_text == ""
                for (text, score), probability in zip(
                    ((context[a.start : a.end], a.score) for a in answers), scores, strict=True
                ):
                    rank = [(c.text, c.score) for c in expected].index((text, score))
                    assert probability == pytest.approx(probabilities[rank], abs=1e-12)
                answers = [a for a in answers if a.start < a.end]
                expected = [c for c in expected if c.text]
            assert [(context[a.start : a.end], a.score) for a in answers] == [(c.text, c.score) for c in expected]
    assert with_several_windows > 50
    assert threshold is None or 5 < empty < 170


def answers_for(context, logits_of_tokens):
    """Return the answers for logits that are 0 except `logits_of_tokens`: (token of the row, start or end, logit)."""
    encoded = encode_windows(preprocessor_of(29), ["q"], [context])
    logits = np.zeros((1, encoded.lengths[0], 2), "float32")
    for position, column, value in logits_of_tokens:
        logits[0, position, column] = value
    return [(context[a.start : a.end], a.start, a.score) for a in rank_answers(logits, encoded)[0]]


def test_the_text_of_answers_is_that_of_their_pieces():
    # The original program joins the pieces and searches for the result in the words of the pieces. If it finds
    # nothing, because of a combining mark or an unknown word, it returns all these words; lmzoo returns the pieces'.
    rng, preprocessor, equal, shorter = random.Random(29), preprocessor_of(512), 0, 0
    for context in contexts_of(rng, 61):
        pieces = preprocessor.tokenizer.tokenize_with_offsets([context])[0]
        encoded = encode_windows(preprocessor, ["q"], [context])
        words = [m.span() for m in re.finditer(r"\S+", context)]
        for _ in range(11):
            low = rng.randrange(len(pieces))
            high = rng.randrange(low, min(low + 7, len(pieces)))
            logits = np.zeros((1, encoded.lengths[0], 2), "float32")
            logits[0, encoded.second[0] + [low, high], [0, 1]] = 9
            answer = rank_answers(logits, encoded, 1)[0][0]
            text = " ".join(context[answer.start : answer.end].split())
            covered = [context[a:b] for a, b in words if a < pieces[high].end and b > pieces[low].start]
            original = " ".join(covered)
            expected = reference.realign(reference.joined([piece.token for piece in pieces[low : high + 1]]), original)
            if expected == original:
                assert text in original
                shorter += text != original
            else:
                assert text == expected
                equal += 1
    assert equal > 50
    assert shorter > 20


def test_impossible_answers_are_left_out():
    # [CLS] q [SEP] b g d [SEP]: starts outside of the context, an end before its start, too many tokens.
    high = [(0, 0, 9), (1, 0, 9), (2, 1, 9), (6, 1, 9)]
    texts = [text for text, _, _ in answers_for("b g d", high)]
    assert sorted(texts) == ["b", "b g", "b g d", "d", "g", "g d"]
    encoded = encode_windows(preprocessor_of(67), ["q"], [" ".join("bgd" * 15)])
    logits = np.random.default_rng(3).normal(size=(1, 49, 2)).astype("float32")
    lengths = {answer.end - answer.start for answer in rank_answers(logits, encoded, 49, 4)[0]}
    assert lengths == {1, 3, 5, 7}


@pytest.mark.parametrize(
    ("context", "first", "last", "expected"),
    [
        ("Café b", 3, 3, "Café"),
        ("cafe\u0301 b", 3, 3, "cafe\u0301"),
        ("b e\u0301f b", 4, 4, "e\u0301"),  # a letter and its mark
        ("x 👍🏽 b", 4, 4, "👍🏽"),
        ("zebra\u200dx b", 3, 3, "zebra\u200dx"),  # an unknown word
        ("(bc) d", 4, 5, "bc"),
        ("b  \n d", 3, 4, "b  \n d"),
        ("中文", 4, 4, "文"),
    ],
)
def test_answers_are_slices_of_the_context(context, first, last, expected):
    answers = answers_for(context, [(first, 0, 9), (last, 1, 9)])
    assert answers[0] == (expected, context.index(expected), 18.0)


def test_whitespace_tokens_are_no_answers():
    tokenizer = BytePairTokenizer.of_words(["b", "g"], 313)
    preprocessor = Preprocessor(tokenizer, preprocessor_of(29).packing, 29)
    preprocessor.packing = type(preprocessor.packing)("<s>", "</s>", ("</s>", "</s>"), segments=False)
    context = "b  \n  g \t b "
    encoded = encode_windows(preprocessor, ["g"], [context])
    logits = np.random.default_rng(5).normal(size=(1, encoded.lengths[0], 2)).astype("float32")
    answers = rank_answers(logits, encoded, 29)[0]
    texts = [context[a.start : a.end] for a in answers]
    assert sorted(texts) == ["b", "b  \n  g", context.strip(), "g", "g \t b"]


def test_the_threshold_ranks_no_answer():
    answers = [Answer(5.0, 0, 1), Answer(4.0, 2, 3), Answer(1.0, 4, 5)]
    null = Answer(6.0, 0, 0)
    probabilities = np.exp([5, 4, 1, 6]) / np.exp([5, 4, 1, 6]).sum()
    for threshold, rank in ((0.0, 0), (1.0, 1), (0.99, 0), (2.0, 2), (9.0, 3), (-9.0, 0)):
        ranked, scores = insert_null(answers, 6.0, threshold, 20)
        assert ranked.index(null) == rank
        assert [a for a in ranked if a is not null and a != null] == answers
        np.testing.assert_allclose(scores, np.insert(probabilities[:3], rank, probabilities[3]))
    # Among the three best, it replaces the last answer.
    assert insert_null(answers, 6.0, 0.0, 3)[0] == [null, *answers[:2]]
    # Below the three best, it is added.
    assert insert_null(answers, 0.0, 0.0, 3)[0] == [*answers, null._replace(score=0.0)]
    # A list of one answer still holds both that the threshold compares.
    assert insert_null(answers, 6.0, 2.0, 1)[0] == [answers[0], null]
    assert insert_null([], 3.0, 0.0, 20) == ([Answer(3.0, 0, 0)], [1.0])
