"""Differences between layers, against formulas in another form."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

from lmzoo.analysis import anisotropy, attention, hidden_states, layer_changes, layer_similarity, linear_cka, probe
from lmzoo.analysis.reading import compute_text_means
from lmzoo.families.albert import FAMILY as ALBERT
from lmzoo.families.bert import FAMILY
from lmzoo.families.elmo import FAMILY as ELMO
from lmzoo.models import TextEmbedder
from lmzoo.registry.family import families
from lmzoo.testing import tiny_preprocessor, tiny_task

TEXTS = ["the film was good", "a", "the plot was never dull .", "a quiet film"]
RNG = np.random.default_rng(1933)


@pytest.fixture(scope="module", params=[FAMILY, ALBERT, ELMO], ids=lambda family: family.name)
def task(request):
    """Return a task that tests must not change."""
    return tiny_task(TextEmbedder, request.param)


@pytest.fixture(scope="module")
def bert():
    """Return a task that tests must not change."""
    return tiny_task(TextEmbedder, FAMILY)


@pytest.mark.slow
def test_states_equal_those_of_each_text_alone(task):
    encoded, states = hidden_states(task, TEXTS, batch_size=3)
    for text, tokenized, values in zip(TEXTS, encoded, states, strict=True):
        expected = task.backbone(task.preprocessor([text]))["hidden_states"]
        np.testing.assert_allclose(values, np.stack([np.asarray(x)[0] for x in expected]), atol=1e-5)
        assert len(tokenized.tokens) == values.shape[1]


def test_word_vectors_alone_are_the_only_states():
    """A Keras model with one output returns it without a list."""
    model = tiny_task(TextEmbedder, families()["static_words"])
    model.run_eagerly = True
    _, (states, _) = hidden_states(model, ["the film", "a"])
    expected = model.backbone(model.preprocessor(["the film"]))["sequence_output"]
    np.testing.assert_allclose(states, expected, atol=1e-6)
    assert layer_changes(model, ["the film"]).degrees.shape == (0,)


@pytest.mark.slow
def test_clearing_the_session_changes_nothing():
    """Keras then numbers operations anew, but operations of one model need different names."""
    model = tiny_task(TextEmbedder, ALBERT)
    expected = hidden_states(model, TEXTS)[1]
    keras.backend.clear_session()
    np.testing.assert_array_equal(hidden_states(model, TEXTS)[1][0], expected[0])


def test_means_omit_special_tokens(bert):
    encoded, states = hidden_states(bert, TEXTS)
    np.testing.assert_allclose(compute_text_means(encoded, states)[0], states[0][:, 1:-1].mean(axis=1), rtol=1e-5)
    (empty,) = compute_text_means(*hidden_states(bert, [""]))
    assert np.isfinite(empty).all()


def test_texts_without_tokens_have_means_of_zeros():
    """Word vectors have no special tokens."""
    model = tiny_task(TextEmbedder, families()["static_words"])
    model.run_eagerly = True
    texts = ["the film", "", "a plot", "was good"]
    means = compute_text_means(*hidden_states(model, texts))
    assert not means[1].any()
    assert means[[0, 2, 3]].any(axis=(1, 2)).all()
    np.testing.assert_allclose(layer_similarity(model, texts), [[1.0]], rtol=1e-6)
    assert np.isfinite(probe(model, texts * 2, [0, 1, 0, 1] * 2, folds=2).accuracy).all()
    with pytest.raises(ValueError, match="`texts` must be texts of at least one token"):
        layer_changes(model, ["", ""])


@pytest.mark.quick_cases("bert")
def test_distances_and_angles_equal_numpy(task):
    _, states = hidden_states(task, TEXTS)
    vectors = [np.concatenate([values[layer] for values in states]) for layer in range(len(states[0]))]
    changes = layer_changes(task, TEXTS)
    for layer, (x, y) in enumerate(itertools.pairwise(vectors)):
        distances = [np.linalg.norm(b - a) for a, b in zip(x, y, strict=True)]
        assert changes.distance[layer] == pytest.approx(np.mean(distances))
        cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(x, y, strict=True)]
        assert changes.degrees[layer] == pytest.approx(np.degrees(np.arccos(cosines)).mean(), rel=1e-4)


@pytest.mark.slow
def test_anisotropy_is_the_mean_cosine_of_token_pairs(bert):
    _read, states = hidden_states(bert, TEXTS)
    tokens = np.concatenate([values[2, 1:-1] for values in states])
    unit = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
    cosines = (unit @ unit.T)[~np.eye(len(unit), dtype=bool)]
    by_layer = anisotropy(bert, TEXTS)
    assert by_layer.shape == (len(states[0]),)
    assert by_layer[2] == pytest.approx(cosines.mean(), abs=0.04 * float(cosines.std()))  # it samples 10,000 pairs
    assert anisotropy(bert, TEXTS, seed=5)[2] != by_layer[2]
    with pytest.raises(ValueError, match="at least two tokens"):
        anisotropy(bert, ["a"])


def test_cka_equals_the_formula_with_gram_matrices():
    """Kornblith et al. (2019), equation 3, with linear kernels."""
    x, y = RNG.normal(size=(13, 5)), RNG.normal(size=(13, 7))
    center = np.eye(13) - 1 / 13

    def hsic(k, m):
        return np.trace(k @ center @ m @ center)

    k, m = x @ x.T, y @ y.T
    assert linear_cka(x, y) == pytest.approx(hsic(k, m) / np.sqrt(hsic(k, k) * hsic(m, m)))
    rotation, _ = np.linalg.qr(RNG.normal(size=(5, 5)))
    assert linear_cka(x, 3 * x @ rotation + 2) == pytest.approx(1)
    with pytest.raises(ValueError, match="same examples, got 13 and 12"):
        linear_cka(x, y[:12])
    with pytest.raises(ValueError, match="are equal"):
        linear_cka(x, np.ones((13, 2)))
    equal = np.full((13, 2), 0.3)
    assert (equal.mean(axis=0) != 0.3).any()  # it is rounded
    for sides in ((x, equal), (equal, x)):
        with pytest.raises(ValueError, match="are equal"):
            linear_cka(*sides)


@pytest.mark.slow
def test_similarity_compares_layers_and_models(bert):
    second_model = tiny_task(TextEmbedder, ALBERT)
    within, between = layer_similarity(bert, TEXTS), layer_similarity(bert, iter(TEXTS), second_model)
    np.testing.assert_allclose(np.diag(within), 1)
    np.testing.assert_allclose(within, within.T)
    assert between.shape == (len(within), len(second_model.backbone.output["hidden_states"]))
    x, y = (compute_text_means(*hidden_states(m, TEXTS)) for m in (bert, second_model))
    assert between[1, 2] == pytest.approx(linear_cka(x[:, 1], y[:, 2]))
    with pytest.raises(ValueError, match="at least two texts"):
        layer_similarity(bert, TEXTS[:1])


def test_arguments_are_checked_before_states_are_computed(bert, monkeypatch):
    monkeypatch.setattr("lmzoo.analysis.layers.hidden_states", None)
    pairs = iter([("the film", "a plot")] * 7)
    with pytest.raises(ValueError, match="one label for each text: got 5 for 7"):
        probe(bert, pairs, ["x"] * 5)
    with pytest.raises(ValueError, match=r"at least two classes with 3 examples each, got \{'x': 5, 'y': 2\}"):
        probe(bert, [["the", "film"]] * 7, ["x"] * 5 + ["y"] * 2, folds=3)
    with pytest.raises(ValueError, match="`texts` must be at least two texts, got 1"):
        layer_similarity(bert, iter(TEXTS[:1]))
    with pytest.raises(ValueError, match="pass `preprocessor`"):
        layer_similarity(bert, TEXTS, bert.backbone)


def test_probes_equal_scikit_learn(bert):
    texts = [f"the {word} was {word}" for word in ("film", "plot", "good", "dull")] * 5
    labels = ["x", "y", "y", "x"] * 5
    results = probe(bert, texts, labels, folds=5)
    x = compute_text_means(*hidden_states(bert, texts))[:, 1]
    parts = StratifiedKFold(5, shuffle=True, random_state=0)
    accuracies = []
    for train, test in parts.split(x, labels):
        scaler = StandardScaler().fit(x[train])
        model = LogisticRegression(max_iter=1000).fit(scaler.transform(x[train]), np.array(labels)[train])
        accuracies.append(model.score(scaler.transform(x[test]), np.array(labels)[test]))
    assert results.accuracy[1] == pytest.approx(np.mean(accuracies))
    assert results.deviation[1] == pytest.approx(np.std(accuracies))
    assert results.accuracy.shape == (len(bert.backbone.output["hidden_states"]),)
    with pytest.raises(ValueError, match="one label for each text: got 19 for 20"):
        probe(bert, texts, labels[1:])
    with pytest.raises(ValueError, match=r"at least two classes with 5 examples each, got \{'x': 20\}"):
        probe(bert, texts, ["x"] * 20)
    with pytest.raises(ValueError, match="one label for each text: for labels of words"):
        probe(bert, texts, [["O", "B"], *labels[1:]])


@pytest.mark.slow
def test_a_backbone_needs_a_preprocessor(bert):
    preprocessor = tiny_preprocessor(FAMILY)
    changes = layer_changes(bert.backbone, TEXTS, preprocessor=preprocessor)
    np.testing.assert_allclose(changes.distance, layer_changes(bert, TEXTS).distance, rtol=1e-5)
    with pytest.raises(ValueError, match="pass `preprocessor`"):
        layer_changes(bert.backbone, TEXTS)


def test_wrong_arguments_are_refused(bert):
    for wrong in (0, -1, 1.5):
        with pytest.raises(ValueError, match="`batch_size` must be an integer of at least 1"):
            hidden_states(bert, TEXTS, batch_size=wrong)
        with pytest.raises(ValueError, match="`batch_size` must be an integer of at least 1"):
            attention(bert, TEXTS, batch_size=wrong)
    for function in (hidden_states, anisotropy, layer_similarity):
        with pytest.raises(TypeError, match=r"got one string; write \['a film'\]"):
            function(bert, "a film")
    with pytest.raises(TypeError, match=r"`preprocessor` must be a `lmzoo.text.Preprocessor`"):
        hidden_states(bert.backbone, TEXTS, preprocessor=bert.preprocessor.tokenizer)
    with pytest.raises(ValueError, match="they do not belong together"):
        hidden_states(bert.backbone, TEXTS, preprocessor=tiny_preprocessor(ELMO))
    long = tiny_preprocessor(FAMILY)
    long.sequence_length = 512
    with pytest.raises(ValueError, match="`sequence_length` is 512, but the model has positions for"):
        hidden_states(bert.backbone, TEXTS, preprocessor=long)
