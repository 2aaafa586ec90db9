"""Vectors learned from pairs, triples, hard negatives and graded pairs, with prompts by side and in several widths."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.models import TextEmbedder
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task
from lmzoo.training import AngleLoss, CosentLoss, TripletLoss

pytestmark = pytest.mark.usefixtures("eager")

BERT = families()["bert"]
FIRSTS = ["good film", "the plot was dull .", "a fine film !", "bad", "very very bad plot"]
SECONDS = ["a good plot", "dull", "fine", "the film is bad .", "plot"]
NEGATIVES = ["is", "the film", "very dull !", "good", "a film is a film"]
MORE = ["was", "plot .", "is bad", "fine plot", "a"]
LABELS = [3.0, 5.0, 0.0, 3.0, -2.0]
PROMPTS = {"query": "good film ", "passage": "the "}


def make(**arguments):
    return tiny_task(TextEmbedder, BERT, **arguments)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def ranking(task, *columns, width=None):
    """The loss of each group by the formula, for texts that all differ."""
    first, second, *negatives = (unit(task.embed(column).astype("float64")[:, :width]) for column in columns)
    scores = np.exp(first @ np.concatenate([second, *negatives]).T / task.temperature)
    back = np.exp(second @ first.T / task.temperature)
    right = np.diag(first @ second.T) / task.temperature
    return (np.log(scores.sum(axis=1)) + np.log(back.sum(axis=1))) / 2 - right


# === Negatives and triples ===


@pytest.mark.parametrize("columns", [(FIRSTS, SECONDS, NEGATIVES), (FIRSTS, SECONDS, NEGATIVES, MORE)])
def test_hard_negatives(columns, strings_dataset):
    task = make()
    expected = ranking(task, *columns)
    loss, accuracy = task.evaluate(columns, batch_size=5, verbose=0)
    assert loss == pytest.approx(expected.mean(), rel=1e-4)
    assert 0 <= accuracy <= 1
    groups = [*zip(*columns, strict=True)]
    assert task.evaluate(groups, batch_size=5, verbose=0) == pytest.approx([loss, accuracy], rel=1e-5)
    dataset = strings_dataset((columns,)).batch(5)
    assert task.evaluate(dataset, verbose=0) == pytest.approx([loss, accuracy], rel=1e-5)
    weights = np.array([0, 1, 0.5, 3, 1], "float32")
    weighted = task.evaluate(groups, batch_size=5, sample_weight=weights, verbose=0)[0]
    assert weighted == pytest.approx((weights * expected).mean(), rel=1e-4)


def test_batches_hold_the_texts_of_a_group_together():
    task = make()
    columns = (["good film", "bad"], ["dull plot is bad", "fine"], ["a", "good film"])
    examples = task.encode_examples(columns, None, [1.0, 2.0])
    assert examples.encoded.lengths.tolist() == [6, 4]
    features, ids, weights = task.make_batch(examples, np.array([1, 0]), 7, np.random.default_rng(0))
    expected = task.preprocessor(["bad", "fine", "good film", "good film", "dull plot is bad", "a"])
    np.testing.assert_array_equal(features["token_ids"][:, : expected["token_ids"].shape[1]], expected["token_ids"])
    assert ids.tolist() == [[0, 1, 2]] * 3 + [[2, 3, 4]] * 3
    assert weights.tolist() == [2, 2, 2, 1, 1, 1]
    assert [column.token_ids.tolist() for column in examples.encoded.select([1]).columns] == [
        task.preprocessor([column[1]])["token_ids"][0].tolist() for column in columns
    ]


def test_triples():
    task = make(objective="triplet")
    first, second, third = map(task.embed, (FIRSTS, SECONDS, NEGATIVES))
    gaps = np.linalg.norm(first - second, axis=1) - np.linalg.norm(first - third, axis=1)
    is_correct = (first * second).sum(axis=1) > (first * third).sum(axis=1)
    found = task.evaluate((FIRSTS, SECONDS, NEGATIVES), verbose=0)
    assert found == pytest.approx([np.maximum(gaps + 1, 0).mean(), is_correct.mean()], rel=1e-4)
    task.compile(keras.optimizers.SGD(0.1), loss=TripletLoss(5.0))
    loss, _ = task.evaluate((FIRSTS, SECONDS, NEGATIVES), verbose=0)
    assert loss == pytest.approx((gaps + 5).mean(), rel=1e-4)
    with pytest.raises(ValueError, match="learns from triples alone: it takes no labels"):
        task.fit((FIRSTS, SECONDS, NEGATIVES), LABELS, verbose=0)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [{}, {"objective": "triplet"}, {"matryoshka_widths": [5]}])
def test_training_lowers_the_loss(arguments):
    task = make(**arguments)
    task.compile(keras.optimizers.Adam(3e-3))
    history = task.fit((FIRSTS, SECONDS, NEGATIVES), batch_size=5, epochs=8, shuffle=False, verbose=0).history
    assert history["loss"][-1] < 0.9 * history["loss"][0]


# === Graded pairs ===


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "loss"), [("cosent", CosentLoss), ("angle", AngleLoss)])
def test_graded_pairs(objective, loss):
    task = make(objective=objective, temperature=0.2)
    vectors = np.stack([task.embed(FIRSTS), task.embed(SECONDS)], axis=1).reshape(10, -1)
    found, pearson = task.evaluate((FIRSTS, SECONDS), LABELS, batch_size=5, verbose=0)
    assert found == pytest.approx(float(loss(0.2)(np.repeat(LABELS, 2), vectors)), rel=1e-4)
    assert pearson == pytest.approx(np.corrcoef(LABELS, (vectors[::2] * vectors[1::2]).sum(axis=1))[0, 1], abs=1e-4)
    task.compile(keras.optimizers.Adam(3e-3))
    history = task.fit((FIRSTS, SECONDS), LABELS, batch_size=5, epochs=8, shuffle=False, verbose=0).history
    assert history["loss"][-1] < 0.9 * history["loss"][0]


# === Prompts ===


def test_each_side_has_its_prompt():
    task, plain = make(prompts=PROMPTS, pair_prompts=("query", "passage")), make()
    said = [f"good film {text}" for text in FIRSTS]
    answers = [[f"the {text}" for text in column] for column in (SECONDS, NEGATIVES)]
    expected = plain.evaluate((said, *answers), batch_size=5, verbose=0)
    assert task.evaluate((FIRSTS, SECONDS, NEGATIVES), batch_size=5, verbose=0) == pytest.approx(expected, rel=1e-6)
    np.testing.assert_array_equal(task.embed(FIRSTS), plain.embed(FIRSTS))
    np.testing.assert_array_equal(task.embed(FIRSTS, prompt_name="query"), plain.embed(said))
    task.pair_prompts = (None, "passage")
    expected = plain.evaluate((FIRSTS, answers[0]), batch_size=5, verbose=0)
    assert task.evaluate((FIRSTS, SECONDS), batch_size=5, verbose=0) == pytest.approx(expected, rel=1e-6)
    task.pair_prompts = ("query", "answer")
    with pytest.raises(ValueError, match="There is no prompt 'answer'; `prompts` has 'query', 'passage'"):
        task.fit((FIRSTS, SECONDS), verbose=0)


def test_texts_are_equal_whatever_their_prompts():
    task = make(prompts=PROMPTS, pair_prompts=("query", "passage"))
    pairs = (["good film", "bad"], ["bad", "dull"])  # "bad" is not a wrong answer to itself
    first, second = task.embed(pairs[0], prompt_name="query"), task.embed(pairs[1], prompt_name="passage")
    scores = np.exp(first.astype("float64") @ second.T / 0.05)
    there = [-np.log(scores[0, 0] / scores[0].sum()), 0.0]
    back = [0.0, -np.log(scores[1, 1] / scores[:, 1].sum())]
    assert task.evaluate(pairs, verbose=0)[0] == pytest.approx(np.mean([there, back]), rel=1e-4)


def test_reports_have_the_prompts_of_training():
    arguments = {"objective": "cosine", "prompts": PROMPTS, "pair_prompts": ("query", "passage")}
    task = make(**arguments)
    first, second = task.embed(FIRSTS, prompt_name="query"), task.embed(SECONDS, prompt_name="passage")
    labels = [0.3, 0.5, 0.0, 0.3, -0.2]
    report = task.report((FIRSTS, SECONDS), labels, verbose=0)
    expected = np.corrcoef(labels, (first * second).sum(axis=1))[0, 1]
    assert report.scores["pearson"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
@pytest.mark.tf_only
def test_exports_have_a_signature_for_each_side(tmp_path):
    import tensorflow as tf

    task = make(prompts=PROMPTS, pair_prompts=("query", "passage"), default_prompt="passage")
    task.export(tmp_path / "it/1", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "it/1")).signatures
    for name, prompt in (("query", "query"), ("passage", "passage"), ("serving_default", "passage")):
        vectors = served[name](text=tf.constant(FIRSTS))["embedding"]
        np.testing.assert_allclose(vectors, task.embed(FIRSTS, prompt_name=prompt), atol=1e-6)


# === Widths ===


@pytest.mark.slow
def test_widths():
    task = make(matryoshka_widths=[5, 3])
    full = task.output.shape[-1]
    expected = sum(ranking(task, FIRSTS, SECONDS, NEGATIVES, width=width).mean() for width in (full, 5, 3))
    assert task.evaluate((FIRSTS, SECONDS, NEGATIVES), batch_size=5, verbose=0)[0] == pytest.approx(expected, rel=1e-4)
    vectors = task.embed(FIRSTS)
    np.testing.assert_allclose(task.embed(FIRSTS, width=5), unit(vectors[:, :5]), atol=1e-6)
    np.testing.assert_array_equal(task.embed(FIRSTS, width=full).shape, vectors.shape)
    raw = make(normalize=False)
    np.testing.assert_array_equal(raw.embed(FIRSTS, width=2), raw.embed(FIRSTS)[:, :2])
    for width in (0, full + 1, 2.0, "3"):
        with pytest.raises(ValueError, match=f"`width` must be None or an integer from 1 to {full}"):
            task.embed(FIRSTS, width=width)
    with pytest.raises(ValueError, match='`width` is for `level="text"`'):
        task.embed(FIRSTS, level="word", width=3)


# === Mini-batches ===


@pytest.mark.quick_cases("15")
@pytest.mark.parametrize("size", [3, pytest.param(15, marks=pytest.mark.slow)])
def test_mini_batches_train_as_the_whole_batch(size, weights_of):
    results = []
    for mini_batch_size in (None, size):
        task = make(mini_batch_size=mini_batch_size)
        task.compile(keras.optimizers.SGD(0.1))
        before = weights_of(task)
        task.fit((FIRSTS, SECONDS, NEGATIVES), batch_size=5, shuffle=False, verbose=0)
        results.append([now - was for was, now in zip(before, weights_of(task), strict=True)])
    for whole, cached in zip(*results, strict=True):
        np.testing.assert_allclose(cached, whole, atol=1e-5)
    assert max(np.abs(change).max() for change in results[0]) > 0.01


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("name", ["bert", "albert", "elmo"])
def test_compiled_mini_batches_train_as_the_whole_batch(name, weights_of):
    changes, weights = [], None
    for mini_batch_size in (None, 4):
        backbone = tiny_backbone(families()[name])
        task = TextEmbedder(backbone, tiny_preprocessor(families()[name]), mini_batch_size=mini_batch_size)
        task.compile(keras.optimizers.SGD(0.1))
        weights = weights_of(task) if weights is None else weights
        task.set_weights(weights)
        task.fit((FIRSTS, SECONDS), batch_size=5, shuffle=False, verbose=0)
        changes.append([now - was for was, now in zip(weights, weights_of(task), strict=True)])
    for whole, cached in zip(*changes, strict=True):
        np.testing.assert_allclose(cached, whole, atol=1e-5)


# === Keeping, and errors ===


def test_settings_travel_with_the_model(tmp_path):
    settings = {
        "objective": "angle",
        "prompts": PROMPTS,
        "pair_prompts": ["query", None],
        "matryoshka_widths": [5, 3],
        "mini_batch_size": 4,
    }
    task = make(**settings)
    task.save(tmp_path / "task.keras")
    task.save_to_preset(tmp_path / "preset")
    for clone in (keras.saving.load_model(tmp_path / "task.keras"), TextEmbedder.from_preset(tmp_path / "preset")):
        assert {name: getattr(clone, name) for name in settings} == settings
        found = clone.evaluate((FIRSTS, SECONDS), LABELS, verbose=0)
        assert found == pytest.approx(task.evaluate((FIRSTS, SECONDS), LABELS, verbose=0), rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "columns", "labels", "message"),
    [
        ({"objective": "triplet"}, (FIRSTS,), None, "must be a pair|A tuple means pairs"),
        (
            {"objective": "triplet"},
            (FIRSTS, SECONDS),
            None,
            r"groups of 3 texts, \(anchors, positives, negatives\), got",
        ),
        ({"objective": "triplet"}, (FIRSTS, SECONDS, NEGATIVES, MORE), None, "got groups of 4"),
        ({"objective": "cosent"}, (FIRSTS, SECONDS, NEGATIVES), LABELS, r"groups of 2 texts, \(firsts, seconds\), got"),
        ({"objective": "angle"}, (FIRSTS, SECONDS), None, "needs a label for each text"),
        ({"objective": "cosent"}, (FIRSTS, SECONDS), [1, 2, 3, 4, np.nan], "Label nan at position 4 is not a finite"),
        ({}, (FIRSTS, SECONDS, NEGATIVES[:4]), None, r"columns of equal length, got \[5, 5, 4\] texts"),
        ({}, (FIRSTS, SECONDS, NEGATIVES, SECONDS), None, "negative of example 0, 'a good plot', is its second text"),
    ],
)
def test_groups_that_no_objective_takes(arguments, columns, labels, message):
    task = make(**arguments)
    for call in (task.fit, task.evaluate):
        with pytest.raises(ValueError, match=message):
            call(columns, labels, verbose=0)


def test_pairs_that_are_compared_have_no_weights():
    for objective in ("cosent", "angle"):
        with pytest.raises(ValueError, match=r'a pair has no `sample_weight`\. Leave it out, or choose "cosine"'):
            make(objective=objective).fit((FIRSTS, SECONDS), LABELS, sample_weight=np.ones(5), verbose=0)


def test_triples_for_a_model_that_was_given_single_texts():
    with pytest.raises(ValueError, match=r"trained on triples of texts: pass \(anchors, positives, negatives\), three"):
        make(objective="triplet").fit(FIRSTS, verbose=0)


@pytest.mark.parametrize("size", [0, -1, 2.5, "3", True])
def test_sizes_that_are_none(size):
    with pytest.raises(ValueError, match="`mini_batch_size` must be None or an integer of at least 1"):
        make(mini_batch_size=size)
