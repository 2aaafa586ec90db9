"""`TextClassifier`: training, answers, pooling, errors before the first step, and texts that are not errors."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

from lmzoo.families.bert import FAMILY
from lmzoo.layers import MeanPooler
from lmzoo.models import BertBackbone, ElmoBackbone, TextClassifier, TokenClassifier
from lmzoo.registry.family import families
from lmzoo.tasks.base.examples import BatchOptions
from lmzoo.tasks.base.labels import encode_classes
from lmzoo.tasks.inputs import read_inputs
from lmzoo.tasks.missing_classes import describe_missing_classes
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task
from lmzoo.text import CharacterTokenizer, Preprocessor, TextWarning, WordPieceTokenizer, WordTokenizer
from lmzoo.training import AdamW, ResumableCheckpoint

TEXTS = ["good film", "bad plot", "dull"]


# === Training ===


@pytest.fixture(scope="module")
def reference(tiny):
    """Return predictions after training on a list without shuffling."""
    texts, labels = tiny.data()
    task = tiny.classifier()
    task.fit(texts, labels, batch_size=8, epochs=2, shuffle=False, verbose=0)
    predictions = task.predict(texts, verbose=0)
    assert np.abs(tiny.classifier().predict(texts, verbose=0) - predictions).max() > 1e-3
    return predictions


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", ["array of str", "array of object", "array of bytes", "features", "dataset", "batched dataset"]
)
def test_every_form_of_input_trains_the_same(tiny, strings_dataset, reference, form):
    texts, labels = tiny.data()
    forms = {
        "array of str": ((np.array(texts), np.array(labels)), {"batch_size": 8}),
        "array of object": ((np.array(texts, object), labels), {"batch_size": 8}),
        "array of bytes": ((np.array([text.encode() for text in texts]), labels), {"batch_size": 8}),
        "features": ((tiny.preprocessor()(texts), np.array(labels)), {"batch_size": 8}),
        "dataset": ((strings_dataset((texts, labels)),), {"batch_size": 8}),
        "batched dataset": ((strings_dataset((texts, labels)).batch(8),), {}),
    }
    data, arguments = forms[form]
    task = tiny.classifier()
    task.fit(*data, epochs=2, shuffle=False, verbose=0, **arguments)
    predictions = task.predict(data[0], verbose=0)
    np.testing.assert_allclose(predictions, reference, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_all_forms_of_pairs_are_equivalent(tiny, strings_dataset):
    firsts, labels = tiny.data(8)
    seconds = tiny.texts(8, longest=5, seed=6)
    task = tiny.classifier()
    expected = task.predict((firsts, seconds), verbose=0)
    assert np.abs(expected - task.predict(firsts, verbose=0)).max() > 1e-3
    pairs = list(zip(firsts, seconds, strict=True))
    dataset = strings_dataset(((firsts, seconds), labels)).batch(3)
    features = tiny.preprocessor()((firsts, seconds))
    for data in (pairs, (np.array(firsts), np.array(seconds)), dataset, features):
        np.testing.assert_allclose(task.predict(data, verbose=0), expected, rtol=1e-5, atol=1e-5)
    labeled = (((firsts, seconds), labels), (pairs, labels), (dataset,), (features, labels))
    losses = [task.evaluate(*data, verbose=0)[0] for data in labeled]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)
    history = task.fit(pairs, labels, epochs=2, verbose=0).history["loss"]
    assert np.isfinite(history).all()


def test_dataset_without_labels(tiny, strings_dataset):
    texts, _ = tiny.data(7)
    task = tiny.classifier()
    expected = task.predict(texts, verbose=0)
    for dataset in (strings_dataset(texts), strings_dataset((texts,)).batch(3)):
        np.testing.assert_allclose(task.predict(dataset, verbose=0), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_second_fit_continues_the_training(tiny, weights_of):
    texts, labels = tiny.data()
    task = tiny.classifier()
    task.fit(texts, labels, batch_size=8, epochs=2, verbose=0)
    assert task.optimizer.learning_rate > 0
    before = weights_of(task)
    task.fit(texts, labels, batch_size=8, verbose=0)
    changes = [np.abs(a - b).max() for a, b in zip(weights_of(task), before, strict=True)]
    assert max(changes) > 1e-4
    assert int(task.optimizer.iterations) == 6


# Keras warns of every dataset whose length it does not know.
@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
def test_the_schedule_covers_each_kind_of_training(tiny, strings_dataset):
    texts, labels = tiny.data()
    task = tiny.classifier()

    def schedule_of(*data, **arguments):
        task.fit(*data, verbose=0, **arguments)
        return keras.ops.convert_to_numpy(task.optimizer._schedule).tolist()

    assert schedule_of(texts, labels, batch_size=4, epochs=2) == [0, 1, 8]  # [first step, warm-up, total]
    features = tiny.preprocessor()(texts)
    assert schedule_of(features, np.array(labels), batch_size=4, validation_split=0.25) == [8, 1, 3]
    dataset = strings_dataset((texts, labels)).batch(4)
    assert schedule_of(dataset) == [11, 1, 4]
    assert schedule_of(dataset.repeat(), steps_per_epoch=2, epochs=3, initial_epoch=1) == [13, 1, 6]
    unknown = dataset.filter(lambda text, label: True)
    assert schedule_of(unknown) == [19, 100, 0]  # 100 steps of warm-up, then constant
    assert schedule_of(texts, labels, callbacks=keras.callbacks.ReduceLROnPlateau(monitor="loss"))[2] == 0


@pytest.mark.compiled
def test_the_default_optimizer_lowers_the_loss(tiny):
    texts, labels = tiny.data()
    history = tiny.classifier().fit(texts, labels, batch_size=8, epochs=12, verbose=0).history
    assert history["loss"][-1] < 0.9 * history["loss"][0]


@pytest.mark.slow
def test_half_precision_scales_the_loss_and_keeps_the_schedule(tiny, weights_of):
    texts, labels = tiny.data()
    backbone = BertBackbone(**{**tiny.backbone().get_config(), "dtype": "mixed_float16"})
    task = TextClassifier(backbone, tiny.preprocessor(), num_classes=2)
    before = weights_of(task)
    history = task.fit(texts, labels, batch_size=4, epochs=2, verbose=0).history
    optimizer = task.optimizer.inner_optimizer
    assert keras.ops.convert_to_numpy(optimizer._schedule).tolist() == [0, 1, 8]
    assert np.isfinite(history["loss"]).all()
    assert max(np.abs(a - b).max() for a, b in zip(weights_of(task), before, strict=True)) > 1e-4


@pytest.mark.slow
def test_classes_have_a_default_weight_of_one(tiny):
    texts, labels = tiny.data()
    first, second = (
        tiny.classifier(optimizer=keras.optimizers.SGD(0.0)).fit(texts, labels, class_weight=weights, verbose=0)
        for weights in ({0: 3.0}, {0: 3.0, 1: 1.0})
    )
    assert first.history["loss"] == second.history["loss"]


@pytest.mark.slow
def test_a_number_of_steps_selects_the_first_texts_not_the_shortest(tiny):
    texts, labels = tiny.data(longest=31)
    task = tiny.classifier()
    expected = task.evaluate(texts[:8], labels[:8], verbose=0)
    assert task.evaluate(texts, labels, batch_size=4, steps=2, verbose=0) == pytest.approx(expected, rel=1e-5)
    assert task.evaluate(texts, labels, verbose=0) != pytest.approx(expected, rel=1e-5)
    validation = {"validation_data": [texts, labels], "validation_batch_size": 4, "validation_steps": 2}
    task.compile(keras.optimizers.SGD(0.0))
    losses = task.fit(texts, labels, batch_size=4, verbose=0, **validation).history["val_loss"]
    assert losses == [pytest.approx(expected[0], rel=1e-5)]
    np.testing.assert_allclose(
        task.predict(texts, batch_size=4, steps=2, verbose=0), task.predict(texts[:8], verbose=0), atol=1e-6
    )


@pytest.mark.slow
@pytest.mark.compiled
def test_the_schedule_counts_updates_not_batches(tiny):
    texts, labels = tiny.data()
    task = tiny.classifier(optimizer=AdamW(0.01, gradient_accumulation_steps=2))
    task.fit(texts, labels, batch_size=4, epochs=5, verbose=0)
    assert keras.ops.convert_to_numpy(task.optimizer._schedule).tolist() == [0, 1, 10]


@pytest.mark.slow
def test_a_schedule_of_keras_is_not_replaced(tiny):
    texts, labels = tiny.data()
    task = tiny.classifier(optimizer=AdamW(keras.optimizers.schedules.CosineDecay(0.01, 100)))
    task.fit(texts, labels, batch_size=4, verbose=0)
    assert keras.ops.convert_to_numpy(task.optimizer._schedule).tolist() == [0, 0, 0]


def test_class_weight_and_sample_weight(tiny):
    texts, labels = tiny.data()
    names = [("bad", "good")[label] for label in labels]
    weights = np.where(np.array(labels) == 1, 3.0, 0.5)
    arguments = {"batch_size": 16, "shuffle": False, "verbose": 0}
    task = tiny.classifier(labels=["bad", "good"], optimizer=keras.optimizers.SGD(0.0))
    losses = [
        task.fit(texts, names, class_weight={"bad": 0.5, "good": 3.0}, **arguments),
        task.fit(texts, labels, class_weight={0: 0.5, 1: 3.0}, **arguments),
        task.fit(tiny.preprocessor()(texts), names, class_weight={"bad": 0.5, "good": 3.0}, **arguments),
        task.fit(texts, labels, class_weight={0: 0.5, 1: 3.0}, steps_per_epoch=1, **arguments),
        task.fit(texts, labels, sample_weight=weights, **arguments),
        task.fit(texts, labels, sample_weight=weights.tolist(), **arguments),
    ]
    losses = [history.history["loss"][0] for history in losses]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)
    evaluated = task.evaluate(texts, labels, sample_weight=weights, verbose=0)[0]
    assert abs(task.evaluate(texts, labels, verbose=0)[0] - evaluated) > 1e-3
    with pytest.raises(ValueError, match="'fine' at position 0 is not one of"):
        task.fit(texts, names, class_weight={"fine": 2.0}, **arguments)


def test_class_weight_multiplies_sample_weight(tiny):
    texts, labels = tiny.data(11)
    features = tiny.preprocessor()(texts)
    factors = np.where(np.array(labels) == 1, 3.0, 0.5)
    weights = np.linspace(0.25, 2, 11)
    task = tiny.classifier(optimizer=keras.optimizers.SGD(0.0))
    expected = task.test_on_batch(features, np.array(labels), factors * weights, return_dict=True)
    class_weight = {0: 0.5, 1: 3.0}
    for x, sample_weight in ((texts, weights), (features, weights), (features, weights[:, None])):
        arguments = {"sample_weight": sample_weight, "class_weight": class_weight}
        history = task.fit(x, labels, batch_size=11, verbose=0, **arguments).history
        assert {name: values[0] for name, values in history.items()} == pytest.approx(expected, rel=1e-5)
        scores = task.train_on_batch(x, labels, **arguments, return_dict=True)
        assert scores == pytest.approx(expected, rel=1e-5)


@pytest.mark.tf_only
def test_class_weight_of_datasets(tiny, strings_dataset):
    texts, labels = tiny.data(11)
    factors = np.where(np.array(labels) == 1, 3.0, 0.5)
    weights = np.linspace(0.25, 2, 11)
    task = tiny.classifier(optimizer=keras.optimizers.SGD(0.0))
    features = tiny.preprocessor()(texts)
    for x, sample_weight in ((texts, weights), (texts, None), (features, None)):
        expected = task.evaluate(texts, labels, sample_weight=factors if sample_weight is None else factors * weights)
        components = (x, labels) if sample_weight is None else (x, labels, sample_weight)
        history = task.fit(strings_dataset(components).batch(11), class_weight={0: 0.5, 1: 3.0}, verbose=0).history
        assert [values[0] for values in history.values()] == pytest.approx(expected[::-1], rel=1e-5)


def test_resumable_runs_take_class_weights(tiny, tmp_path):
    texts, labels = tiny.data(5)
    arguments = {"batch_size": 5, "class_weight": {0: 0.5, 1: 3.0}, "verbose": 0}
    expected = tiny.classifier(optimizer=keras.optimizers.SGD(0.0)).fit(texts, labels, **arguments).history["loss"]
    checkpoint = ResumableCheckpoint(tmp_path)
    task = tiny.classifier(optimizer=keras.optimizers.SGD(0.0))
    assert task.fit(texts, labels, callbacks=[checkpoint], **arguments).history["loss"] == pytest.approx(expected)


def test_numbers_in_arrays_of_objects(task):
    table = np.array([["a", 2.0], ["b", 0], ["c", np.float32(1)]], object)
    assert task.encode_labels(table[:, 1]).tolist() == [2, 0, 1]
    for label, message in (
        (0.5, "Labels must be whole numbers or strings, got 0.5 at position 1"),
        (np.nan, r"got nan at position 1\. A label is missing there"),
        (3.0, r"Label 3.0 at position 1 is outside \[0, 3\)"),
        (2**70, r"Label 1180591620717411303424 at position 1 is outside \[0, 3\)"),
    ):
        with pytest.raises(ValueError, match=message):
            task.encode_labels(np.array([0, label], object))


@pytest.mark.filterwarnings("ignore:The validation examples lack the class")
def test_all_forms_of_validation_data_are_equivalent(tiny, strings_dataset):
    texts, labels = tiny.data(12)
    names = [("bad", "good")[label] for label in labels]
    task = tiny.classifier(labels=["bad", "good"], optimizer=keras.optimizers.SGD(0.0))
    expected = task.evaluate(texts[8:], names[8:], verbose=0)[0]
    held_out = texts[8:], names[8:]
    for validation in (
        {"validation_data": held_out},
        {"validation_data": (*held_out, np.ones(4))},
        {"validation_data": (tiny.preprocessor()(texts[8:]), names[8:])},
        {"validation_data": strings_dataset(held_out).batch(3)},
    ):
        history = task.fit(texts[:8], names[:8], batch_size=8, verbose=0, **validation).history
        np.testing.assert_allclose(history["val_loss"], expected, rtol=1e-4)
    for x, y in ((texts, names), (tiny.preprocessor()(texts), labels)):
        history = task.fit(x, np.array(y), batch_size=8, verbose=0, validation_split=1 / 3).history
        np.testing.assert_allclose(history["val_loss"], expected, rtol=1e-4)


def test_a_refused_compilation_changes_nothing(tiny):
    task = tiny.classifier()
    with pytest.raises(ValueError, match="logits"):
        task.compile(loss=keras.losses.SparseCategoricalCrossentropy())
    with pytest.raises(ValueError, match="optimizer"):
        task.compile(optimizer="no such optimizer")
    assert isinstance(task.optimizer, AdamW)
    assert task.compiled


def test_a_custom_training_loop_uses_the_default_loss(tiny):
    task = tiny.classifier()
    features, logits = tiny.preprocessor()(["good film"]), np.array([[0.0, 1.0, 3.0]], "float32")
    loss = task.compute_loss(features, np.array([2]), logits)
    assert float(loss) == pytest.approx(np.log(np.exp([-3, -2, 0]).sum()), rel=1e-5)


# === Answers and classes ===


def test_classify_ranks_the_labels(tiny):
    texts, _ = tiny.data(5)
    task = tiny.classifier(labels=["bad", "fair", "good"])
    probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(task.predict(texts, verbose=0)))
    best = task.classify(texts)
    assert [answer["label"] for answer in best] == [task.labels[i] for i in probabilities.argmax(axis=-1)]
    np.testing.assert_allclose([answer["score"] for answer in best], probabilities.max(axis=-1), rtol=1e-5)
    for answers, row in zip(task.classify(texts, top_k=2), np.sort(probabilities)[:, ::-1], strict=True):
        np.testing.assert_allclose([answer["score"] for answer in answers], row[:2], rtol=1e-5)
    assert {answer["label"] for answer in task.classify(texts, top_k=9)[0]} == {"bad", "fair", "good"}
    assert task.classify([]) == []


def test_classes_without_names_are_numbered(tiny):
    task = TextClassifier(tiny.backbone(), tiny.preprocessor(), num_classes=3)
    assert {answer["label"] for answer in task.classify(["good film"], top_k=3)[0]} == {"0", "1", "2"}
    task.fit(["good", "bad", "dull"], [2, 0, 1], verbose=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Pass `num_classes`"),
        ({"num_classes": 1}, "at least 2"),
        ({"num_classes": 3, "labels": ["a", "b"]}, "names 2 classes"),
        ({"labels": ["a", "b", "a"]}, "twice"),
        ({"num_classes": 2, "pooling": "max"}, '`pooling` must be "first", "mean" or a list'),
    ],
)
def test_errors_of_the_constructor(tiny, arguments, message):
    with pytest.raises(ValueError, match=message):
        TextClassifier(tiny.backbone(), tiny.preprocessor(), **arguments)


# === Pooling ===


def test_mean_is_over_the_real_tokens():
    sequence = np.random.default_rng(0).normal(size=(3, 5, 7)).astype("float32")
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
    pooled = keras.ops.convert_to_numpy(MeanPooler()(sequence, mask))
    np.testing.assert_allclose(pooled[0], sequence[0, :3].mean(0), atol=1e-6)
    np.testing.assert_allclose(pooled[1], sequence[1].mean(0), atol=1e-6)
    np.testing.assert_array_equal(pooled[2], 0)


@pytest.mark.slow
def test_mean_pooled_classifiers_do_not_train_the_pooler_and_are_saved(tmp_path):
    model = TextClassifier(tiny_backbone(FAMILY), tiny_preprocessor(FAMILY), num_classes=3, pooling="mean")
    before = [keras.ops.convert_to_numpy(v).copy() for v in model.backbone.pooler.weights]
    embeddings = keras.ops.convert_to_numpy(model.backbone.embeddings.token_embedding.embeddings).copy()
    texts = ["good film", "bad plot", "the film was dull"] * 3
    model.fit(texts, [0, 1, 2] * 3, verbose=0)
    for old, new in zip(before, model.backbone.pooler.weights, strict=True):
        np.testing.assert_array_equal(old, keras.ops.convert_to_numpy(new))
    change = keras.ops.convert_to_numpy(model.backbone.embeddings.token_embedding.embeddings) - embeddings
    assert np.abs(change).max() > 0
    model.save(tmp_path / "mean.keras")
    reloaded = keras.saving.load_model(tmp_path / "mean.keras")
    assert reloaded.pooling == "mean"
    np.testing.assert_array_equal(reloaded.predict(texts, verbose=0), model.predict(texts, verbose=0))


# === Errors before the first step, and texts that are not errors ===


@pytest.fixture(scope="module")
def task(tiny):
    return tiny.classifier(num_classes=3)


@pytest.fixture(scope="module")
def named(tiny):
    return tiny.classifier(labels=["bad", "good"])


@pytest.mark.parametrize(
    ("texts", "labels", "error", "message"),
    [
        (TEXTS, [0, 1, 3], ValueError, r"Label 3 at position 2 is outside \[0, 3\)"),
        (TEXTS, [0, -1, 1], ValueError, r"Label -1 at position 1 is outside \[0, 3\)"),
        (TEXTS, ["bad", "good", "bad"], ValueError, "labels="),
        (TEXTS, [0.5, 1, 1], ValueError, "whole numbers or strings, got 0.5 at position 0"),
        (TEXTS, [1, np.nan, 1], ValueError, "got nan at position 1. A label is missing there."),
        (TEXTS, np.eye(3), ValueError, r"one class for each text, got labels of shape \(3, 3\)"),
        (TEXTS, None, ValueError, "needs a label for each text"),
        (TEXTS, [0, 1], ValueError, "3 texts but 2 labels"),
        (["good", None, "bad"], [0, 1, 2], TypeError, r"`texts\[1\]` must be a string, got None"),
        (["good", 7, "bad"], [0, 1, 2], TypeError, r"`texts\[1\]` must be a string, got 7"),
        ([1, 2, 3], [0, 1, 2], TypeError, r"`texts\[0\]` must be a string, got 1"),
        (np.array([1, 2, 3]), [0, 1, 2], TypeError, "got an array of int64"),
        (np.array([["good", "bad"]] * 3), [0, 1, 2], ValueError, r"of shape \(3, 2\); pairs are"),
        ({"good", "bad"}, [0, 1], TypeError, "got a set"),
        ("good film", [0], TypeError, "got one string"),
        ((["good"], ["bad", "dull"]), [0], ValueError, "got 1 and 2"),
        (("good", "bad"), [0, 1], ValueError, "A tuple means pairs"),
        ([("good", "bad"), "dull"], [0, 1], ValueError, r"`x\[1\]` must be a pair"),
        ([("good", "bad", "dull")], [0], ValueError, r"`x\[0\]` must be a pair"),
        ((["good"], [None]), [0], TypeError, r"`pairs\[0\]` must be a string"),
    ],
)
def test_errors_come_before_the_first_step(task, assert_refused, texts, labels, error, message):
    assert_refused(task, (texts, labels), (TEXTS, [0, 1, 2]), error, message)


def test_label_names_must_be_among_the_labels(named, steps):
    with pytest.raises(ValueError, match=r"Label 'fine' at position 1 is not one of \['bad', 'good'\]"):
        named.fit(TEXTS, ["good", "fine", "bad"], callbacks=[steps])
    assert steps.count == 0


def test_labels_of_token_features_are_checked(tiny, task, steps):
    features = tiny.preprocessor()(TEXTS)
    for arguments in (
        {"x": features, "y": np.array([0, 1, 3])},
        {"x": features, "y": np.array([0, 1, 2]), "validation_data": (features, np.array([0, 3, 1]))},
    ):
        with pytest.raises(ValueError, match="Label 3 at position"):
            task.fit(**arguments, callbacks=[steps], verbose=0)
    with pytest.raises(ValueError, match="Label 3 at position"):
        task.evaluate(features, np.array([0, 1, 3]), verbose=0)
    assert steps.count == 0


def test_a_wrong_label_in_a_dataset_stops_before_its_step(task, steps, strings_dataset, weights_of):
    before = weights_of(task)
    with pytest.raises(ValueError, match="Label 3 at position 1"):
        task.fit(strings_dataset((TEXTS, [0, 3, 1])).batch(3), callbacks=[steps], verbose=0)
    assert steps.count == 0
    dataset = strings_dataset((TEXTS * 8, [0, 1, 2] * 7 + [0, 1, 3])).batch(3)
    task.compile(keras.optimizers.SGD(0.0))
    with pytest.raises(Exception, match="Label 3 at position 2"):
        task.fit(dataset, callbacks=[steps], verbose=0)
    assert all(np.array_equal(a, b) for a, b in zip(before, weights_of(task), strict=True))


def test_a_dataset_needs_examples_and_labels(task, strings_dataset):
    with pytest.raises(ValueError, match="the dataset is empty"):
        task.fit(strings_dataset((TEXTS, [0, 1, 2])).take(0))
    with pytest.raises(ValueError, match=r"needs a dataset of \(texts, labels\)"):
        task.fit(strings_dataset(TEXTS))


def test_the_rank_of_a_dataset_must_be_known(task, strings_dataset):
    tf = pytest.importorskip("tensorflow")
    dataset = strings_dataset(TEXTS).map(lambda text: tf.numpy_function(lambda value: value, [text], "string"))
    message = r"The shape of the dataset's texts is unknown\. .* the shape \[\] for one example or \[None\] for a batch"
    with pytest.raises(ValueError, match=message):
        task.predict(dataset)
    expected = task.predict(TEXTS, verbose=0)
    actual = task.predict(dataset.map(lambda text: tf.ensure_shape(text, [])), verbose=0)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    labeled = strings_dataset(([["good", "film"]], [[0, 0]])).map(
        lambda words, labels: (words, tf.numpy_function(lambda value: value, [labels], "int32"))
    )
    message = r"dataset's labels is unknown\. .* the shape \[None\] for one example or \[None, None\] for a batch"
    with pytest.raises(ValueError, match=message):
        tiny_task(TokenClassifier, FAMILY).evaluate(labeled)


def test_predict_may_have_no_texts_but_evaluate_and_fit_need_some(task):
    assert task.predict([], verbose=0).shape == (0, 3)
    for call in (task.evaluate, task.fit):
        with pytest.raises(ValueError, match="no examples"):
            call([], [], verbose=0)


def test_sequence_length_must_fit_the_models_positions(tiny):
    with pytest.raises(ValueError, match="positions for 41 tokens"):
        TextClassifier(tiny.backbone(), tiny.preprocessor(43), num_classes=2)
    task = tiny.classifier()
    task.preprocessor.sequence_length = 43
    with pytest.raises(ValueError, match="positions for 41 tokens"):
        task.predict(["good"])


def test_token_features_must_fit_the_models_positions(tiny):
    ids = np.full((2, 43), 7, "int32")
    features = {"token_ids": ids, "padding_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    with pytest.raises(
        Exception, match=r"43 tokens long, but the model has positions for 41|indices.* not in \[0, 41\)"
    ):
        tiny.classifier().predict(features, verbose=0)


def test_the_vocabulary_must_fit_the_models_embeddings(tiny):
    preprocessor = tiny.preprocessor()
    preprocessor.tokenizer = WordPieceTokenizer([*preprocessor.tokenizer.vocabulary, "more"])
    with pytest.raises(ValueError, match="21 tokens, but the model has embeddings for 20") as error:
        TextClassifier(tiny.backbone(), preprocessor, num_classes=2)
    assert "this WordPieceTokenizer and this BertBackbone do not belong together" in str(error.value)


def test_the_tokenizer_must_suit_the_backbone(tiny):
    words = WordTokenizer(["<S>", "</S>", "<UNK>"])
    elmo = ElmoBackbone(lstm_dim=5, projection_dim=3, vocabulary_size=29)
    packing = families()["elmo"].packing
    for backbone, preprocessor, message in (
        (tiny.backbone(), Preprocessor(words, packing, 7), "BertBackbone takes .*but this WordTokenizer .* token_ids:"),
        (elmo, tiny.preprocessor(), "This ElmoBackbone takes token_ids, but this WordPieceTokenizer .* padding_mask"),
    ):
        with pytest.raises(ValueError, match=message):
            TextClassifier(backbone, preprocessor, num_classes=2)
    TextClassifier(elmo, Preprocessor(words, packing, 7), num_classes=2)


def test_the_packing_must_suit_the_backbone_and_the_tokenizer(tiny):
    for name, message in (
        ("roberta", "This BertBackbone takes padding_mask, segment_ids, token_ids, but this WordPieceTokenizer"),
        ("elmo", "takes padding_mask, segment_ids"),
    ):
        with pytest.raises(ValueError, match=message):
            TextClassifier(tiny.backbone(), Preprocessor(tiny.tokenizer(), families()[name].packing, 7), num_classes=2)
    packing = dataclasses.replace(families()["roberta"].packing, segments=True)
    message = r"This WordPieceTokenizer cannot be packed by Packing\(start='<s>'.*has no token '<s>'"
    with pytest.raises(ValueError, match=message):
        TextClassifier(tiny.backbone(), Preprocessor(tiny.tokenizer(), packing, 7), num_classes=2)


def test_a_backbone_with_one_segment_accepts_segment_ids(tiny):
    config = {**tiny.backbone().get_config(), "num_segments": 1}
    TextClassifier(BertBackbone.from_config(config), tiny.preprocessor(), num_classes=2)


def test_words_must_fit_the_models_characters():
    packing, backbone = families()["elmo"].packing, tiny_backbone(families()["elmo"], max_characters=43)
    with pytest.raises(ValueError, match="of the CharacterTokenizer is 47, but that of the ElmoBackbone is 43"):
        TextClassifier(backbone, Preprocessor(CharacterTokenizer(47), packing, 7), num_classes=2)
    for max_characters in (41, 43):
        TextClassifier(backbone, Preprocessor(CharacterTokenizer(max_characters), packing, 7), num_classes=2)


def test_a_validation_split_must_leave_examples(task):
    with pytest.raises(ValueError, match="leaves no examples"):
        task.fit(TEXTS, [0, 1, 2], validation_split=0.9)
    with pytest.raises(ValueError, match="Label 3 at position 2"):
        task.fit(TEXTS, [0, 1, 3], validation_split=0.4)


def fit_split(task, labels, fraction):
    """Return the warnings of `fit` on as many texts as labels, of which the last are held out."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        task.fit(TEXTS[:1] * len(labels), labels, batch_size=len(labels), validation_split=fraction, verbose=0)
    return [(str(warning.message), Path(warning.filename).name) for warning in caught]


@pytest.mark.usefixtures("eager")
def test_classes_that_the_held_out_examples_lack_are_named(tiny):
    """If a class has too few examples for the fraction that is held out, its absence is no surprise."""
    task = tiny.classifier(labels=["bad", "good"])
    assert fit_split(task, [0, 0, 0, 0, 1, 1, 1, 1], 0.25) == [
        (
            "The validation examples lack the class 'bad'. `validation_split` holds out the last examples: shuffle the "
            "data first, or pass `validation_data`.",
            "test_text_classifier.py",
        )
    ]
    assert fit_split(task, [0, 0, 0, 1, 1, 1, 0, 1], 0.25) == []
    assert fit_split(task, [0, 0, 0, 1, 1, 1, 1, 1], 0.25) == []  # a quarter of three is not even one


def test_at_most_five_missing_classes_are_listed():
    training = dict.fromkeys("abcdefg", 10) | {"rare": 1}
    message = "The validation examples lack {}"
    for count, end in (
        (0, "7 classes: 'a', 'b', 'c', 'd', 'e' and 2 more."),
        (2, "5 classes: 'c', 'd', 'e', 'f', 'g'."),
    ):
        validation = {"rare": 40} | dict.fromkeys("abcdefg"[:count], 1)
        assert describe_missing_classes(training, validation) == message.format(end)


@pytest.mark.parametrize("text", ["", "   ", "\x00", "���", "mañana 😀 中文", "[SEP] good [MASK]"])
def test_any_string_is_a_valid_text(task, text):
    answers, _ = task.classify([text, "good"], top_k=3)
    assert sum(answer["score"] for answer in answers) == pytest.approx(1, abs=1e-5)
    task.fit([text, "good"], [0, 1], verbose=0)


@pytest.mark.parametrize("text", [b"good \xff\xfe film", "good \ud800 film"])
def test_invalid_text_is_read_with_one_notice(task, text):
    with pytest.warns(TextWarning, match="invalid UTF-8") as notices:
        logits = task.predict([text, text], verbose=0)
    assert len(notices) == 1
    np.testing.assert_array_equal(logits, task.predict(["good � film"] * 2, verbose=0))
    with pytest.warns(TextWarning, match="invalid UTF-8") as notices:
        task.predict(([text, "a"], [text, "b"]), verbose=0)
    assert len(notices) == 1


def test_long_texts_are_truncated_with_one_warning(tiny, task, strings_dataset):
    long = "good film . " * 9000
    assert len(long) > 100_000
    texts = [long, "bad", long, "dull"]
    for call in (
        lambda: task.predict(texts, verbose=0),
        lambda: task.classify((texts, texts)),
        lambda: task.fit(texts, [0, 1, 2, 0], batch_size=4, verbose=0),
        lambda: task.evaluate(texts, [0, 1, 2, 0], verbose=0),
        lambda: task.fit(strings_dataset((texts, [0, 1, 2, 0])).batch(2), epochs=2, verbose=0),
    ):
        with warnings.catch_warnings(record=True) as notices:
            warnings.simplefilter("always")
            call()
        messages = [str(notice.message) for notice in notices if notice.category is TextWarning]
        assert len(messages) == 1
        assert f"truncated to {tiny.length} tokens" in messages[0]
    with pytest.warns(TextWarning):
        logits = task.predict([long], verbose=0)
    truncated = " ".join(long.split()[: tiny.length - 2])
    np.testing.assert_array_equal(logits, task.predict([truncated], verbose=0))


def test_label_names_are_strings_but_labels_may_be_numbers(tiny):
    with pytest.raises(TypeError, match="strings; got 1"):
        tiny.classifier(labels=[1, 2])
    task = tiny.classifier(labels=["bad", "good"])
    assert task.encode_labels(np.array([0, 1], object)).tolist() == [0, 1]
    with pytest.raises(TypeError, match="Label 7 at position 1"):
        task.encode_labels(["bad", 7, "good", None])


@pytest.mark.parametrize(
    ("names", "labels", "first"),
    [
        (["1", "0", "2"], [2, 0, 1], "0 at position 1"),
        (["1", "2", "3"], [0.0, 1.0], "1.0 at position 1"),
        (["1", "0", "2"], np.array([2, 1], object), "1 at position 1"),
        (["1", "0", "2"], np.array([2, 0, 1], "int32"), "0 at position 1"),
        (["True", "False"], [False], "False at position 0"),
        (["1", "0"], [True], "True at position 0"),
    ],
)
def test_numbers_that_are_other_classes_names_are_refused(names, labels, first):
    with pytest.raises(ValueError, match=f"Label {first} is the number of one class and the name of another: pass"):
        encode_classes(labels, len(names), names)


def test_numbers_that_are_no_other_classes_names_are_taken():
    for names in (["0", "1", "2"], ["-1", "a", "02"], ["a", "1", "True"]):
        assert encode_classes([2, 0, 1], 3, names).tolist() == [2, 0, 1]
    assert encode_classes([True, False], 2, ["False", "True"]).tolist() == [1, 0]


def test_held_out_labels_with_numerals_as_names_keep_their_classes(tiny):
    task = tiny.classifier(labels=["1", "0", "2"])
    texts = tiny.texts(7)
    parts = task.split_validation(read_inputs(texts, ["1", "0", "2", "1", "0", "2", "0"]), 0.4)
    encoded_labels = [task.encode_examples(part.x, part.y).labels.tolist() for part in parts]
    assert encoded_labels == [[0, 1, 2, 0], [1, 2, 1]]
    assert len(parts[1].batches(task, BatchOptions())[0]) == 1
    features = tiny.preprocessor()(texts)
    parts = task.split_validation(read_inputs(features, ["1", "0", "2", "1", "0", "2", "0"]), 0.4)
    assert [part.check(task).y.tolist() for part in parts] == [[0, 1, 2, 0], [1, 2, 1]]


def test_numbers_features_and_tables_are_not_texts(task):
    class Table:  # as in pandas
        columns, shape = ("text", "label"), (3, 2)

        def __len__(self):
            return 3

    with pytest.raises(TypeError, match="got an array of int64"):
        task.predict(np.array([1, 2]))
    with pytest.raises(TypeError, match="Expected texts, got a dict"):
        task.encode_inputs({"token_ids": [[1]]})
    with pytest.raises(TypeError, match=r"a table with the columns \['text', 'label'\]: pass one of them"):
        task.predict(Table())


def test_the_values_of_a_dict_are_texts(task):
    texts = {"a": "good film", "b": "bad"}
    np.testing.assert_array_equal(task.predict(texts.values(), verbose=0), task.predict([*texts.values()], verbose=0))


@pytest.mark.parametrize(
    ("loss", "loss_class"),
    [
        ("sparse_categorical_crossentropy", keras.losses.SparseCategoricalCrossentropy),
        ("categorical_crossentropy", keras.losses.CategoricalCrossentropy),
    ],
)
def test_a_loss_given_by_name_takes_logits(tiny, loss, loss_class):
    task = tiny.classifier()
    task.compile("sgd", loss)
    assert type(task.loss) is loss_class
    assert task.loss.from_logits
    with pytest.raises(ValueError, match=rf"pass {loss_class.__name__}\(from_logits=True\)"):
        task.compile("sgd", loss_class())


@pytest.mark.parametrize(
    ("class_weight", "error", "message"),
    [
        ({"fine": 2.0}, ValueError, "In `class_weight`: Label 'fine' at position 0 is not one of"),
        ([1.0, 2.0], TypeError, r"`class_weight` must be a dict from classes to weights, got \[1.0, 2.0\]"),
        ("balanced", TypeError, "must be a dict"),
    ],
)
def test_errors_of_class_weights(named, steps, class_weight, error, message):
    with pytest.raises(error, match=message):
        named.fit(TEXTS, ["bad", "good", "bad"], class_weight=class_weight, callbacks=[steps], verbose=0)
    assert steps.count == 0


@pytest.mark.parametrize("weight", [np.nan, np.inf, -1.0])
def test_weights_must_be_finite_and_not_negative(task, named, tiny, steps, weight):
    message = f"`sample_weight` is {weight} at position 1: weights must be finite and at least 0"
    weights, features = [1.0, weight, 1.0], tiny.preprocessor()(TEXTS)
    for arguments in (
        {"x": TEXTS, "y": [0, 1, 2], "sample_weight": weights},
        {"x": features, "y": np.array([0, 1, 2]), "sample_weight": np.array(weights)},
        {"x": TEXTS, "y": [0, 1, 2], "validation_data": (TEXTS, [0, 1, 2], weights)},
    ):
        with pytest.raises(ValueError, match=message):
            task.fit(**arguments, callbacks=[steps], verbose=0)
    with pytest.raises(ValueError, match=message):
        task.evaluate(TEXTS, [0, 1, 2], sample_weight=weights, verbose=0)
    with pytest.raises(ValueError, match=f"In `class_weight`: the weight of 'good' must be a finite .*, got {weight}"):
        named.fit(TEXTS, ["bad", "good", "bad"], class_weight={"good": weight}, callbacks=[steps], verbose=0)
    assert steps.count == 0


def test_weights_must_be_numbers(task):
    with pytest.raises(TypeError, match="`sample_weight` must be numbers, got an array of <U1"):
        task.fit(TEXTS, [0, 1, 2], sample_weight=["1", "2", "3"], verbose=0)


@pytest.mark.quick_cases("nan")
@pytest.mark.parametrize("weight", [np.nan, -1.0])
def test_a_wrong_weight_in_a_dataset_stops_before_its_step(task, tiny, strings_dataset, weight):
    texts, labels = TEXTS * 4, [0, 1, 2] * 4
    features = {name: np.asarray(values) for name, values in tiny.preprocessor()(texts).items()}
    for x in (texts, features):
        for position in (1, 11):
            weights = np.ones(12, "float32")
            weights[position] = weight
            task.compile(keras.optimizers.SGD(0.0))
            message = f"(?s)In batch {position // 3} of the dataset: .*finite and at least 0"
            with pytest.raises(Exception, match=message):
                task.fit(strings_dataset((x, labels, weights)).batch(3), verbose=0)
            assert int(task.optimizer.iterations) == position // 3


def test_a_dataset_has_at_most_three_components(task, tiny, steps, strings_dataset):
    features = {name: np.asarray(values) for name, values in tiny.preprocessor()(TEXTS).items()}
    for x in (TEXTS, features):
        dataset = strings_dataset((x, [0, 1, 2], [1.0, 1.0, 1.0], [4, 4, 4])).batch(3)
        for call in (task.fit, task.evaluate):
            with pytest.raises(ValueError, match="got one of 4 components: select what you need with `map`"):
                call(dataset, callbacks=[steps], verbose=0)
    assert steps.count == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "`batch_size` must be an integer of at least 1, got 0. Omit it for the default size."),
        ({"batch_size": 2.5}, "`batch_size` must be an integer of at least 1, got 2.5"),
        ({"steps_per_epoch": 0}, "`steps_per_epoch` must be .*, got 0. Omit it to use all batches."),
        ({"epochs": -1}, "`epochs` must be an integer of at least 0, got -1"),
        ({"epochs": None}, "`epochs` must be an integer of at least 0, got None"),
        ({"initial_epoch": -1}, "`initial_epoch` must be an integer of at least 0, got -1"),
        ({"validation_steps": 0}, "`validation_steps` must be an integer of at least 1, got 0"),
    ],
)
def test_counts_are_checked_before_anything_is_encoded(task, arguments, message):
    with pytest.raises(ValueError, match=message):
        task.fit([None], [7], **arguments, verbose=0)  # the wrong text and label are not noticed


def test_counts_are_checked_in_evaluation_and_prediction(task):
    for call in (
        lambda: task.evaluate(TEXTS, [0, 1, 2], batch_size=0),
        lambda: task.predict(TEXTS, batch_size=0),
        lambda: task.classify(TEXTS, batch_size=0),
    ):
        with pytest.raises(ValueError, match="`batch_size` must be an integer of at least 1, got 0"):
            call()
    with pytest.raises(ValueError, match="`steps` must be an integer of at least 1, got 0"):
        task.evaluate(TEXTS, [0, 1, 2], steps=0, verbose=0)
    task.fit(TEXTS, [0, 1, 2], batch_size=np.int64(2), epochs=0, verbose=0)


@pytest.mark.parametrize("labels", ["np", {"bad", "good"}])
def test_label_names_must_be_ordered(tiny, labels):
    with pytest.raises(TypeError, match="must be a list, whose order numbers the classes"):
        tiny.classifier(labels=labels)


def test_the_name_of_a_preset_is_not_a_backbone():
    with pytest.raises(ValueError, match="Expected a backbone, got 'bert_nano_en_uncased': `from_preset`"):
        TextClassifier("bert_nano_en_uncased", num_classes=2)


@pytest.mark.parametrize("length", ["128", 0, 1.5])
def test_sequence_length_must_be_a_positive_integer(tiny, length):
    task = tiny.classifier()
    task.preprocessor.sequence_length = length
    with pytest.raises(ValueError, match="`sequence_length` must be a positive integer"):
        task.predict(TEXTS)
