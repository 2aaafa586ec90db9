"""`TextRegressor`: training, evaluation, labels, options, `rank`."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.models import TextRegressor

TEXTS = ["good film", "bad plot", "dull"]


def build(tiny, dropout=0.0, **arguments):
    task = TextRegressor(tiny.backbone(dropout), tiny.preprocessor(), **arguments)
    task.compile(keras.optimizers.SGD(0.0))
    return task


@pytest.fixture(scope="module")
def task(tiny):
    return build(tiny)


def count_words(texts):
    return [float(len(text.split())) for text in texts]


def get_bias(task):
    return float(keras.ops.convert_to_numpy(task.head.logits.bias)[0])


@pytest.mark.slow
def test_a_new_head_starts_at_the_mean_of_the_labels(tiny, strings_dataset):
    labels = [3.0, -1.0, 10.0]
    dataset = strings_dataset((TEXTS, labels))
    for data in ((TEXTS, labels), (tiny.preprocessor()(TEXTS), labels), (dataset,), (dataset.batch(2),)):
        task = build(tiny)
        task.fit(*data, verbose=0)
        assert get_bias(task) == pytest.approx(4.0)
        task.fit(TEXTS, [9.0, 9.0, 9.0], verbose=0)
        assert get_bias(task) == pytest.approx(4.0), "a trained head keeps its bias"
    task = build(tiny)
    with pytest.raises(ValueError, match="Got 3 texts but 2 labels"):
        task.fit(TEXTS, [1.0, 2.0], verbose=0)
    assert get_bias(task) == 0
    with pytest.raises(ValueError, match=r"needs a dataset of \(texts, labels\)"):
        build(tiny).fit(strings_dataset(TEXTS), verbose=0)


@pytest.mark.quick_cases("16")
@pytest.mark.parametrize("size", [3, 16])
def test_evaluate_is_over_all_examples(tiny, task, size):
    texts = tiny.texts(16)
    labels, scores = np.array(count_words(texts)), np.array(task.score(texts))
    results = task.evaluate(texts, labels, batch_size=size, verbose=0, return_dict=True)
    assert results.keys() == {"loss", "pearson"}
    assert results["loss"] == pytest.approx(np.mean((scores - labels) ** 2), rel=1e-5)
    assert results["pearson"] == pytest.approx(np.corrcoef(scores, labels)[0, 1], abs=1e-4)
    predictions = task.predict(texts, verbose=0)
    assert predictions.shape == (16, 1)
    assert predictions.dtype == "float32"
    np.testing.assert_array_equal(predictions[:, 0], np.float32(scores))
    assert type(task.score(texts[:1])[0]) is float
    assert task.score([]) == []


def test_weights_enter_the_loss_and_the_correlation(tiny, task):
    texts, weights = tiny.texts(6), np.array([3, 0, 1, 0.5, 2, 0])
    labels, scores = np.array(count_words(texts)), np.array(task.score(texts))
    arguments = {"sample_weight": weights, "verbose": 0, "return_dict": True}
    results = task.evaluate(texts, labels, **arguments)
    assert results["loss"] == pytest.approx(np.mean(weights * (scores - labels) ** 2), rel=1e-5)
    features = tiny.preprocessor()(texts)
    assert task.evaluate(features, labels, **arguments) == pytest.approx(results, rel=1e-4)
    covariance = np.cov(labels, scores, aweights=weights)
    pearson = covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
    assert results["pearson"] == pytest.approx(pearson, abs=1e-4)


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
    ],
)
def test_errors_come_before_the_first_step(tiny, task, steps, assert_refused, labels, error, message):
    assert_refused(task, (TEXTS, labels), (TEXTS, [0, 1, 2]), error, message)
    with pytest.raises(error, match=message):
        task.fit(tiny.preprocessor()(TEXTS), labels, callbacks=[steps], verbose=0)
    assert steps.count == 0


def test_class_weights_are_refused(task):
    with pytest.raises(ValueError, match=r"needs exactly one class per text, .* pass `sample_weight`"):
        task.fit(TEXTS, [0.0, 1.0, 2.0], class_weight={0: 2.0}, verbose=0)


@pytest.mark.slow
def test_all_forms_of_labels_and_texts_are_equivalent(task, strings_dataset):
    labels = [1, 2.5, -3]
    expected = task.evaluate(TEXTS, labels, verbose=0)
    for y in (np.array(labels), np.array(labels)[:, None], np.array([1, 2.5, -3], object), tuple(labels)):
        assert task.evaluate(TEXTS, y, verbose=0) == pytest.approx(expected, rel=1e-5)
    dataset = strings_dataset((TEXTS, labels))
    assert task.evaluate(dataset, verbose=0) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(task.predict(dataset.batch(2), verbose=0), task.predict(TEXTS, verbose=0), atol=1e-6)
    with pytest.raises(Exception, match="Label nan at position 1"):
        task.fit(strings_dataset((TEXTS, [0, np.nan, 1])).batch(3), verbose=0)


def test_dropout_and_pooling_reach_the_head(tiny, tmp_path):
    task = build(tiny, dropout=0.1, pooling="mean")
    assert task.head.dropout.rate == 0.1
    assert not {v.path for v in task.trainable_variables} & {v.path for v in task.backbone.pooler.variables}
    assert build(tiny, dropout=0.1).head.dropout.rate == 0.1
    task = TextRegressor(tiny.backbone(0.1), tiny.preprocessor(), dropout=0.3)
    assert task.head.dropout.rate == 0.3
    task.save(tmp_path / "task.keras")
    assert keras.saving.load_model(tmp_path / "task.keras").head.dropout.rate == 0.3


@pytest.mark.slow
def test_a_sigmoid_limits_scores_and_labels(tiny):
    task = build(tiny, output_activation="sigmoid")
    linear = build(tiny)
    linear.set_weights(task.get_weights())
    np.testing.assert_allclose(task.score(TEXTS), 1 / (1 + np.exp(-np.array(linear.score(TEXTS)))), atol=1e-6)
    task.fit(TEXTS, [0.0, 1.0, 0.5], verbose=0)
    assert get_bias(task) == 0  # the bias is added before the sigmoid, so it is not set to the labels' mean
    with pytest.raises(ValueError, match=r"Label 4.5 at position 1 is not between 0 and 1.*`output_activation=\"lin"):
        task.fit(TEXTS, [0.0, 4.5, 1.0], verbose=0)


def test_cross_entropies_take_the_probabilities_of_a_sigmoid(tiny):
    task = build(tiny, output_activation="sigmoid")
    labels, scores = np.array([0.2, 1.0, 0.5]), np.array(task.score(TEXTS))
    expected = -(labels * np.log(scores) + (1 - labels) * np.log(1 - scores)).mean()
    cross_entropy = keras.losses.binary_crossentropy
    for loss in ("binary_crossentropy", "bce", cross_entropy, keras.losses.BinaryCrossentropy()):
        task.compile(keras.optimizers.SGD(0.0), loss)
        assert task.evaluate(TEXTS, labels, verbose=0, return_dict=True)["loss"] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match=r"outputs are probabilities: pass BinaryCrossentropy\(from_logits=False\)"):
        task.compile(loss=keras.losses.BinaryCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="outputs are logits"):
        build(tiny).compile(loss=keras.losses.BinaryCrossentropy())


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
        (("a", []), ValueError, "`texts` is empty"),
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
