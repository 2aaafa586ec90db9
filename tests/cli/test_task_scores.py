"""How `lmzoo evaluate` compares predictions with labels, with stand-ins for models."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from lmzoo.cli.task_scores import (
    report_answers,
    report_choices,
    report_classes,
    report_label_sets,
    report_numbers,
    report_pairs,
    report_tags,
)


def model(verb, answer, **attributes):
    """A stand-in for a task that has only its verb."""
    return SimpleNamespace(verb=verb, **{verb: answer}, **attributes)


def test_classes():
    found = ["bad", "good", "bad"]
    task = model("classify", lambda x, batch_size: [{"label": found[i]} for i in x], class_names=["bad", "good"])
    report = report_classes(task, [[0, 1], [2]], ["bad", "bad", "bad"], batch_size=4)
    assert report.scores["accuracy"] == pytest.approx(2 / 3)
    assert report.tables["classes"][1][0] == ["bad", 1.0, pytest.approx(2 / 3), 0.8, 3]


def test_label_sets():
    found = [["a", "b"], [], ["b"]]

    def classify(x, batch_size):
        return [[{"label": name} for name in found[i]] for i in x]

    task = model("classify", classify, class_names=["a", "b"])
    report = report_label_sets(task, [[0, 1], [2]], [["a"], [], ["b"]], batch_size=4)
    assert report.scores == pytest.approx({"micro_f1": 0.8, "macro_f1": (1 + 2 / 3) / 2, "exact": 2 / 3})


def test_correlations():
    labels, predicted = [1.0, 2.0, 4.0, 3.0], [1.0, 3.0, 4.0, 9.0]
    task = model("score", lambda x, batch_size: [predicted[i] for i in x])
    report = report_numbers(task, [range(3), range(3, 4)], labels, batch_size=4)
    pearson = np.corrcoef(labels, predicted)[0, 1]
    assert report.scores == pytest.approx({"pearson": pearson, "spearman": 0.8})
    vectors = np.array([[3.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    task = SimpleNamespace(embed=lambda x, batch_size: vectors[x])
    pairs = ([0, 0, 0], [1, 2, 3])  # cosines 1, 0.71, 0
    report = report_pairs(task, [pairs], [0.9, 0.5, 0.1], batch_size=4)
    pearson = np.corrcoef([0.9, 0.5, 0.1], [1, 0.5**0.5, 0])[0, 1]
    assert report.scores == pytest.approx({"pearson": pearson, "spearman": 1.0})
    assert report_pairs(task, [pairs], None, batch_size=4).scores == {}


def test_choices_and_answers():
    task = model("choose", lambda x, batch_size: [{"index": i} for i in x])
    assert report_choices(task, [[1, 2], [0]], [1, 0, 0], batch_size=4).scores["accuracy"] == 2 / 3
    task = model("answer", lambda x, batch_size: [{"text": text} for text in x])
    golds = [[{"text": "Ada", "answer_start": 0}], []]
    report = report_answers(task, [["the Ada", "Bob"]], golds, batch_size=4)
    assert report.scores["exact_match"] == 50
    assert report.scores["unanswerable_accuracy"] == 0


class Tagger:
    """A stand-in for a model with fixed labels for the words that it sees; None for words that are cut off."""

    def __init__(self, labels, given):
        self.labels = self.class_names = labels
        self._given = given

    def encode_inputs(self, texts):
        first = [k if label else -1 for row in self._given for k, label in enumerate(row)]
        splits = np.cumsum([0, *map(len, self._given)])
        return type("Encoded", (), {"first": np.array(first), "word_splits": splits})

    def predict(self, encoded, batch_size, verbose):
        logits = np.zeros((len(self._given), 9, len(self.labels)))
        for i, row in enumerate(self._given):
            for k, label in enumerate(row):
                if label:
                    logits[i, k, self.labels.index(label)] = 1
        return logits


def test_words_that_were_cut_off_are_outside_of_spans():
    actual = [["B-X", "I-X", "O", "B-Y"], ["B-Y", "O"], ["B-X"]]
    task = Tagger(["O", "B-X", "I-X", "B-Y"], [["B-X", "I-X", "O", "B-X"], ["B-Y", "B-Y"], [None]])
    report = report_tags(task, [actual], actual, batch_size=4)
    assert report.tables["types"][1] == [["X", 0.5, 0.5, 0.5, 2], ["Y", 0.5, 0.5, 0.5, 2]]
    assert report.scores["accuracy"] == pytest.approx(4 / 7)


def test_words_that_were_cut_off_have_wrong_labels():
    actual = [["NOUN", "VERB"], ["NOUN"]]
    report = report_tags(Tagger(["NOUN", "VERB"], [["NOUN", "NOUN"], [None]]), [actual], actual, batch_size=4)
    assert report.tables["labels"][1] == [["NOUN", 0.5, 0.5, 0.5, 2], ["VERB", 0.0, 0.0, 0.0, 1]]
    assert report.scores == pytest.approx({"accuracy": 1 / 3, "macro_f1": 0.25})
