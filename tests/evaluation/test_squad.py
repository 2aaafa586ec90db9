"""All forms of labels of question answering, and scores, compared with `tests/reference/squad.py`."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lmzoo.data.readers import read_squad
from lmzoo.evaluation.squad import (
    Gold,
    best_null_threshold,
    find_answer,
    find_answers,
    normalize_answer,
    read_golds,
    squad_metrics,
)
from tests.reference import squad as reference

BOB = {"text": "Bob", "answer_start": 8}
GOLD = Gold("Bob", 8)


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        ([BOB, None], [[GOLD], []]),
        ([[BOB, {"text": "Eve", "answer_start": np.int64(3)}], []], [[GOLD, Gold("Eve", 3)], []]),
        ([{"text": ["Bob", "Eve"], "answer_start": [8, 3]}], [[GOLD, Gold("Eve", 3)]]),
        ([{"text": [], "answer_start": []}], [[]]),
        ([{"text": np.array(["Bob"]), "answer_start": np.array([8])}], [[GOLD]]),
        ([{"text": "", "answer_start": -1}, ""], [[], []]),
        (["Bob", ["Bob", b"Eve"]], [[Gold("Bob", None)], [Gold("Bob", None), Gold("Eve", None)]]),
        ({"text": ["Bob", ""], "answer_start": [8, 0]}, [[GOLD], []]),
        ({"text": np.array([b"Bob", b"Eve"], object), "answer_start": np.array([8, 3])}, [[GOLD], [Gold("Eve", 3)]]),
        ({"text": [["Bob", "Eve"], []], "answer_start": [[8, 3], []]}, [[GOLD, Gold("Eve", 3)], []]),
        (np.array([BOB, None], object), [[GOLD], []]),
        ([{"text": "\ud800", "answer_start": 0}], [[Gold("\ufffd", 0)]]),
        ([], []),
    ],
)
def test_all_forms_of_labels(y, expected):
    assert read_golds(y) == expected


@pytest.mark.parametrize(
    ("y", "error", "message"),
    [
        ([BOB, 3], TypeError, r'`y\[1\]` must be {"text": str, "answer_start": int}.*got 3'),
        ([[BOB, 3]], TypeError, r"`y\[0\]` must be"),
        ([{"answer_start": 3}], TypeError, r'`y\[0\]` must have a "text"'),
        (
            [{"text": "Bob", "answer_start": "8"}],
            TypeError,
            r'"answer_start" of `y\[0\]` must be an integer, got \'8\'',
        ),
        ([{"text": "Bob", "answer_start": 8.0}], TypeError, "must be an integer, got 8.0"),
        ([BOB, {"text": ["Bob"], "answer_start": [8, 9]}], ValueError, r"`y\[1\]` holds 1 texts but 2 starts"),
        ([{"text": ["Bob"], "answer_start": 8}], TypeError, r"`y\[0\]` must hold lists"),
        ([{"text": 3}], TypeError, r"`y\[0\]` must hold lists"),
        ({"answer_start": [3]}, TypeError, "`y` must hold lists"),
        ("Bob", TypeError, "`y` must be a list with the answer of each example"),
        (3, TypeError, "`y` must be a list"),
        (np.array([[1, 2]]), TypeError, r"`y\[0\]` must be"),
    ],
)
def test_errors_of_labels(y, error, message):
    with pytest.raises(error, match=message):
        read_golds(y)


@pytest.mark.parametrize(
    ("context", "text", "start", "expected"),
    [
        ("Ada met Bob", "Bob", 8, (8, 11)),
        ("Bob met Bob", "Bob", 0, (0, 3)),
        ("Bob met Bob", "Bob", 8, (8, 11)),
        ("Ada met Bob", "Bob", 7, None),  # the position of a space
        ("Ada met Bob", "Bob", 9, None),
        ("Ada met Bob", "bob", 8, None),
        ("Ada met Bob", "Bob", -3, None),
        ("Ada met Bob", "Bob", 99, None),
        ("Ada met Bob", "Bobby", 8, None),
        ("Ada  met\n\tBob", "Ada met Bob", 0, (0, 13)),
        ("Ada met Bob", "Ada\u202fmet  Bob", 0, (0, 11)),
        ("Ada met Bob", "met ", 4, (4, 7)),
        ("Ada met Bob", " met", 3, (4, 7)),
        ("Ada met Bob", " met", 4, None),
        ("Ada met Bob", "adamet", 0, None),
        ("Ada met\u00a0Bob", "met Bob", 4, None),  # not white space in the original
        ("cafe\u0301 x", "cafe\u0301", 0, (0, 5)),
        ("caf\u00e9 x", "cafe\u0301", 0, None),
        ("👩‍👧 met 👍🏽", "👍🏽", 8, (8, 10)),
        ("a.b (c)", ".b (c", 1, (1, 6)),
        ("a b", " ", 1, None),
    ],
)
def test_spans_of_answers(context, text, start, expected):
    assert find_answer(context, Gold(text, start)) == expected


def test_the_first_answer_counts_and_all_are_checked():
    contexts, golds = ["Ada met Bob", "Eve", "Bob"], [[GOLD, Gold("met", 4)], [], [Gold("Bob", 0)]]
    assert find_answers(contexts, golds).tolist() == [[8, 11], [0, 0], [0, 3]]
    message = r"The answer of example 0, 'met', is not at character 5 .* where 'et ' stands; it occurs at 4"
    with pytest.raises(ValueError, match=message):
        find_answers(contexts, [[GOLD, Gold("met", 5)], [], []])
    with pytest.raises(ValueError, match=r"answer of example 2, 'Bobby', is not at .* it occurs nowhere in it"):
        find_answers(contexts, [[], [], [Gold("Bobby", 0)]])
    with pytest.raises(ValueError, match=r"answer of example 1, 'Eve', is not at character 5 .* it occurs at 8"):
        find_answers(["", "Eve met Eve"], [[], [Gold("Eve", 5)]])
    with pytest.raises(ValueError, match=r"""answer of example 0, 'Ada', lacks its "answer_start\""""):
        find_answers(contexts, read_golds(["Ada", None, None]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat's a-hat!", "cats ahat"),
        ("a an the", ""),
        ("An Athe another", "athe another"),
        ("the-cat", "thecat"),
        ("“Straße” é…", "“straße” é…"),  # only ASCII punctuation is removed
        ("", ""),
        ("1,000.5", "10005"),
    ],
)
def test_normalized_answers(text, expected):
    assert normalize_answer(text) == expected == reference.normalize(text)


def test_scores_by_hand():
    golds = [{"text": ["Denver Broncos", "the Broncos"]}, ["Ada Lovelace"], None, [], ["Bob"]]
    predictions = ["Broncos!", {"text": "Lovelace met Ada"}, "", "Eve", None]
    scores = squad_metrics(predictions, golds)
    assert scores.pop("f1") == pytest.approx(100 * (1 + 0.8 + 1 + 0 + 0) / 5)
    assert scores.pop("answerable_f1") == pytest.approx(100 * 1.8 / 3)
    assert scores == {
        "exact_match": 40.0,
        "total": 5,
        "answerable_exact_match": pytest.approx(100 / 3),
        "unanswerable_accuracy": 50.0,
        "answerable_total": 3,
        "unanswerable_total": 2,
    }
    assert squad_metrics(["Bob"], ["bob."]) == {"exact_match": 100.0, "f1": 100.0, "total": 1}
    assert "answerable_f1" not in squad_metrics([""], [None])


def test_errors_of_predictions():
    with pytest.raises(ValueError, match="as many predictions as golds, and at least one; got 1 and 2"):
        squad_metrics(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="got 0 and 0"):
        squad_metrics([], [])
    with pytest.raises(TypeError, match=r"`predictions\[1\]` must be an answer or its text, got 3"):
        squad_metrics(["a", 3], ["a", "b"])
    with pytest.raises(TypeError, match=r"`predictions\[0\]` must be"):
        squad_metrics([{"answer": "a"}], ["a"])
    with pytest.raises(TypeError, match=r"must be a list, got a dict\. Pass its values, in the order of `golds`"):
        squad_metrics({"id 1": "Bob"}, ["Bob"])


def test_scores_are_those_of_the_reference():
    rng = random.Random(7)
    words = ["the", "a", "cat", "Cat!", "sat", "on", "...", "é", "hat,", "An", "2,000", ""]

    def text():
        return " ".join(rng.choices(words, k=rng.randrange(5)))

    golds = [[text() for _ in range(rng.randrange(4))] for _ in range(3000)]
    predictions = [rng.choice([*texts, text()]) for texts in golds]
    scores = squad_metrics(predictions, golds)
    assert (scores["exact_match"], scores["f1"]) == pytest.approx(reference.scores(predictions, golds), abs=1e-9)
    assert 5 < scores["exact_match"] < scores["f1"] < 95


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dev-v1.1.open", "dev-v2.0.open"])
def test_scores_of_squad_are_those_of_the_reference(shared, name):
    (_, contexts), answers = read_squad(shared(f"data/squad/{name}.json.gz"))
    texts = [[gold["text"] for gold in golds] for golds in answers]
    predictions = [
        (golds[-1] if golds and i % 3 else " ".join(c.split()[:5]))
        for i, (c, golds) in enumerate(zip(contexts, texts, strict=True))
    ]
    scores = squad_metrics(predictions, answers)
    assert (scores["exact_match"], scores["f1"]) == pytest.approx(reference.scores(predictions, texts), abs=1e-9)
    assert find_answers(contexts, read_golds(answers)).shape == (len(contexts), 2)


def test_thresholds_are_the_best_ones():
    rng = np.random.default_rng(11)
    for _ in range(300):
        count = rng.integers(1, 9)
        null, best = (rng.integers(-3, 4, count).astype(float) for _ in range(2))
        answers, empty = rng.choice([0.0, 0.5, 1.0], count), rng.choice([0.0, 1.0], count)
        threshold = best_null_threshold(null - best, answers, empty)
        score = np.where(null - best > threshold, empty, answers).mean()
        assert score == pytest.approx(reference.best_threshold_score(null, best, answers, empty))


def test_thresholds_at_the_edges():
    differences = np.array([1.0, 2.0, np.inf])
    assert best_null_threshold(differences, np.ones(3), np.zeros(3)) == 2.5
    assert best_null_threshold(differences, np.zeros(3), np.ones(3)) == 0.5
    assert best_null_threshold(differences, np.array([1.0, 0, 0]), np.array([0, 1.0, 1.0])) == 1.5
    assert best_null_threshold(np.array([np.inf]), np.zeros(1), np.ones(1)) == 0.0
