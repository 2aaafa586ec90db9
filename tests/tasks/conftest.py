"""Fixtures for tests of tasks: tiny models with a tiny vocabulary, and texts for them."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.families.bert import FAMILY
from lmzoo.models import BertBackbone, MaskedLM, TextClassifier
from lmzoo.text import Preprocessor, WordPieceTokenizer

WORDS = ["good", "bad", "film", "plot", "the", "a", "was", "is", "very", "fine", "dull", "##s", "##ly", ".", "!"]
LIMIT = 41  # positions of the models
LENGTH = 37  # `sequence_length` of the preprocessors


class Tiny:
    """Builder of tiny models and texts; the same arguments give the same weights."""

    words = WORDS
    limit = LIMIT
    length = LENGTH

    def tokenizer(self):
        return WordPieceTokenizer([*WordPieceTokenizer.special_tokens, *WORDS])

    def preprocessor(self, length=LENGTH):
        return Preprocessor(self.tokenizer(), FAMILY.packing, length)

    def backbone(self, dropout=0.0, seed=11):
        keras.utils.set_random_seed(seed)
        size = {"num_layers": 2, "num_heads": 3, "hidden_dim": 21, "intermediate_dim": 29}
        return BertBackbone(
            vocabulary_size=len(WORDS) + 5, max_sequence_length=LIMIT, dropout=dropout, initializer_range=0.2, **size
        )

    def classifier(self, num_classes=2, labels=None, rate=None, dropout=0.0, seed=11, **compile_arguments):
        arguments = {"labels": labels} if labels else {"num_classes": num_classes}
        task = TextClassifier(self.backbone(dropout, seed), self.preprocessor(), **arguments)
        return self._compile(task, rate, compile_arguments)

    def masked_lm(self, rate=None, dropout=0.0, seed=11, masking=None, **compile_arguments):
        task = MaskedLM(self.backbone(dropout, seed), self.preprocessor(), masking=masking)
        return self._compile(task, rate, compile_arguments)

    def _compile(self, task, rate, arguments):
        if rate is not None:
            arguments["optimizer"] = keras.optimizers.Adam(rate)
        if arguments:
            task.compile(**arguments)
        return task

    def texts(self, count=16, longest=6, seed=5):
        """Return texts of two to `longest` words, each one token; 6 words give sequences of at most 8 tokens."""
        rng = np.random.default_rng(seed)
        return [" ".join(rng.choice(WORDS[:11], rng.integers(2, longest + 1))) for _ in range(count)]

    def labels(self, texts):
        return [int("good" in text) for text in texts]

    def data(self, count=16, longest=6, seed=5):
        texts = self.texts(count, longest, seed)
        return texts, self.labels(texts)


@pytest.fixture(autouse=True)
def _eager(eager):
    """Run all tests of tasks eagerly."""


@pytest.fixture(scope="session")
def tiny():
    return Tiny()


@pytest.fixture(scope="session")
def weights_of():
    """Return a function that copies a model's weights."""
    return lambda model: [np.array(keras.ops.convert_to_numpy(weight)) for weight in model.weights]


@pytest.fixture(scope="session")
def strings_dataset():
    """Return a function that makes a `tf.data.Dataset` from slices; skip the test without TensorFlow."""
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.from_tensor_slices


@pytest.fixture
def save_and_load(tmp_path):
    """Return a function that saves a task as a `.keras` file and as a preset, and loads both."""

    def make_clones(task):
        task.save(tmp_path / "task.keras")
        task.save_to_preset(tmp_path / "preset")
        return keras.saving.load_model(tmp_path / "task.keras"), type(task).from_preset(tmp_path / "preset")

    return make_clones


class Steps(keras.callbacks.Callback):
    """Counter of training steps."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def on_train_batch_begin(self, batch, logs=None):
        self.count += 1


@pytest.fixture
def steps():
    return Steps()


@pytest.fixture
def assert_refused(steps):
    """Return a function that checks that a task refuses data before the first step, also as validation data."""

    def check(task, data, valid_data, error, message):
        with pytest.raises(error, match=message):
            task.fit(*data, callbacks=[steps], verbose=0)
        with pytest.raises(error, match=f"In `validation_data`: .*{message}"):
            task.fit(*valid_data, validation_data=data, callbacks=[steps], verbose=0)
        with pytest.raises(error, match=message):
            task.evaluate(*data, verbose=0)
        assert steps.count == 0

    return check
