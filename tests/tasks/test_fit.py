"""What `fit` takes, and that it trains."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest

from lmzoo.models import BertBackbone, TextClassifier
from lmzoo.training import AdamW


@pytest.fixture(scope="module")
def reference(tiny):
    """Predictions after training on a plain list, in the order given."""
    texts, labels = tiny.data()
    task = tiny.classifier()
    task.fit(texts, labels, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return task.predict(texts, verbose=0)


def forms(tiny, strings_dataset):
    texts, labels = tiny.data()
    return {
        "array of str": ((np.array(texts), np.array(labels)), {"batch_size": 8}),
        "array of object": ((np.array(texts, object), labels), {"batch_size": 8}),
        "array of bytes": ((np.array([text.encode() for text in texts]), labels), {"batch_size": 8}),
        "features": ((tiny.preprocessor()(texts), np.array(labels)), {"batch_size": 8}),
        "dataset": ((strings_dataset((texts, labels)),), {"batch_size": 8}),
        "batched dataset": ((strings_dataset((texts, labels)).batch(8),), {}),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", ["array of str", "array of object", "array of bytes", "features", "dataset", "batched dataset"]
)
def test_every_form_of_input_trains_the_same(tiny, strings_dataset, reference, form):
    data, arguments = forms(tiny, strings_dataset)[form]
    task = tiny.classifier()
    task.fit(*data, epochs=2, shuffle=False, verbose=0, **arguments)
    after = task.predict(data[0], verbose=0)
    np.testing.assert_allclose(after, reference, rtol=1e-5, atol=1e-5)


def test_training_moves_the_predictions(tiny, reference):
    texts, _ = tiny.data()
    assert np.abs(tiny.classifier().predict(texts, verbose=0) - reference).max() > 1e-3


@pytest.mark.slow
def test_pairs(tiny, strings_dataset):
    firsts, labels = tiny.data(8)
    seconds = tiny.texts(8, longest=5, seed=6)
    task = tiny.classifier()
    expected = task.predict((firsts, seconds), verbose=0)
    assert np.abs(expected - task.predict(firsts, verbose=0)).max() > 1e-3
    listed = list(zip(firsts, seconds, strict=True))
    dataset = strings_dataset(((firsts, seconds), labels)).batch(3)
    features = tiny.preprocessor()((firsts, seconds))
    for form in (listed, (np.array(firsts), np.array(seconds)), dataset, features):
        np.testing.assert_allclose(task.predict(form, verbose=0), expected, rtol=1e-5, atol=1e-5)
    losses = [
        task.evaluate((firsts, seconds), labels, verbose=0)[0],
        task.evaluate(listed, labels, verbose=0)[0],
        task.evaluate(dataset, verbose=0)[0],
        task.evaluate(features, labels, verbose=0)[0],
    ]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)
    history = task.fit(listed, labels, epochs=2, verbose=0).history["loss"]
    assert np.isfinite(history).all()


def test_dataset_without_labels(tiny, strings_dataset):
    texts, _ = tiny.data(7)
    task = tiny.classifier()
    expected = task.predict(texts, verbose=0)
    for dataset in (strings_dataset(texts), strings_dataset((texts,)).batch(3)):
        np.testing.assert_allclose(task.predict(dataset, verbose=0), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_second_fit_goes_on(tiny, weights_of):
    texts, labels = tiny.data()
    task = tiny.classifier()
    task.fit(texts, labels, batch_size=8, epochs=2, verbose=0)
    assert task.optimizer.learning_rate > 0
    before = weights_of(task)
    task.fit(texts, labels, batch_size=8, verbose=0)
    moved = [np.abs(a - b).max() for a, b in zip(weights_of(task), before, strict=True)]
    assert max(moved) > 1e-4
    assert int(task.optimizer.iterations) == 6


# Keras says so of every dataset whose length it does not know.
@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
def test_schedule_of_each_kind_of_training(tiny, strings_dataset):
    texts, labels = tiny.data()
    task = tiny.classifier()

    def schedule(*data, **arguments):
        task.fit(*data, verbose=0, **arguments)
        return keras.ops.convert_to_numpy(task.optimizer._schedule).tolist()

    assert schedule(texts, labels, batch_size=4, epochs=2) == [0, 1, 8]  # [first step, warm-up, total]
    assert schedule(tiny.preprocessor()(texts), np.array(labels), batch_size=4, validation_split=0.25) == [8, 1, 3]
    dataset = strings_dataset((texts, labels)).batch(4)
    assert schedule(dataset) == [11, 1, 4]
    assert schedule(dataset.repeat(), steps_per_epoch=2, epochs=3, initial_epoch=1) == [13, 1, 6]
    unknown = dataset.filter(lambda text, label: True)
    assert schedule(unknown) == [19, 100, 0]  # 100 steps of warm-up, then constant
    assert schedule(texts, labels, callbacks=keras.callbacks.ReduceLROnPlateau(monitor="loss"))[2] == 0


@pytest.mark.compiled
def test_loss_goes_down_and_the_default_optimizer_suffices(tiny):
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
@pytest.mark.parametrize("longest", [6, 31], ids=["one bucket", "several buckets"])
def test_compiled_training_equals_uncompiled(tiny, longest):
    texts, labels = tiny.data(longest=longest)
    losses = [
        tiny.classifier(jit_compile=jit).fit(texts, labels, batch_size=8, epochs=3, verbose=0).history["loss"]
        for jit in (True, False)
    ]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.slow
def test_class_weight_of_some_classes_leaves_the_others_at_one(tiny):
    texts, labels = tiny.data()
    losses = [
        tiny.classifier(optimizer=keras.optimizers.SGD(0.0)).fit(texts, labels, class_weight=weights, verbose=0)
        for weights in ({0: 3.0}, {0: 3.0, 1: 1.0})
    ]
    assert losses[0].history["loss"] == losses[1].history["loss"]


@pytest.mark.slow
def test_some_steps_take_the_first_texts_not_the_shortest(tiny):
    texts, labels = tiny.data(longest=31)
    task = tiny.classifier()
    expected = task.evaluate(texts[:8], labels[:8], verbose=0)
    assert task.evaluate(texts, labels, batch_size=4, steps=2, verbose=0) == pytest.approx(expected, rel=1e-5)
    assert task.evaluate(texts, labels, verbose=0) != pytest.approx(expected, rel=1e-5)
    held = {"validation_data": [texts, labels], "validation_batch_size": 4, "validation_steps": 2}
    task.compile(keras.optimizers.SGD(0.0))
    found = task.fit(texts, labels, batch_size=4, verbose=0, **held).history["val_loss"]
    assert found == [pytest.approx(expected[0], rel=1e-5)]
    np.testing.assert_allclose(
        task.predict(texts, batch_size=4, steps=2, verbose=0), task.predict(texts[:8], verbose=0), atol=1e-6
    )


@pytest.mark.slow
@pytest.mark.compiled
def test_schedule_counts_updates_not_batches(tiny):
    texts, labels = tiny.data()
    task = tiny.classifier(optimizer=AdamW(0.01, gradient_accumulation_steps=2))
    task.fit(texts, labels, batch_size=4, epochs=5, verbose=0)
    assert keras.ops.convert_to_numpy(task.optimizer._schedule).tolist() == [0, 1, 10]


@pytest.mark.slow
def test_a_schedule_of_keras_is_left_alone(tiny):
    texts, labels = tiny.data()
    task = tiny.classifier(optimizer=AdamW(keras.optimizers.schedules.CosineDecay(0.01, 100)))
    task.fit(texts, labels, batch_size=4, verbose=0)
    assert keras.ops.convert_to_numpy(task.optimizer._schedule).tolist() == [0, 0, 0]


def test_class_weight_and_sample_weight(tiny):
    texts, labels = tiny.data()
    names = [("bad", "good")[label] for label in labels]
    by_weight = np.where(np.array(labels) == 1, 3.0, 0.5)
    arguments = {"batch_size": 16, "shuffle": False, "verbose": 0}
    task = tiny.classifier(labels=["bad", "good"], optimizer=keras.optimizers.SGD(0.0))
    losses = [
        task.fit(texts, names, class_weight={"bad": 0.5, "good": 3.0}, **arguments),
        task.fit(texts, labels, class_weight={0: 0.5, 1: 3.0}, **arguments),
        task.fit(tiny.preprocessor()(texts), names, class_weight={"bad": 0.5, "good": 3.0}, **arguments),
        task.fit(texts, labels, sample_weight=by_weight, **arguments),
        task.fit(texts, labels, sample_weight=by_weight.tolist(), **arguments),
    ]
    losses = [history.history["loss"][0] for history in losses]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)
    evaluated = task.evaluate(texts, labels, sample_weight=by_weight, verbose=0)[0]
    assert abs(task.evaluate(texts, labels, verbose=0)[0] - evaluated) > 1e-3
    with pytest.raises(ValueError, match="'fine' at position 0 is not one of"):
        task.fit(texts, names, class_weight={"fine": 2.0}, **arguments)


def test_validation(tiny, strings_dataset):
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


def test_classify(tiny):
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


def test_classes_without_names(tiny):
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
    ],
)
def test_classes_that_cannot_be(tiny, arguments, message):
    with pytest.raises(ValueError, match=message):
        TextClassifier(tiny.backbone(), tiny.preprocessor(), **arguments)


# === Compiled when that is needed ===


def test_a_refused_compilation_changes_nothing(tiny):
    task = tiny.classifier()
    with pytest.raises(ValueError, match="logits"):
        task.compile(loss=keras.losses.SparseCategoricalCrossentropy())
    with pytest.raises(ValueError, match="optimizer"):
        task.compile(optimizer="no such optimizer")
    assert isinstance(task.optimizer, AdamW)
    assert task.compiled


def test_a_loop_of_ones_own_finds_the_default_loss(tiny):
    task = tiny.classifier()
    features, logits = tiny.preprocessor()(["good film"]), np.array([[0.0, 1.0, 3.0]], "float32")
    loss = task.compute_loss(features, np.array([2]), logits)
    assert float(loss) == pytest.approx(np.log(np.exp([-3, -2, 0]).sum()), rel=1e-5)


def test_threads_share_a_new_task(tiny):
    task, texts = tiny.classifier(), ["good film", "bad plot"]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: task.predict(texts, verbose=0), range(8)))
    assert all(np.array_equal(logits, found[0]) for logits in found)
