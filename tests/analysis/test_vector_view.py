"""Vectors as points, and the weights of ELMo's layers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.decomposition import PCA

from lmzoo.analysis import mix_weights, plot_vectors
from lmzoo.families.bert import FAMILY
from lmzoo.families.elmo import FAMILY as ELMO
from lmzoo.models import TextClassifier
from lmzoo.testing import tiny_backbone, tiny_task


def points_of(figure):
    (axes,) = figure.axes
    return axes, {collection.get_label(): np.asarray(collection.get_offsets()) for collection in axes.collections}


def test_points_are_the_principal_components(tmp_path):
    vectors = np.random.default_rng(3).normal(size=(7, 5)) * [5, 1, 3, 1, 1]
    figure = plot_vectors(vectors, [1, 0, 1, 1, 0, 0, 0], title="Seven")
    axes, points = points_of(figure)
    pca = PCA(2).fit(vectors)
    expected = pca.transform(vectors)
    assert [*points] == ["1", "0"]
    np.testing.assert_allclose(points["1"], expected[[0, 2, 3]])
    np.testing.assert_allclose(points["0"], expected[[1, 4, 5, 6]])
    assert axes.get_xlabel() == f"component 1: {pca.explained_variance_ratio_[0]:.0%} of the variance"
    figure.savefig(tmp_path / "points.png")
    projection = SimpleNamespace(transform=lambda x: x[:, 3:5])
    _, points = points_of(plot_vectors(vectors, [0] * 7, projection))
    np.testing.assert_allclose(points["0"], vectors[:, 3:])


def test_too_few_vectors_and_too_many_labels_are_refused():
    for vectors, labels in (([[1, 2]] * 3, "ab"), ([[1, 2]] * 2, "ab"), ([1, 2, 3], "abc"), ([[1]] * 3, "abc")):
        with pytest.raises(ValueError, match="at least 3 vectors"):
            plot_vectors(vectors, labels)
    with pytest.raises(ValueError, match="at most 20 labels apart, got 21"):
        plot_vectors(np.eye(21), range(21))


def test_mix_weights_are_elmos_softmax():
    task = tiny_task(TextClassifier, ELMO)
    count = len(task.backbone.output["hidden_states"])
    scalars = np.arange(count, dtype="float32")
    task.backbone.scalar_mix.scalars.assign(scalars)
    task.backbone.scalar_mix.gamma.assign(2.5)
    mix = mix_weights(task.backbone)
    np.testing.assert_allclose(mix.weights, np.exp(scalars) / np.exp(scalars).sum(), rtol=1e-6)
    assert mix.gamma == 2.5
    with pytest.raises(ValueError, match="BertBackbone does not mix its layers, as ELMo does"):
        mix_weights(tiny_backbone(FAMILY))
    with pytest.raises(TypeError, match="Expected a task or a backbone"):
        mix_weights("elmo_nano_en")
