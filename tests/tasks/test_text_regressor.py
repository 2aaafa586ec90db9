"""One number for a text: in the units of the labels, learnt from numbers only."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from scipy.stats import spearmanr

from lmzoo.models import TextRegressor
from lmzoo.registry.family import families
from lmzoo.testing import tiny_task

TEXTS = ["good film", "bad plot", "dull"]


def build(tiny, rate=None, dropout=0.0, **arguments):
    task = TextRegressor(tiny.backbone(dropout), tiny.preprocessor(), **arguments)
    task.compile(keras.optimizers.SGD(0.0) if rate is None else keras.optimizers.Adam(rate))
    return task


@pytest.fixture(scope="module")
def task(tiny):
    return build(tiny)


def lengths(texts):
    return [float(len(text.split())) for text in texts]


@pytest.mark.slow
@pytest.mark.compiled
def test_learns_pairs_in_the_units_of_the_labels(tiny):
    pairs = list(zip(tiny.texts(16), tiny.texts(16, seed=6), strict=True))
    labels = [20.0 + len(a.split()) - len(b.split()) for a, b in pairs]
    task = build(tiny, 0.01)
    history = task.fit(pairs, labels, batch_size=16, epochs=30, verbose=0).history
    scores = task.score(pairs, batch_size=5)
    assert all(type(score) is float for score in scores)
    assert np.abs(np.array(scores) - labels).mean() < 0.5 * np.abs(np.array(labels) - np.mean(labels)).mean()
    assert spearmanr(labels, scores).statistic > 0.8
    assert history["pearson"][-1] > 0.8
    assert task.score([]) == []


def bias_of(task):
    return float(keras.ops.convert_to_numpy(task.head.logits.bias)[0])


@pytest.mark.slow
def test_a_new_head_starts_at_the_mean_of_the_labels(tiny, strings_dataset):
    labels = [3.0, -1.0, 10.0]
    dataset = strings_dataset((TEXTS, labels))
    for data in ((TEXTS, labels), (tiny.preprocessor()(TEXTS), labels), (dataset,), (dataset.batch(2),)):
        task = build(tiny)
        task.fit(*data, verbose=0)
        assert bias_of(task) == pytest.approx(4.0)
        task.fit(TEXTS, [9.0, 9.0, 9.0], verbose=0)
        assert bias_of(task) == pytest.approx(4.0), "a head that has been trained is left alone"
    task = build(tiny)
    with pytest.raises(ValueError, match="Got 3 texts but 2 labels"):
        task.fit(TEXTS, [1.0, 2.0], verbose=0)
    assert bias_of(task) == 0
    with pytest.raises(ValueError, match=r"needs a dataset of \(texts, labels\)"):
        build(tiny).fit(strings_dataset(TEXTS), verbose=0)


@pytest.mark.quick_cases("16")
@pytest.mark.parametrize("size", [3, 16])
def test_evaluate_is_over_all_examples(tiny, task, size):
    texts = tiny.texts(16)
    labels, scores = np.array(lengths(texts)), np.array(task.score(texts))
    found = task.evaluate(texts, labels, batch_size=size, verbose=0, return_dict=True)
    assert found.keys() == {"loss", "pearson"}
    assert found["loss"] == pytest.approx(np.mean((scores - labels) ** 2), rel=1e-5)
    assert found["pearson"] == pytest.approx(np.corrcoef(scores, labels)[0, 1], abs=1e-4)
    predictions = task.predict(texts, verbose=0)
    assert predictions.shape == (16, 1)
    assert predictions.dtype == "float32"
    np.testing.assert_array_equal(predictions[:, 0], np.float32(scores))


def test_weights_are_those_of_the_examples(tiny, task):
    texts, weights = tiny.texts(6), np.array([3, 0, 1, 0.5, 2, 0])
    labels, scores = np.array(lengths(texts)), np.array(task.score(texts))
    arguments = {"sample_weight": weights, "verbose": 0, "return_dict": True}
    found = task.evaluate(texts, labels, **arguments)
    assert found["loss"] == pytest.approx(np.mean(weights * (scores - labels) ** 2), rel=1e-5)
    features = tiny.preprocessor()(texts)
    assert task.evaluate(features, labels, **arguments) == pytest.approx(found, rel=1e-4)
    dev = np.average(labels, weights=weights), np.average(scores, weights=weights)
    products = [
        np.sum(weights * (a - b) * (c - d))
        for a, b, c, d in [
            (labels, dev[0], scores, dev[1]),
            (labels, dev[0], labels, dev[0]),
            (scores, dev[1], scores, dev[1]),
        ]
    ]
    assert found["pearson"] == pytest.approx(products[0] / np.sqrt(products[1] * products[2]), abs=1e-4)


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        ([0.5, np.nan, 1], ValueError, "Label nan at position 1 is not a finite number"),
        ([0.5, 1, -np.inf], ValueError, "Label -inf at position 2 is not a finite number"),
        ([0.5, 1e300, 1], ValueError, "Label inf at position 1 is not a finite number"),
        ([0.5, 1, "4.5"], TypeError, "Label '4.5' at position 2 is not a number"),
        (["a", "b", "c"], TypeError, "Label 'a' at position 0 is not a number"),
        ([0.5, None, 1], TypeError, "Label None at position 1 is not a number"),
        (np.ones((3, 2)), ValueError, r"one number for each text, got labels of shape \(3, 2\)"),
        (None, ValueError, "needs a label for each text"),
        ([0.5, 1], ValueError, "3 texts but 2 labels"),
    ],
)
def test_errors_come_before_the_first_step(tiny, task, steps, labels, error, message):
    with pytest.raises(error, match=message):
        task.fit(TEXTS, labels, callbacks=[steps], verbose=0)
    with pytest.raises(error, match=message):
        task.evaluate(TEXTS, labels, verbose=0)
    if labels is not None and len(labels) == 3:
        with pytest.raises(error, match=message):
            task.fit(tiny.preprocessor()(TEXTS), labels, callbacks=[steps], verbose=0)
    assert steps.count == 0


def test_classes_are_not_weighted(task):
    with pytest.raises(ValueError, match=r"needs exactly one class per text, .* pass `sample_weight`"):
        task.fit(TEXTS, [0.0, 1.0, 2.0], class_weight={0: 2.0}, verbose=0)


@pytest.mark.slow
def test_every_form_of_labels_and_texts(tiny, task, strings_dataset):
    labels = [1, 2.5, -3]
    expected = task.evaluate(TEXTS, labels, verbose=0)
    for y in (np.array(labels), np.array(labels)[:, None], np.array([1, 2.5, -3], object), tuple(labels)):
        assert task.evaluate(TEXTS, y, verbose=0) == pytest.approx(expected, rel=1e-5)
    dataset = strings_dataset((TEXTS, labels))
    assert task.evaluate(dataset, verbose=0) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(task.predict(dataset.batch(2), verbose=0), task.predict(TEXTS, verbose=0), atol=1e-6)
    with pytest.raises(Exception, match="Label nan at position 1"):
        task.fit(strings_dataset((TEXTS, [0, np.nan, 1])).batch(3), verbose=0)


@pytest.mark.compiled
@pytest.mark.slow
@pytest.mark.parametrize("family", ["elmo", "bert"])
def test_with_an_encoder(family, tmp_path):
    task = tiny_task(TextRegressor, families()[family], encoder="bilstm", encoder_dim=11)
    texts = ["good film", "the plot was never bad !", "dull .", "a very fine film ."]
    task.compile(keras.optimizers.Adam(0.02))
    losses = task.fit(texts, lengths(texts), epochs=20, verbose=0).history["loss"]
    assert losses[-1] < 0.3 * losses[0]
    expected = task.predict(texts, verbose=0)
    np.testing.assert_allclose(np.concatenate([task.predict([t], verbose=0) for t in texts]), expected, atol=1e-5)
    task.save_to_preset(tmp_path)
    clone = TextRegressor.from_preset(tmp_path)
    np.testing.assert_array_equal(clone.predict(texts, verbose=0), expected)
    assert clone.get_config() == task.get_config()


@pytest.mark.parametrize(("argument", "value"), [("pooling", "max"), ("encoder", "gru")])
def test_unknown_options(tiny, argument, value):
    with pytest.raises(ValueError, match=f"`{argument}` must be .*, got '{value}'"):
        build(tiny, **{argument: value})


def test_dropout_and_pooling(tiny, tmp_path):
    task = build(tiny, dropout=0.1, pooling="mean")
    assert task.head.dropout.rate == 0.1
    assert not {v.path for v in task.trainable_variables} & {v.path for v in task.backbone.pooler.variables}
    assert build(tiny, dropout=0.1).head.dropout.rate == 0.1
    task = TextRegressor(tiny.backbone(0.1), tiny.preprocessor(), dropout=0.3)
    assert task.head.dropout.rate == 0.3
    task.save(tmp_path / "task.keras")
    assert keras.saving.load_model(tmp_path / "task.keras").head.dropout.rate == 0.3


@pytest.mark.slow
def test_answers_of_a_sigmoid(tiny):
    task = build(tiny, output_activation="sigmoid")
    linear = build(tiny)
    linear.set_weights(task.get_weights())
    np.testing.assert_allclose(task.score(TEXTS), 1 / (1 + np.exp(-np.array(linear.score(TEXTS)))), atol=1e-6)
    task.fit(TEXTS, [0.0, 1.0, 0.5], verbose=0)
    assert bias_of(task) == 0  # the mean of the labels would be in front of the sigmoid
    with pytest.raises(ValueError, match=r"Label 4.5 at position 1 is not between 0 and 1.*`output_activation=\"lin"):
        task.fit(TEXTS, [0.0, 4.5, 1.0], verbose=0)


def test_rank_is_the_order_of_the_scores(task):
    texts = [*TEXTS, "good film", "the plot was never dull ."]
    hits = task.rank("a film", texts, batch_size=2)
    assert [[*hit] for hit in hits] == [["index", "text", "score"]] * 5
    scores = task.score([("a film", text) for text in texts])
    assert [hit["index"] for hit in hits] == sorted(range(5), key=lambda i: -round(scores[i], 6))
    assert all(hit["text"] == texts[hit["index"]] for hit in hits)
    assert [hit["score"] for hit in hits] == pytest.approx(sorted(scores, reverse=True), abs=1e-6)
    assert [hit["index"] for hit in task.rank("a film", texts, top_k=2)] == [hit["index"] for hit in hits[:2]]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("a", []), ValueError, "`texts` must be a list of at least one text"),
        (("a", TEXTS, 4), ValueError, "`top_k` must be an integer from 1 to 3, the size of `texts`, got 4"),
        (("a", TEXTS, 0), ValueError, "`top_k` must be an integer from 1 to 3"),
        (("a", [("b", "c")]), ValueError, "`texts` must be a list of single texts, got pairs"),
        ((["a"], TEXTS), TypeError, r"`query` must be one string, got \['a'\]. Call `rank` for each query"),
        (("a", "b"), TypeError, "Expected a list of texts, got one string"),
        (("a", ["b", None]), TypeError, r"`texts\[1\]`"),
    ],
)
def test_errors_of_rank(task, arguments, error, message, monkeypatch):
    monkeypatch.setattr(TextRegressor, "predict", None)
    with pytest.raises(error, match=message):
        task.rank(*arguments)
