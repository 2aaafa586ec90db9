"""`encoder="bilstm"`: LSTMs between backbone and head, as in ELMo's tasks."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.layers import BiLSTMEncoder
from lmzoo.layers.bilstm import HashedWordEmbedding
from lmzoo.models import MultipleChoice, TextClassifier, TextRegressor
from lmzoo.registry.family import families
from lmzoo.testing import tiny_examples, tiny_task, tiny_texts
from lmzoo.text import batch_to_ids


def build(cls=TextClassifier, family="elmo"):
    return tiny_task(cls, families()[family], encoder="bilstm", encoder_dim=11)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize(
    ("cls", "family"),
    [(TextClassifier, "bert"), (TextClassifier, "elmo"), (TextRegressor, "elmo"), (MultipleChoice, "elmo")],
)
def test_encoders_are_trained_and_saved_and_ignore_padding(cls, family, tmp_path):
    task = build(cls, family)
    x, y = tiny_examples(task, 8)
    task.compile(keras.optimizers.Adam(0.02))
    losses = task.fit(x, y, epochs=20, batch_size=8, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]
    expected = task.predict(x, verbose=0)
    for example, padded_logits in zip(x, expected, strict=True):
        logits = task.predict([example], verbose=0)[0]
        np.testing.assert_allclose(logits, padded_logits[: len(logits)], atol=1e-5)
    task.save(tmp_path / "task.keras")
    clone = keras.saving.load_model(tmp_path / "task.keras")
    np.testing.assert_array_equal(clone.predict(x, verbose=0), expected)
    assert clone.get_config() == task.get_config()


@pytest.mark.slow
def test_all_weights_are_trained_if_xla_compiles():
    task, texts = build(), tiny_texts(8)
    task.compile(keras.optimizers.SGD(0.1), jit_compile=True)
    before = [np.array(v) for v in task.trainable_variables]
    task.fit(texts, [0, 1] * 4, batch_size=8, verbose=0)
    assert not [v.path for v, old in zip(task.trainable_variables, before, strict=True) if np.array_equal(v, old)]


def test_word_vectors_do_not_depend_on_padded_characters():
    layer = BiLSTMEncoder(5, embedding_dim=7)
    ids = batch_to_ids([["a", "word", "a"], ["words"]])
    layer.build((None, None, 3), ids.shape)
    vectors = keras.ops.convert_to_numpy(layer.word_embedding(ids))
    np.testing.assert_array_equal(vectors[0, 0], vectors[0, 2])
    assert np.abs(vectors[0, 1] - vectors[1, 0]).max() > 0.01
    np.testing.assert_array_equal(layer.word_embedding(ids[:, :, :9])[:, :1], vectors[:, :1])


def test_hashes_are_those_of_saved_models():
    """They are sums over FNV's powers, whose low 31 bits are taken modulo the number of vectors."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 263, (3, 7, 13)).astype("int32")
    layer = HashedWordEmbedding(101, 1)
    layer.build(ids.shape)
    layer.embeddings.assign(np.arange(101)[:, None])
    powers = [pow(0x01000193, i, 1 << 32) for i in range(1, 14)]
    hashes = [
        sum((int(c) - 261) * power for c, power in zip(word, powers, strict=True)) for word in ids.reshape(-1, 13)
    ]
    assert any(h & 0x80000000 for h in hashes)
    expected = [(h & 0x7FFFFFFF) % 101 for h in hashes]
    np.testing.assert_array_equal(np.ravel(keras.ops.convert_to_numpy(layer(ids))), expected)


def test_words_may_be_longer_than_in_the_published_models():
    layer, ids = HashedWordEmbedding(101, 3), np.full((1, 2, 67), 261, "int32")  # 261 is padding
    ids[:, 1, :60] = 97
    vectors = keras.ops.convert_to_numpy(layer(ids))
    np.testing.assert_array_equal(vectors[:, :1], layer(ids[:, :1, :50]))
    assert np.abs(vectors[0, 1] - keras.ops.convert_to_numpy(layer(ids[:, 1:, :50]))[0, 0]).max() > 0.01


@pytest.mark.parametrize("tensor_lists", [True, False])
def test_lstms_agree_with_keras(tensor_lists):
    layer = BiLSTMEncoder(5, embedding_dim=0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 7, 2)).astype("float32")
    mask = np.array([[1] * 7, [1] * 4 + [0] * 3, [0, 1, 1, 0, 1, 0, 0]], "int32")
    layer.build(x.shape)
    layer.lstm.tensor_lists = tensor_lists
    lstm = keras.layers.Bidirectional(keras.layers.LSTM(5, return_sequences=True))
    lstm.build(x.shape)
    lstm.set_weights([rng.normal(size=weight.shape) for weight in lstm.weights])
    layer.set_weights(lstm.get_weights())
    expected = keras.ops.convert_to_numpy(lstm(x, mask=mask == 1)) * mask[:, :, None]
    np.testing.assert_allclose(layer(x, None, mask), expected, atol=1e-6)
    assert np.abs(expected[1, 3] - keras.ops.convert_to_numpy(layer(x, None, np.ones_like(mask)))[1, 3]).max() > 0.01


def test_constructors_do_not_copy_layers(monkeypatch):
    """While a model is loaded, Keras may take a copy for a deleted layer that had the same address."""
    monkeypatch.delattr(keras.layers.LSTM, "get_config")
    monkeypatch.delattr(keras.layers.Layer, "get_config")
    BiLSTMEncoder(5)


@pytest.mark.slow
def test_equal_words_are_encoded_once_unless_xla_compiles():
    task = build()
    assert task.backbone.bilm.encoder.dedupe is not task.jit_compile  # an export may come before any prediction
    expected = task.predict(tiny_texts(8), verbose=0)
    task.compile(jit_compile=True)
    assert not task.backbone.bilm.encoder.dedupe
    np.testing.assert_allclose(task.predict(tiny_texts(8), verbose=0), expected, atol=1e-5)


@pytest.mark.slow
def test_presets_do_not_depend_on_models_built_before(tmp_path):
    """The names that Keras gives to layers are numbered in every process."""
    texts = tiny_texts(5)
    for name in ("first", "second"):
        task = tiny_task(TextClassifier, families()["bert"], encoder="bilstm", encoder_dim=7)
        task.save_to_preset(tmp_path / name)
        loaded = TextClassifier.from_preset(tmp_path / name)
        np.testing.assert_array_equal(loaded.predict(texts, verbose=0), task.predict(texts, verbose=0))
        assert [w.path for w in task.weights if "_lstm" in w.path] == [
            f"encoder/lstm/{side}_lstm/lstm_cell/{kind}"
            for side in ("forward", "backward")
            for kind in ("kernel", "recurrent_kernel", "bias")
        ]
