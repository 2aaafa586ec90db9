"""Classification from the mean of the tokens instead of the first one."""

import keras
import numpy as np
import pytest

from lmzoo.families.bert import FAMILY
from lmzoo.layers import MeanPooler
from lmzoo.models import TextClassifier
from lmzoo.testing import tiny_backbone, tiny_preprocessor


def test_mean_is_over_the_real_tokens():
    sequence = np.random.default_rng(0).normal(size=(3, 5, 7)).astype("float32")
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
    pooled = keras.ops.convert_to_numpy(MeanPooler()(sequence, mask))
    np.testing.assert_allclose(pooled[0], sequence[0, :3].mean(0), atol=1e-6)
    np.testing.assert_allclose(pooled[1], sequence[1].mean(0), atol=1e-6)
    np.testing.assert_array_equal(pooled[2], 0)


@pytest.mark.slow
def test_mean_pooled_classifier_trains_without_its_pooler_and_comes_back(tmp_path):
    model = TextClassifier(tiny_backbone(FAMILY), tiny_preprocessor(FAMILY), num_classes=3, pooling="mean")
    before = [keras.ops.convert_to_numpy(v).copy() for v in model.backbone.pooler.weights]
    embeddings = keras.ops.convert_to_numpy(model.backbone.embeddings.token_embedding.embeddings).copy()
    texts = ["good film", "bad plot", "the film was dull"] * 3
    model.fit(texts, [0, 1, 2] * 3, verbose=0)
    for old, new in zip(before, model.backbone.pooler.weights, strict=True):
        np.testing.assert_array_equal(old, keras.ops.convert_to_numpy(new))
    moved = keras.ops.convert_to_numpy(model.backbone.embeddings.token_embedding.embeddings) - embeddings
    assert np.abs(moved).max() > 0
    model.save(tmp_path / "mean.keras")
    again = keras.saving.load_model(tmp_path / "mean.keras")
    assert again.pooling == "mean"
    np.testing.assert_array_equal(again.predict(texts, verbose=0), model.predict(texts, verbose=0))


def test_unknown_pooling_is_refused():
    with pytest.raises(ValueError, match='"first", "mean" or a list'):
        TextClassifier(tiny_backbone(FAMILY), num_classes=2, pooling="max")
