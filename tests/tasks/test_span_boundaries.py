"""SpanBERT's objective, `objective="sbo"`: predict the tokens of a span from its boundaries."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from lmzoo import layers
from lmzoo.families.bert import FAMILY
from lmzoo.families.gpt2 import FAMILY as GPT2
from lmzoo.families.roberta import FAMILY as ROBERTA
from lmzoo.models import MaskedLM, Pretrainer
from lmzoo.pretraining import Recipe
from lmzoo.testing import randomize, tiny_backbone, tiny_task
from lmzoo.text import Masking
from lmzoo.text.masking import span_offsets
from lmzoo.text.probabilities import log_softmax

DOCUMENTS = [["the film was good .", "a plot was never dull !"], ["the good film is very very fine ."]] * 5
POSITIONS = np.array([[1, 2, 5, 7, 8, 9], [3, 4, 5, 6, 0, 0]], "int32")
# Positions before and after each token's span, and its offset in it.
BEFORE = np.array([[0, 0, 4, 6, 6, 6], [2, 2, 2, 2, 0, 0]])
AFTER = np.array([[3, 3, 6, 10, 10, 10], [7, 7, 7, 7, 1, 1]])
OFFSETS = np.array([[0, 1, 0, 0, 1, 2], [0, 1, 2, 3, 0, 0]])
REAL = POSITIONS > 0


@pytest.fixture(scope="module")
def model():
    """Return a model that the tests do not change."""
    model = tiny_task(Pretrainer, FAMILY, objective="sbo")
    randomize(model)
    return model


def test_vectors_agree_with_numpy():
    layer = layers.SpanBoundaries(3, "relu", 1e-5)
    sequence = np.random.default_rng(0).normal(size=(2, 11, 7)).astype("float32")
    layer(sequence, POSITIONS)
    randomize(layer)
    weights = {weight.path.split("/", 1)[1]: ops.convert_to_numpy(weight) for weight in layer.weights}
    rows = np.arange(2)[:, None]
    table = weights["offset_embeddings"][np.minimum(OFFSETS, 2)]  # the fourth token gets the last row
    inputs = np.concatenate([sequence[rows, BEFORE], sequence[rows, AFTER], table], axis=-1)
    x = np.maximum(inputs @ weights["dense/kernel"] + weights["dense/bias"], 0)
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    expected = x * weights["layer_norm/gamma"] + weights["layer_norm/beta"]
    vectors = ops.convert_to_numpy(layer(sequence, POSITIONS))
    np.testing.assert_allclose(vectors[REAL], expected[REAL], rtol=1e-4, atol=1e-5)


def test_vectors_do_not_depend_on_the_inside_of_a_span():
    layer = layers.SpanBoundaries()
    rng = np.random.default_rng(0)
    sequence = rng.normal(size=(2, 11, 7)).astype("float32")
    before = ops.convert_to_numpy(layer(sequence, POSITIONS))
    inside = sequence.copy()
    for i in range(2):
        inside[i, POSITIONS[i][REAL[i]]] += rng.normal(size=(REAL[i].sum(), 7))
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(inside, POSITIONS))[REAL], before[REAL])
    sequence[0, 3] += 1  # the token after the first span
    changed = (ops.convert_to_numpy(layer(sequence, POSITIONS)) != before).any(axis=-1)
    np.testing.assert_array_equal(changed, [[True, True, False, False, False, False], [False] * 6])


def test_offsets_count_from_the_start_of_a_span():
    np.testing.assert_array_equal(span_offsets(POSITIONS, REAL), OFFSETS)


def test_the_loss_is_the_sum_of_both_means(model):
    examples = model.encode_examples([["good"] * 60])
    features, targets, weights = model.make_batch(examples, np.array([0]), 67, np.random.default_rng(0))
    masked_weights = weights["masked_lm"] * 0
    features["mask_positions"] = np.arange(1, 1 + masked_weights.shape[1], dtype="int32")[None]
    assert targets["masked_lm"].shape == masked_weights.shape
    outputs = model.predict_on_batch(features)
    losses = {}
    for name, logits in outputs.items():
        log_probabilities = log_softmax(logits.astype("float64"))
        target_scores = np.take_along_axis(log_probabilities, targets[name][..., None], axis=-1)[..., 0]
        losses[name] = -(target_scores * weights[name]).sum() / weights[name].sum()
    assert abs(losses["masked_lm"] - losses["boundary"]) > 1e-3
    scores = model.test_on_batch(features, targets, weights, return_dict=True)
    assert scores["loss"] == pytest.approx(sum(losses.values()), rel=1e-4)
    assert scores["boundary_loss"] == pytest.approx(losses["boundary"], rel=1e-4)


def test_tokens_after_the_twentieth_have_no_boundary_loss():
    masking = Masking(probability=0.9, whole_word=True, ngram=10, geometric=0.01)
    model = tiny_task(Pretrainer, FAMILY, objective="sbo", masking=masking)
    examples = model.encode_examples([["good " * 60]])
    _, _, weights = model.make_batch(examples, np.array([0]), 67, np.random.default_rng(0))
    assert weights["masked_lm"].sum() > 50
    assert weights["boundary"].sum() < weights["masked_lm"].sum()
    assert (weights["boundary"] <= weights["masked_lm"]).all()


@pytest.mark.parametrize("family", [FAMILY, ROBERTA])
def test_the_objective_masks_spans_by_default(family):
    task = Pretrainer(tiny_backbone(family), objective="sbo")
    assert task.masking == family.masking.with_spans()
    assert (task.masking.ngram, task.masking.geometric, task.masking.whole_word) == (10, 0.2, True)
    assert Pretrainer(tiny_backbone(family), objective="sbo", masking=Masking()).masking == Masking()


@pytest.mark.slow
def test_training_lowers_the_boundary_loss():
    model = tiny_task(Pretrainer, FAMILY, objective="sbo")
    model.compile(keras.optimizers.Adam(0.01))
    history = model.fit(DOCUMENTS, epochs=12, batch_size=2, verbose=0).history
    assert history["boundary_loss"][-1] < history["boundary_loss"][0] / 1.5
    assert {"boundary_accuracy", "masked_lm_accuracy"} <= history.keys()


def test_files_restore_both_heads(model, tmp_path):
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    text = ["the [MASK] [MASK] good"]
    for name, logits in model.predict(text, verbose=0).items():
        np.testing.assert_array_equal(reloaded.predict(text, verbose=0)[name], logits)
    model.save_to_preset(tmp_path / "preset")
    from_preset = Pretrainer.from_preset(tmp_path / "preset")
    assert (from_preset.objective, from_preset.masking) == ("sbo", model.masking)
    np.testing.assert_array_equal(
        from_preset.predict(text, verbose=0)["boundary"], model.predict(text, verbose=0)["boundary"]
    )
    masked_lm = MaskedLM.from_preset(tmp_path / "preset")
    np.testing.assert_array_equal(masked_lm.predict(text, verbose=0), model.predict(text, verbose=0)["masked_lm"])


def test_pretraining_recipes_take_the_objective():
    recipe = Recipe("bert", objective="sbo", mask_probability=0.2)
    assert recipe.masking == Masking(probability=0.2).with_spans()
    assert Recipe("bert").masking == FAMILY.masking
    with pytest.raises(ValueError, match="`objective` must be auto or plm for xlnet, got 'sbo'"):
        Recipe("xlnet", objective="sbo")
    with pytest.raises(ValueError, match="cannot fill masks: it is causal"):
        Pretrainer(tiny_backbone(GPT2), objective="sbo")
