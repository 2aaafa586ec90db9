"""Comparison of answers with labels, with fake tasks, and `Task.report`."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from lmzoo import models
from lmzoo.analysis import write_report
from lmzoo.evaluation.reports import Judged, Report
from lmzoo.families.bert import FAMILY
from lmzoo.families.marian import FAMILY as MARIAN
from lmzoo.tasks.base.labels import encode_classes
from lmzoo.tasks.base.reports import add_optional_tables
from lmzoo.testing import tiny_examples, tiny_task


def make_fake_task(method, answer, **attributes):
    """Return a fake task that has only the method that answers."""
    return SimpleNamespace(**{method: answer}, **attributes)


def test_classes_are_compared_in_all_forms():
    predicted = ["bad", "good", "bad"]
    task = make_fake_task(
        "classify",
        lambda x, batch_size: [{"label": predicted[i], "score": 0.9} for i in x],
        class_names=["bad", "good"],
        multi_label=False,
        encode_labels=lambda y: encode_classes(y, 2, ["bad", "good"]),
    )
    report = models.TextClassifier.compare(task, [[0, 1], [2]], ["bad", "bad", "bad"], batch_size=4)
    assert report.scores["accuracy"] == pytest.approx(2 / 3)
    for labels in ([b"bad"] * 3, keras.ops.zeros((3, 1), "int32"), np.array(["bad"] * 3, "S")):
        assert models.TextClassifier.compare(task, [[0, 1], [2]], labels, batch_size=4) == report
    assert report.tables["classes"][1][0] == ["bad", 1.0, pytest.approx(2 / 3), 0.8, 3]


def test_label_sets_are_compared_in_all_forms(monkeypatch):
    predicted = [["a", "b"], [], ["b"]]

    def predict(x, batch_size, verbose):
        return np.array([[0.8 if name in predicted[i] else -1.4 for name in "ab"] for i in x], "float32")

    task = tiny_task(models.TextClassifier, FAMILY, labels=["a", "b"], multi_label=True)
    monkeypatch.setattr(task, "predict", predict)
    report = task.compare([[0, 1], [2]], [["a"], [], ["b"]], batch_size=4)
    assert report.scores == pytest.approx({"micro_f1": 0.8, "macro_f1": (1 + 2 / 3) / 2, "exact": 2 / 3})
    for labels in ([[b"a"], [], [b"b"]], keras.ops.array([[1, 0], [0, 0], [0, 1]], "int32")):
        assert task.compare([[0, 1], [2]], labels, batch_size=4) == report


def test_scores_are_compared_by_correlation():
    labels, predicted = [1.0, 2.0, 4.0, 3.0], [1.0, 3.0, 4.0, 9.0]
    task = make_fake_task("score", lambda x, batch_size: [predicted[i] for i in x])
    report = models.TextRegressor.compare(task, [range(3), range(3, 4)], labels, batch_size=4)
    pearson = np.corrcoef(labels, predicted)[0, 1]
    assert report.scores == pytest.approx({"pearson": pearson, "spearman": 0.8})
    for column in (np.array(labels)[:, None], keras.ops.reshape(keras.ops.array(labels), (4, 1))):
        assert models.TextRegressor.compare(task, [range(4)], column, batch_size=4) == report
    vectors = np.array([[3.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    task = SimpleNamespace(embed=lambda x, batch_size, prompt: vectors[x], _get_pair_prompts=lambda: ("", ""))
    pairs = ([0, 0, 0], [1, 2, 3])  # cosines 1, 0.71, 0
    report = models.TextEmbedder.compare(task, [pairs], [0.9, 0.5, 0.1], batch_size=4)
    pearson = np.corrcoef([0.9, 0.5, 0.1], [1, 0.5**0.5, 0])[0, 1]
    assert report.scores == pytest.approx({"pearson": pearson, "spearman": 1.0})
    column = np.array([[0.9], [0.5], [0.1]])
    assert models.TextEmbedder.compare(task, [pairs], column, batch_size=4) == report
    assert models.TextEmbedder.compare(task, [pairs], None, batch_size=4).scores == {}


def test_choices_and_answers_are_compared():
    task = make_fake_task(
        "choose",
        lambda x, batch_size: [{"index": i, "score": 0.9} for i in x],
        encode_labels=lambda y: encode_classes(y, 3, None),
    )
    for labels in ([1, 0, 0], np.array([[1], [0], [0]]), keras.ops.array([1, 0, 0])):
        assert models.MultipleChoice.compare(task, [[1, 2], [0]], labels, batch_size=4).scores["accuracy"] == 2 / 3
    task = make_fake_task("answer", lambda x, batch_size: [{"text": text, "score": 0.9} for text in x])
    golds = [[{"text": "Ada", "answer_start": 0}], []]
    report = models.QuestionAnswerer.compare(task, [["the Ada", "Bob"]], golds, batch_size=4)
    assert report.scores["exact_match"] == 50
    assert report.scores["unanswerable_accuracy"] == 0


class Tagger:
    """Fake task with fixed labels for words, or None for truncated words."""

    def __init__(self, labels, predicted):
        self.labels = self.class_names = labels
        self.num_classes = len(labels)
        self._predicted = predicted

    def encode_inputs(self, texts):
        first = [k if label else -1 for row in self._predicted for k, label in enumerate(row)]
        splits = np.cumsum([0, *map(len, self._predicted)])
        words = [[("word", 5 * k, 5 * k + 4) for k in range(len(row))] for row in self._predicted]
        methods = {"first": np.array(first), "word_splits": splits, "words": words, "__len__": lambda self: len(texts)}
        return type("Encoded", (), methods)()

    def labels_of_words(self, encoded, batch_size):
        rows = [[self.labels.index(label) for label in row if label] for row in self._predicted]
        return [(np.array(row), np.full(len(row), 0.9)) for row in rows]

    def labels_by_word(self, texts, y, encoded):
        return list(y), 0


def test_truncated_words_are_outside_spans():
    actual = [["B-X", "I-X", "O", "B-Y"], ["B-Y", "O"], ["B-X"]]
    task = Tagger(["O", "B-X", "I-X", "B-Y"], [["B-X", "I-X", "O", "B-X"], ["B-Y", "B-Y"], [None]])
    report = models.TokenClassifier.compare(task, [actual], actual, batch_size=4)
    assert report.tables["types"][1] == [["X", 0.5, 0.5, 0.5, 2], ["Y", 0.5, 0.5, 0.5, 2]]
    assert report.scores["accuracy"] == pytest.approx(4 / 7)
    encoded = [[label.encode() for label in row] for row in actual]
    assert models.TokenClassifier.compare(task, [actual], encoded, batch_size=4) == report
    numbers = [keras.ops.array([task.labels.index(label) for label in row]) for row in actual]
    assert models.TokenClassifier.compare(task, [actual], numbers, batch_size=4) == report


def test_references_of_translations_may_be_arrays():
    pytest.importorskip("sacrebleu")
    task = SimpleNamespace(span_corruption=None, translate=lambda x, batch_size: [*map(str.upper, x)])
    for targets in (["A FILM"], np.array(["A FILM"]), np.array([b"A FILM"])):
        report = models.Seq2SeqLM.compare(task, [(["a film"], targets)], None, batch_size=4)
        assert report.scores["chrf"] == pytest.approx(100)
    with pytest.raises(ValueError, match="Got 1 translations but 0 references"):
        models.Seq2SeqLM.compare(task, [["a film"]], None, batch_size=4)


def test_a_report_of_translations_checks_for_sacrebleu_first(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    task = tiny_task(models.Seq2SeqLM, MARIAN)
    monkeypatch.setattr(task, "evaluate", None)
    with pytest.raises(ImportError, match="Translations are scored by sacrebleu: pip install"):
        task.report((["a film"], ["a plot"]))


def test_truncated_words_have_wrong_labels():
    actual = [["NOUN", "VERB"], ["NOUN"]]
    report = models.TokenClassifier.compare(
        Tagger(["NOUN", "VERB"], [["NOUN", "NOUN"], [None]]), [actual], actual, batch_size=4
    )
    assert report.tables["labels"][1] == [["NOUN", 0.5, 0.5, 0.5, 2], ["VERB", 0.0, 0.0, 0.0, 1]]
    assert report.scores == pytest.approx({"accuracy": 1 / 3, "macro_f1": 0.25})


# === Task.report ===

# `make test` reports one task for each kind of answer.
QUICK = {"TextClassifier", "TokenClassifier", "TextEmbedder"}
SCORES = {
    "TextClassifier": {"loss", "accuracy", "macro_f1"},
    "TextRegressor": {"loss", "pearson", "spearman"},
    "TokenClassifier": {"loss", "accuracy", "span_f1", "macro_f1"},
    "QuestionAnswerer": {"loss", "exact_match", "f1"},
    "MultipleChoice": {"loss", "accuracy"},
    "MaskedLM": {"loss", "perplexity"},
    "TextEmbedder": {"loss", "pearson", "spearman"},
    "Pretrainer": {"loss"},
}


@pytest.fixture
def make_examples():
    """Return a function that makes a tiny task and examples for it."""

    def build(name, **arguments):
        task = tiny_task(getattr(models, name), FAMILY, **arguments)
        x, y = tiny_examples(task, 7)
        return task, x, np.linspace(-1, 1, len(x)) if name == "TextEmbedder" else y

    return build


@pytest.mark.slow_cases("TextEmbedder", "TokenClassifier")
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in SCORES])
def test_a_report_has_the_scores_of_evaluate_and_of_the_answers(name, make_examples):
    task, x, y = make_examples(name)
    if name == "Pretrainer":
        x = [["good film", "dull plot"]] * 5
    report = task.report(x, y, batch_size=3, verbose=0)
    assert report.scores.keys() >= SCORES[name]
    measured = task.evaluate(x, y if task.needs_labels else None, batch_size=3, return_dict=True, verbose=0)
    if name == "MaskedLM":  # its report has the loss over all tokens
        measured = task.measure(x, None, 3, verbose=0)
    scores = {name: report.scores[name] for name in measured if name != "accuracy"}
    if name != "Pretrainer":  # its evaluation masks other tokens each time
        assert scores == pytest.approx({name: measured[name] for name in scores}, rel=1e-5)
    lines = str(report).splitlines()
    assert lines[0].split() == ["score", "value"]
    assert sum(line == "" for line in lines) == len(report.tables)


def test_words_without_a_label_do_not_count(make_examples):
    task, x, y = make_examples("TokenClassifier")
    words = [text.split() for text in x]
    partly_ignored = [[-100, *labels[1:]] for labels in y]
    report = task.report(words, partly_ignored, verbose=0)
    assert sum(map(len, y)) - len(y) > 0
    predicted = task.predict(words, verbose=0).argmax(axis=-1)
    encoded = task.encode_inputs(words)
    is_correct = [
        predicted[i, column] == label
        for i, columns in enumerate(np.split(encoded.first, encoded.word_splits[1:-1]))
        for column, label in list(zip(columns, y[i], strict=True))[1:]
    ]
    assert report.scores["accuracy"] == pytest.approx(np.mean(is_correct))


def test_both_forms_of_pairs_give_equal_reports(make_examples):
    task, x, y = make_examples("TextEmbedder")
    firsts, seconds = map(list, zip(*x, strict=True))
    assert task.report(x, y, verbose=0).scores == task.report((firsts, seconds), y, verbose=0).scores


def test_texts_of_errors_are_valid_unicode(tmp_path):
    """Invalid characters are shown as the model reads them, so that the report can be written as UTF-8."""
    report = Report(judged=Judged.of_classes(["a", "b"], ["b", "a"], [0.5, 0.75]))
    report = add_optional_tables(report, [("caf\ud800", b"\xff"), ("fine", b"film")], True, None)
    assert [row[-1] for row in report.tables["worst"][1]] == ["fine / film", "caf\ufffd / \ufffd"]
    write_report(tmp_path / "report.html", report)


def test_errors_of_pairs_in_tensors():
    tensorflow = pytest.importorskip("tensorflow")
    report = Report(judged=Judged.of_classes(["a", "b"], ["b", "b"], [0.5, 0.75]))
    pairs = tensorflow.constant(["the film", "a"]), tensorflow.constant(["good", "bad"])
    report = add_optional_tables(report, pairs, True, {"n": [1, 2]})
    assert [row[-1] for row in report.tables["worst"][1]] == ["the film / good"]
    assert [row[0] for row in report.tables["by length"][1]] == ["7", "15"]


def test_a_tagger_without_labeled_words_has_no_scores_of_words(make_examples):
    task, x, y = make_examples("TokenClassifier")
    ignored = [[-100] * len(labels) for labels in y]
    report = task.compare([x], ignored, batch_size=3)
    assert (report.scores, report.tables) == ({}, {})
    assert report.judged.count == len(x)


def test_a_report_needs_texts(make_examples):
    task, x, y = make_examples("TextClassifier")
    features = task.text_preprocessor(x)
    with pytest.raises(TypeError, match="A report needs texts in memory, got dict: `evaluate` takes other data"):
        task.report(features, y)
    with pytest.raises(ValueError, match="needs a label for each text"):
        task.report(x)


def test_tasks_without_right_answers_refuse_errors_before_the_evaluation(make_examples, monkeypatch):
    task, x, _ = make_examples("MaskedLM")
    monkeypatch.setattr(task, "measure", None)
    for arguments in ({"errors": True}, {"columns": {"n": [*range(7)]}}):
        for y in (None, x):
            with pytest.raises(ValueError, match=r"This task has no answers that are right or wrong"):
                task.report(x, y, **arguments)


def test_arguments_are_checked_before_the_evaluation(make_examples, monkeypatch):
    task, x, y = make_examples("TextClassifier")
    monkeypatch.setattr(task, "evaluate", None)
    for columns in ({"n": [*y, 0]}, {"n": y[1:]}):
        with pytest.raises(ValueError, match=r"The column 'n' has . values for 7 examples"):
            task.report(x, y, columns=columns)
    with pytest.raises(TypeError, match="The column 'n' must be a list, got 'abcdefg'"):
        task.report(x, y, columns={"n": "abcdefg"})
    with pytest.raises(ValueError, match="The column 'length' must have another name"):
        task.report(x, y, errors=True, columns={"length": y})
    with pytest.raises(ValueError, match="a number for each epoch"):
        task.report(x, y, history={})
    with pytest.raises(TypeError, match="pass these as they are, not encoded"):
        task.report(task.encode_inputs(x), y, errors=True)
