"""Tasks with `word_vectors=`: static word vectors next to the hidden states of the backbone."""

from __future__ import annotations

import h5py
import keras
import numpy as np
import pytest

from lmzoo.errors import PresetError
from lmzoo.models import QuestionAnswerer, StaticEmbedder, TextClassifier, TokenClassifier
from lmzoo.presets.keras_preset import WEIGHTS_DTYPES
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task

WORDS = ["film", "good", "éclair", "never", "unseen"]
VECTORS = np.random.default_rng(3).normal(size=(5, 7)).astype("float32")
EMBEDDER = StaticEmbedder(WORDS, VECTORS)
TEXTS = [["good", "film"], ["never", "a", "good", "zzz", "!"]]


def build(cls=TokenClassifier, family="elmo", **arguments):
    return tiny_task(cls, families()[family], word_vectors=EMBEDDER, **arguments)


def compute_word_features(task, texts):
    """Return the static vectors (words, E) and the other features (words, H) of the texts' words."""
    model = keras.Model(task.input, task.get_layer("word_features").output)
    encoded = task.preprocessor.encode_words(texts)
    width = int(encoded.lengths.max())
    features = task.preprocessor.features(encoded, np.arange(len(encoded)), width)
    outputs = keras.ops.convert_to_numpy(model(features))  # (B, T, H + E)
    text_indices = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    return np.split(outputs[text_indices, encoded.first], [outputs.shape[-1] - VECTORS.shape[1]], axis=1)[::-1]


def look_up_vectors(texts):
    return np.stack([VECTORS[WORDS.index(w)] if w in WORDS else np.zeros(7) for text in texts for w in text])


@pytest.mark.parametrize("family", ["elmo", "bert", "static_words", "marian_encoder"])
def test_words_have_their_vectors(family):
    task = build(family=family)
    vectors, states = compute_word_features(task, TEXTS)
    np.testing.assert_array_equal(vectors, look_up_vectors(TEXTS))
    assert np.abs(states).max() > 0
    assert task.word_vectors["embedding_dim"] == 7
    assert not any("word_features" in v.path for v in task.trainable_variables)


def test_words_are_looked_up_without_case_unless_both_spellings_exist():
    task = build()
    vectors, _ = compute_word_features(task, [["Good", "FILM", "Éclair", "éCLAIR", "goods"]])
    np.testing.assert_array_equal(vectors, [*VECTORS[[1, 0, 2]], np.zeros(7), np.zeros(7)])
    cased = tiny_task(TokenClassifier, families()["elmo"], word_vectors=StaticEmbedder(["Good", "good"], VECTORS[:2]))
    vectors, _ = compute_word_features(cased, [["good", "Good", "GOOD"]])
    np.testing.assert_array_equal(vectors, [*VECTORS[[1, 0]], np.zeros(7)])


@pytest.mark.parametrize(
    ("cls", "family", "arguments"),
    [
        (TextClassifier, "static_words", {"pooling": "mean"}),
        (TokenClassifier, "static_words", {"encoder": "bilstm", "crf": True}),
        (TokenClassifier, "elmo", {}),
    ],
)
def test_files_contain_the_vectors(cls, family, arguments, save_and_load):
    task = build(cls, family, **arguments)
    texts = [" ".join(words) for words in TEXTS]
    expected = task.predict(texts, verbose=0)
    for loaded in save_and_load(task):
        np.testing.assert_allclose(loaded.predict(texts, verbose=0), expected, atol=1e-6)
        assert loaded.get_config() == task.get_config()
        np.testing.assert_array_equal(compute_word_features(loaded, TEXTS)[0], look_up_vectors(TEXTS))


@pytest.mark.parametrize("weights_dtype", WEIGHTS_DTYPES)
def test_presets_of_every_dtype_contain_the_hashes_of_words(weights_dtype, tmp_path):
    task = build()
    hashes = keras.ops.convert_to_numpy(task.get_layer("word_features").hashes)
    assert np.mean(hashes[1:].astype("float32").astype("int64") != hashes[1:]) > 0.9  # float32 would round them
    task.save_to_preset(tmp_path, weights_dtype=weights_dtype)
    loaded = TokenClassifier.from_preset(tmp_path)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(loaded.get_layer("word_features").hashes), hashes)
    np.testing.assert_allclose(compute_word_features(loaded, TEXTS)[0], look_up_vectors(TEXTS), atol=2e-3)


def test_hashes_that_were_rounded_are_refused(tmp_path):
    task = build()
    task.save_to_preset(tmp_path)
    (tmp_path / "manifest.json").unlink()
    name = task.get_layer("word_features").hashes.path
    with h5py.File(tmp_path / "task.weights.h5", "a") as file:
        values = file[name][()]
        del file[name]
        file[name] = values.astype("float32")
    with pytest.raises(PresetError, match=r"hashes holds float32, which rounds the integers .* Save the preset again"):
        TokenClassifier.from_preset(tmp_path)


def test_added_tokens_have_zero_vectors():
    task = build(family="bert")
    larger = task.backbone.resize_token_embeddings(task.backbone.vocabulary_size + 3)
    layer = task.get_layer("word_features")
    ids = np.array([[larger.vocabulary_size - 1]], "int32")
    assert not keras.ops.convert_to_numpy(layer(np.zeros((1, 1, 5), "float32"), ids)).any()


def test_invalid_arguments():
    family = families()["bert"]
    with pytest.raises(TypeError, match=r"`word_vectors` must be a `StaticEmbedder`, got 'glove.txt'"):
        TextClassifier(tiny_backbone(family), tiny_preprocessor(family), num_classes=2, word_vectors="glove.txt")
    with pytest.raises(ValueError, match="`word_vectors` needs a preprocessor"):
        QuestionAnswerer(tiny_backbone(family), word_vectors=EMBEDDER)
    with pytest.raises(ValueError, match='`pooling` must be "mean" with `word_vectors`'):
        build(TextClassifier)
    embedder = StaticEmbedder(["zzyzx"], VECTORS[:1])
    with pytest.raises(ValueError, match="None of the 1 words of `word_vectors` is a token of this WordPieceTokenizer"):
        tiny_task(TokenClassifier, family, word_vectors=embedder)
