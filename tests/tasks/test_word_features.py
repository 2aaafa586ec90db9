"""Static word vectors joined with the vectors of a backbone: `word_vectors=`."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.models import QuestionAnswerer, StaticEmbedder, TextClassifier, TokenClassifier
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task

WORDS = ["film", "good", "éclair", "never", "unseen"]
VECTORS = np.random.default_rng(3).normal(size=(5, 7)).astype("float32")
EMBEDDER = StaticEmbedder(WORDS, VECTORS)
TEXTS = [["good", "film"], ["never", "a", "good", "zzz", "!"]]


def build(cls=TokenClassifier, family="elmo", **arguments):
    return tiny_task(cls, families()[family], word_vectors=EMBEDDER, **arguments)


def word_features(task, texts):
    """The static vectors in the features of words (words, E), and the other features (words, H)."""
    model = keras.Model(task.input, task.get_layer("word_features").output)
    encoded = task.preprocessor.encode_words(texts)
    width = int(encoded.lengths.max())
    features = task.preprocessor.features(encoded, np.arange(len(encoded)), width)
    joined = keras.ops.convert_to_numpy(model(features))  # (B, T, H + E)
    rows = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    return np.split(joined[rows, encoded.first], [joined.shape[-1] - VECTORS.shape[1]], axis=1)[::-1]


def expected_vectors(texts):
    return np.stack([VECTORS[WORDS.index(w)] if w in WORDS else np.zeros(7) for text in texts for w in text])


@pytest.mark.parametrize("family", ["elmo", "bert", "static_words", "marian_encoder"])
def test_words_have_their_vectors(family):
    task = build(family=family)
    found, others = word_features(task, TEXTS)
    np.testing.assert_array_equal(found, expected_vectors(TEXTS))
    assert np.abs(others).max() > 0
    assert task.word_vectors["embedding_dim"] == 7
    assert not any("word_features" in v.path for v in task.trainable_variables)


def test_spelling():
    task = build()
    found, _ = word_features(task, [["Good", "FILM", "Éclair", "éCLAIR", "goods"]])
    np.testing.assert_array_equal(found, [*VECTORS[[1, 0, 2]], np.zeros(7), np.zeros(7)])
    cased = tiny_task(TokenClassifier, families()["elmo"], word_vectors=StaticEmbedder(["Good", "good"], VECTORS[:2]))
    np.testing.assert_array_equal(word_features(cased, [["good", "Good", "GOOD"]])[0], [*VECTORS[[1, 0]], np.zeros(7)])


@pytest.mark.parametrize(
    ("cls", "arguments"), [(TextClassifier, {"pooling": "mean"}), (TokenClassifier, {"encoder": "bilstm", "crf": True})]
)
def test_files_hold_the_vectors(cls, arguments, tmp_path):
    task = build(cls, "static_words", **arguments)
    texts = [" ".join(words) for words in TEXTS]
    expected = task.predict(texts, verbose=0)
    task.save(tmp_path / "task.keras")
    task.save_to_preset(tmp_path / "preset")
    for loaded in (keras.saving.load_model(tmp_path / "task.keras"), cls.from_preset(tmp_path / "preset")):
        np.testing.assert_allclose(loaded.predict(texts, verbose=0), expected, atol=1e-6)
        assert loaded.get_config() == task.get_config()
        np.testing.assert_array_equal(word_features(loaded, TEXTS)[0], expected_vectors(TEXTS))


def test_added_tokens_have_none():
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
    other = StaticEmbedder(["zzyzx"], VECTORS[:1])
    with pytest.raises(ValueError, match="None of the 1 words of `word_vectors` is a token of this WordPieceTokenizer"):
        tiny_task(TokenClassifier, family, word_vectors=other)
