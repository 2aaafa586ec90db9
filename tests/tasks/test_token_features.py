"""`fit`, `evaluate` and `predict` on token features, which are dicts of arrays."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.text.batching import ArrayBatches
from lmzoo.text.keras_input import keras_input
from lmzoo.training import ResumableCheckpoint


@pytest.fixture(scope="module")
def words(tiny):
    """Return 13 texts of three words with labels; equal lengths give equal batches of texts and of features."""
    texts = [
        " ".join(text.split()[:2] + ["good"][i % 2 :] + ["film"][: i % 2]) for i, text in enumerate(tiny.texts(13))
    ]
    return texts, np.array(tiny.labels(texts))


@pytest.mark.slow
def test_the_seed_determines_the_order(tiny, words):
    texts, labels = words
    features = tiny.preprocessor()(texts)

    def fit_and_get_losses(x, seed):
        return tiny.classifier(rate=0.05).fit(x, labels, batch_size=4, epochs=2, seed=seed, verbose=0).history["loss"]

    expected = fit_and_get_losses(features, 3)
    np.testing.assert_allclose(fit_and_get_losses(texts, 3), expected, rtol=1e-5)
    assert abs(fit_and_get_losses(features, 5)[0] - expected[0]) > 1e-4


@pytest.mark.slow
def test_a_run_on_token_features_is_resumed(tiny, words, tmp_path):
    texts, labels = words
    features = tiny.preprocessor()(texts)

    def run(folder, epochs):
        task = tiny.classifier(rate=0.05)
        task.fit(features, labels, 4, epochs=epochs, verbose=0, callbacks=[ResumableCheckpoint(tmp_path / folder)])
        return task.predict(features, verbose=0)

    expected = run("whole", 2)
    interrupted = run("cut", 1)
    np.testing.assert_allclose(run("cut", 2), expected, rtol=1e-5, atol=1e-6)
    assert np.abs(interrupted - expected).max() > 1e-3
    other_features = {**features, "token_ids": features["token_ids"][::-1]}
    callbacks = [ResumableCheckpoint(tmp_path / "cut")]
    with pytest.raises(ValueError, match="differs in content of the batches"):
        tiny.classifier(rate=0.05).fit(other_features, labels, 4, verbose=0, callbacks=callbacks)


@pytest.mark.slow
def test_weights_and_splits_give_the_losses_of_texts(tiny, words):
    texts, labels = words
    features, weights = tiny.preprocessor()(texts), np.linspace(0.5, 2, 13)
    task = tiny.classifier(optimizer=keras.optimizers.SGD(0.0))
    data = {"sample_weight": weights, "validation_split": 0.3, "validation_batch_size": 3, "batch_size": 5}
    history = task.fit(features, labels, **data, verbose=0).history
    expected = task.fit(texts, labels, **data, verbose=0).history
    np.testing.assert_allclose([*history.values()], [*expected.values()], rtol=1e-5)
    held_out = ({name: array[9:] for name, array in features.items()}, labels[9:])
    loss = task.evaluate(*held_out, sample_weight=weights[9:], batch_size=3, verbose=0)[0]
    assert history["val_loss"] == [pytest.approx(loss, rel=1e-5)]


def test_predictions_keep_the_order(tiny, words):
    task, features = tiny.classifier(), tiny.preprocessor()(words[0])
    expected = task.predict(words[0], verbose=0)
    for size in (4, 13, 64):
        np.testing.assert_allclose(task.predict(features, batch_size=size, verbose=0), expected, rtol=1e-5, atol=1e-6)


def test_errors_of_unequal_and_empty_arrays(tiny, words):
    texts, labels = words
    features = tiny.preprocessor()(texts)
    for arguments in ((features, labels[:-1]), ({**features, "token_ids": features["token_ids"][:-1]}, labels)):
        with pytest.raises(ValueError, match=r"must have a row for each sequence, got .*12"):
            tiny.classifier().fit(*arguments, verbose=0)
    with pytest.raises(ValueError, match="the token features have no rows"):
        tiny.classifier().fit({name: array[:0] for name, array in features.items()}, labels[:0], verbose=0)
    with pytest.raises(ValueError, match=r"`validation_split=0\.99` leaves no examples"):
        tiny.classifier().fit(features, labels, validation_split=0.99, verbose=0)


def test_weights_of_several_outputs_must_match_the_labels():
    x, y = {"a": np.zeros((5, 3))}, {"b": np.arange(5), "c": np.ones((5, 2))}
    batch = next(ArrayBatches((x, y, np.arange(5.0)), 2).batches())
    assert batch[2]["b"].tolist() == batch[2]["c"].tolist() == [0, 1]
    for weights, named in ((np.ones((5, 2)), "an array"), ({"b": np.ones(5)}, r"a dict of \['b'\]")):
        with pytest.raises(ValueError, match=rf"must be a dict of \['b', 'c'\], as `y` is, got {named}"):
            ArrayBatches((x, y, weights), 2)
    with pytest.raises(ValueError, match=r"must have a row for each sequence, got .*\(\)"):
        ArrayBatches((x, {"b": np.arange(5), "c": None}, None), 2)


def test_the_identity_depends_on_every_sequence():
    ids = np.zeros((3001, 2), "int32")
    batches = [ArrayBatches(({"a": ids}, None, None), 2)]
    ids = ids.copy()
    ids[1503] = 1
    batches.append(ArrayBatches(({"a": ids}, None, None), 2))
    assert batches[0].identity() != batches[1].identity()


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="about TensorFlow's datasets")
def test_tensorflow_datasets_have_a_known_width_and_no_autotuning():
    dataset = keras_input(ArrayBatches(({"token_ids": np.zeros((5, 7), "int32")}, np.ones(5), None), 2))
    assert dataset.element_spec[0]["token_ids"].shape.as_list() == [None, 7]
    assert dataset.options().autotune.enabled is False  # its thread delays the end of a pass by seconds
