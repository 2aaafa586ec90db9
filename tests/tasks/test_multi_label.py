"""`TextClassifier(multi_label=True)`: forms of labels, the loss and the metric, answers, files."""

from __future__ import annotations

import tracemalloc

import keras
import numpy as np
import pytest

from lmzoo.models import TextClassifier
from lmzoo.training import MicroF1
from tests.reference.weights import randomise

NAMES = ["art", "sport", "war", "law", "sea"]
TEXTS = ["good film", "bad", "the plot was very dull .", "a fine film !", "dull", "", "the film was good . very good !"]
SETS = [["art", "war"], (), {"sea"}, ["law", "sport", "art"], ("war",), [], ["sea", "art"]]
NUMBERS = [[0, 2], [], [4], [3, 1, 0], [2], [], [4, 0]]
MATRIX = np.array([[int(i in row) for i in range(5)] for row in NUMBERS])
WEIGHTS = np.array([0.5, 2.0, 1.0, 0.0, 3.0, 0.25, 1.5], "float32")


def build(tiny, **arguments):
    return TextClassifier(tiny.backbone(), tiny.preprocessor(), labels=NAMES, multi_label=True, **arguments)


def spread_logits(task):
    """Assign weights that do not depend on the backend, with which logits have both signs and are far apart."""
    randomise(task)
    kernel = task.head.logits.kernel
    kernel.assign(np.random.default_rng(9).normal(0, 0.7, kernel.shape))


@pytest.fixture(scope="module")
def task(tiny):
    task = build(tiny)
    spread_logits(task)
    return task


def compute_scores(logits, labels, weights):
    """Return the loss, and micro F1 from weighted counts."""
    probabilities = 1 / (1 + np.exp(-logits.astype("float64")))
    losses = -np.where(labels == 1, np.log(probabilities), np.log(1 - probabilities)).mean(axis=1)
    is_predicted, weights = probabilities >= 0.5, weights[:, None]
    true_positives = (weights * (is_predicted & (labels == 1))).sum()
    f1 = 2 * true_positives / ((weights * is_predicted).sum() + (weights * labels).sum())
    return (weights[:, 0] * losses).mean(), f1


def ragged(rows):
    array = np.empty(len(rows), object)
    array[:] = [list(row) for row in rows]
    return array


@pytest.mark.parametrize(
    "y",
    [
        SETS,
        tuple(SETS),
        NUMBERS,
        [np.array(row, int) for row in NUMBERS],
        [[name.encode() for name in row] for row in SETS],
        ragged(SETS),
        MATRIX,
        MATRIX.astype(bool),
        MATRIX.astype("float32"),
    ],
    ids=["names", "tuple", "numbers", "arrays", "bytes", "objects", "matrix", "bools", "floats"],
)
def test_all_forms_of_labels_are_equivalent(task, y):
    encoded = task.encode_labels(y)
    assert encoded.dtype == np.float32
    np.testing.assert_array_equal(encoded, MATRIX)
    np.testing.assert_array_equal(task.encode_labels(encoded), MATRIX)


def test_empty_sets_and_no_labels(task):
    assert task.encode_labels([[], ()]).tolist() == [[0] * 5] * 2
    assert task.encode_labels([]).shape == (0, 5)


@pytest.mark.quick_cases("features")
@pytest.mark.parametrize("kind", ["texts", "features"])
def test_loss_and_f1_agree_with_numpy(tiny, task, kind):
    logits = task.predict(TEXTS, verbose=0)
    assert (logits > 0).any(axis=0).sum() > 1
    assert (logits < 0).any(axis=0).sum() > 1
    x = TEXTS if kind == "texts" else tiny.preprocessor()(TEXTS)
    y = SETS if kind == "texts" else MATRIX
    for weights in (np.ones(7, "float32"), WEIGHTS):
        scores = task.evaluate(x, y, batch_size=3, sample_weight=weights, return_dict=True, verbose=0)
        loss, f1 = compute_scores(logits, MATRIX, weights)
        assert scores == {"loss": pytest.approx(loss, rel=1e-5), "micro_f1": pytest.approx(f1, rel=1e-5)}
        assert 0.1 < f1 < 0.9
    assert scores["loss"] != pytest.approx(compute_scores(logits, MATRIX, np.ones(7))[0], rel=1e-2)


def test_classify_returns_what_is_probable(task):
    probabilities = 1 / (1 + np.exp(-task.predict(TEXTS, verbose=0)))
    for threshold in (0.5, 0.3, 0.8):
        for row, answers in zip(probabilities, task.classify(TEXTS, batch_size=3, threshold=threshold), strict=True):
            order = [i for i in np.argsort(-row) if row[i] >= threshold]
            assert [answer["label"] for answer in answers] == [NAMES[i] for i in order]
            np.testing.assert_allclose([answer["score"] for answer in answers], row[order], rtol=1e-5)
    assert [len(answers) for answers in task.classify(TEXTS, threshold=0.0)] == [5] * 7
    assert task.classify(TEXTS, threshold=1.01) == [[]] * 7
    assert task.classify([]) == []


def test_classes_with_equal_scores_are_in_the_given_order(task, monkeypatch):
    monkeypatch.setattr(task, "predict", lambda *_, **__: np.array([[0, 2, 0, 2, -1]], "float32"))
    (answers,) = task.classify(["good"], threshold=0.5)
    assert [answer["label"] for answer in answers] == ["sport", "law", "art", "war"]


def test_the_threshold_is_not_rounded_to_float32(task):
    score = task.classify(TEXTS[:1], threshold=0.0)[0][-1]["score"]
    assert len(task.classify(TEXTS[:1], threshold=score)[0]) == 5
    assert len(task.classify(TEXTS[:1], threshold=np.nextafter(score, 1))[0]) == 4


def test_improbable_classes_take_no_memory(task, monkeypatch):
    monkeypatch.setattr(task, "predict", lambda *_, **__: np.full((5003, 5), -3, "float32"))
    answers, peak = measure_peak(lambda: task.classify(["good"] * 5003))
    assert answers == [[]] * 5003
    assert peak < 2 << 20  # dicts for all classes would take 5 MB


def measure_peak(function):
    """Return the result of a function, and the peak in bytes of the memory that it allocated."""
    tracemalloc.start()
    try:
        return function(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_reports_make_no_answers_for_improbable_classes(task, monkeypatch):
    monkeypatch.setattr(task, "classify", None)
    report = task.compare([TEXTS[:4], TEXTS[4:]], SETS, batch_size=3)
    probabilities = 1 / (1 + np.exp(-task.predict(TEXTS, verbose=0).astype("float64")))
    is_predicted = probabilities >= 0.5
    assert report.scores["exact"] == pytest.approx((is_predicted == MATRIX).all(axis=1).mean())
    np.testing.assert_array_equal(report.judged.error.reshape(7, 5), is_predicted != MATRIX)
    np.testing.assert_array_equal(report.judged.example, np.repeat(np.arange(7), 5))
    np.testing.assert_allclose(
        report.judged.probability.reshape(7, 5), np.maximum(probabilities, 1 - probabilities), rtol=1e-5
    )
    assert report.judged.actual[:5] == ["art", "not sport", "war", "not law", "not sea"]


def test_large_logits_do_not_overflow(task, monkeypatch):
    monkeypatch.setattr(task, "predict", lambda *_, **__: np.array([[-1000.0, 0, 1000, -5, 5]], "float32"))
    (answers,) = task.classify(["good"])
    scores = [(answer["label"], round(answer["score"], 4)) for answer in answers]
    assert scores == [("war", 1.0), ("sea", 0.9933), ("sport", 0.5)]


@pytest.mark.parametrize(
    ("y", "error", "message"),
    [
        ([*SETS[:-1], ["art", "peace"]], ValueError, "Label 'peace' at position 6 is not one of"),
        ([*NUMBERS[:-1], [0, 5]], ValueError, r"Label 5 at position 6 is outside \[0, 5\)"),
        ([[-1], *NUMBERS[1:]], ValueError, r"Label -1 at position 0 is outside \[0, 5\)"),
        (["art", *SETS[1:]], TypeError, "Label 'art' at position 0 is not a collection"),
        ([[], 2, *NUMBERS[2:]], TypeError, "Label 2 at position 1 is not a collection"),
        (np.arange(7), TypeError, "Label .* at position 0 is not a collection"),
        ([[], [True, False], *NUMBERS[2:]], TypeError, "Label True at position 1 is neither a class's name nor"),
        ([[], [None], *NUMBERS[2:]], TypeError, "Label None at position 1 is neither"),
        ([[], [1.0], *NUMBERS[2:]], TypeError, "Label 1.0 at position 1 is neither"),
        ([[], [["art"]], *SETS[2:]], TypeError, "at position 1 is neither"),
        (MATRIX.tolist(), ValueError, r"at position 0 hold class \d twice.*are passed as an array"),
        (MATRIX[:, :4], ValueError, r"Expected 0s and 1s of shape \(n, 5\), got labels of shape \(7, 4\)"),
        (MATRIX * 2, ValueError, "Label 2 at position 0 is neither 0 nor 1"),
        (np.where(MATRIX, 0.5, 0), ValueError, "Label 0.5 at position 0 is neither 0 nor 1"),
    ],
)
def test_errors_come_before_the_first_step(task, assert_refused, y, error, message):
    assert_refused(task, (TEXTS, y), (TEXTS, SETS), error, message)


@pytest.mark.slow
def test_lists_of_zeros_and_ones_are_refused_if_all_have_both_classes(tiny):
    task = TextClassifier(tiny.backbone(), tiny.preprocessor(), num_classes=2, multi_label=True)
    with pytest.raises(ValueError, match=r"All 2 examples have both classes, 0 and 1\. Rows of 0s and 1s"):
        task.fit(TEXTS[:2], [[1, 0], [0, 1]], verbose=0)
    with pytest.raises(ValueError, match="All 100 examples have both classes"):
        task.fit(TEXTS[:2] * 50, [[0, 1]] * 100, verbose=0)
    for y in ([[1, 0], [0]], [[0], []], [[0, 1], [0, 1]], np.ones((2, 2))):
        assert np.isfinite(task.evaluate(TEXTS[:2], y, verbose=0)[0])


def test_options_of_single_label_classifiers_are_refused(tiny, task, steps):
    with pytest.raises(ValueError, match="leave out `top_k`"):
        task.classify(TEXTS, top_k=2)
    with pytest.raises(ValueError, match="`threshold` is for `multi_label`"):
        tiny.classifier().classify(TEXTS, threshold=0.4)
    with pytest.raises(ValueError, match=r"needs exactly one class per text, .* pass `sample_weight`"):
        task.fit(TEXTS, SETS, class_weight={"art": 2.0}, callbacks=[steps], verbose=0)
    assert steps.count == 0


@pytest.mark.slow
def test_files_restore_the_setting_and_the_answers(tiny, save_and_load):
    task = build(tiny)
    spread_logits(task)
    task.fit(TEXTS, SETS, verbose=0)
    expected = task.classify(TEXTS)
    for loaded in save_and_load(task):
        assert loaded.multi_label
        assert isinstance(loaded.loss, keras.losses.BinaryCrossentropy)
        for row, answers in zip(expected, loaded.classify(TEXTS), strict=True):
            assert [answer["label"] for answer in answers] == [answer["label"] for answer in row]
            np.testing.assert_allclose([a["score"] for a in answers], [a["score"] for a in row], rtol=1e-5)
        before = task.evaluate(TEXTS, SETS, verbose=0)
        assert loaded.evaluate(TEXTS, SETS, verbose=0) == pytest.approx(before, rel=1e-5)
        loaded.fit(TEXTS, SETS, verbose=0)
    single = TextClassifier.from_config({k: v for k, v in tiny.classifier().get_config().items() if k != "multi_label"})
    assert not single.multi_label  # as in files of earlier versions


@pytest.mark.slow
def test_datasets_are_read_like_lists(task, strings_dataset):
    tf = pytest.importorskip("tensorflow")
    expected = task.evaluate(TEXTS, SETS, batch_size=3, verbose=0)
    for y in (MATRIX, tf.ragged.constant(NUMBERS), tf.ragged.constant([list(names) for names in SETS])):
        for dataset in (strings_dataset((TEXTS, y)), strings_dataset((TEXTS, y)).batch(3)):
            assert task.evaluate(dataset, batch_size=3, verbose=0) == pytest.approx(expected, rel=1e-5)
    pairs = strings_dataset((TEXTS[:2], tf.ragged.constant([[0, 1, 2, 3, 4]] * 2))).batch(2)
    assert task.evaluate(pairs, verbose=0) == pytest.approx(task.evaluate(TEXTS[:2], np.ones((2, 5)), verbose=0))
    with pytest.raises(ValueError, match=r"Label 7 at position 1 is outside \[0, 5\)"):
        task.evaluate(strings_dataset((TEXTS[:2], tf.ragged.constant([[1], [0, 7]]))).batch(2), verbose=0)


def test_micro_f1_takes_logits_and_weights():
    rng = np.random.default_rng(11)
    logits, labels, weights = rng.normal(size=(13, 5)), rng.integers(0, 2, (13, 5)), rng.uniform(0, 3, 13)
    logits[2, 3], logits[2, 4], labels[2, 3:] = 0.0, -0.0, 1  # one half is enough
    metric = MicroF1()
    for batch in (slice(0, 7), slice(7, 13)):
        metric.update_state(labels[batch], logits[batch], weights[batch])
    assert float(metric.result()) == pytest.approx(compute_scores(logits, labels, weights)[1], rel=1e-5)
    new_metric = MicroF1.from_config(metric.get_config())
    assert (new_metric.name, new_metric.average, float(new_metric.result() if new_metric._built else 0)) == (
        "micro_f1",
        "micro",
        0,
    )
    new_metric.update_state(np.zeros((1, 5)), np.full((1, 5), -1.0))
    assert float(new_metric.result()) == 0
