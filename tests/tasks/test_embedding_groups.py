"""`TextEmbedder` on triples, hard negatives and graded pairs, with a prompt for each side, widths, mini-batches."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.models import TextEmbedder
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task
from lmzoo.training import AngleLoss, CosentLoss, TripletLoss

BERT = families()["bert"]
FIRSTS = ["good film", "the plot was dull .", "a fine film !", "bad", "very very bad plot"]
SECONDS = ["a good plot", "dull", "fine", "the film is bad .", "plot"]
NEGATIVES = ["is", "the film", "very dull !", "good", "a film is a film"]
MORE_NEGATIVES = ["was", "plot .", "is bad", "fine plot", "a"]
LABELS = [3.0, 5.0, 0.0, 3.0, -2.0]
PROMPTS = {"query": "good film ", "passage": "the "}


def make(**arguments):
    return tiny_task(TextEmbedder, BERT, **arguments)


def normalize(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def compute_ranking_losses(task, *columns, width=None):
    """Return the ranking loss of each group of texts by the formula; all texts must differ."""
    first, second, *negatives = (normalize(task.embed(column).astype("float64")[:, :width]) for column in columns)
    scores = np.exp(first @ np.concatenate([second, *negatives]).T / task.temperature)
    backward = np.exp(second @ first.T / task.temperature)
    correct = np.diag(first @ second.T) / task.temperature
    return (np.log(scores.sum(axis=1)) + np.log(backward.sum(axis=1))) / 2 - correct


# === Negatives and triples ===


@pytest.mark.parametrize("count", [2, 3, 4])
def test_ranking_loss_of_pairs_and_hard_negatives(count, strings_dataset):
    task = make()
    columns = (FIRSTS, SECONDS, NEGATIVES, MORE_NEGATIVES)[:count]
    expected = compute_ranking_losses(task, *columns)
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


@pytest.mark.compiled
def test_pairs_and_larger_groups_alternate():
    task = make()
    eager = make()
    eager.compile(run_eagerly=True)
    for columns in ((FIRSTS, SECONDS), (FIRSTS, SECONDS, NEGATIVES)):
        expected = eager.evaluate(columns, verbose=0)
        assert task.evaluate(columns, verbose=0) == pytest.approx(expected, rel=1e-4)
    for columns in ((FIRSTS, SECONDS), (FIRSTS, SECONDS, NEGATIVES)):
        history = task.fit(columns, batch_size=3, verbose=0).history
        assert np.isfinite(history["loss"]).all()


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


def test_triplet_loss_and_accuracy_agree_with_numpy():
    task = make(objective="triplet")
    first, second, third = map(task.embed, (FIRSTS, SECONDS, NEGATIVES))
    gaps = np.linalg.norm(first - second, axis=1) - np.linalg.norm(first - third, axis=1)
    is_correct = (first * second).sum(axis=1) > (first * third).sum(axis=1)
    scores = task.evaluate((FIRSTS, SECONDS, NEGATIVES), verbose=0)
    assert scores == pytest.approx([np.maximum(gaps + 1, 0).mean(), is_correct.mean()], rel=1e-4)
    task.compile(keras.optimizers.SGD(0.1), loss=TripletLoss(5.0))
    loss, _ = task.evaluate((FIRSTS, SECONDS, NEGATIVES), verbose=0)
    assert loss == pytest.approx((gaps + 5).mean(), rel=1e-4)
    with pytest.raises(ValueError, match="learns from triples alone: it takes no labels"):
        task.fit((FIRSTS, SECONDS, NEGATIVES), LABELS, verbose=0)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [{"objective": "triplet"}, {"matryoshka_widths": [5]}])
def test_training_lowers_the_loss(arguments):
    task = make(**arguments)
    task.compile(keras.optimizers.Adam(3e-3))
    history = task.fit((FIRSTS, SECONDS, NEGATIVES), batch_size=5, epochs=8, shuffle=False, verbose=0).history
    assert history["loss"][-1] < 0.9 * history["loss"][0]


# === Graded pairs ===


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "loss_class"), [("cosent", CosentLoss), ("angle", AngleLoss)])
def test_graded_pairs_have_the_loss_and_lower_it(objective, loss_class):
    task = make(objective=objective, temperature=0.2)
    vectors = np.stack([task.embed(FIRSTS), task.embed(SECONDS)], axis=1).reshape(10, -1)
    loss, pearson = task.evaluate((FIRSTS, SECONDS), LABELS, batch_size=5, verbose=0)
    assert loss == pytest.approx(float(loss_class(0.2)(np.repeat(LABELS, 2), vectors)), rel=1e-4)
    assert pearson == pytest.approx(np.corrcoef(LABELS, (vectors[::2] * vectors[1::2]).sum(axis=1))[0, 1], abs=1e-4)
    task.compile(keras.optimizers.Adam(3e-3))
    history = task.fit((FIRSTS, SECONDS), LABELS, batch_size=5, epochs=8, shuffle=False, verbose=0).history
    assert history["loss"][-1] < 0.9 * history["loss"][0]


# === Prompts ===


def test_each_side_has_its_prompt():
    task, plain = make(prompts=PROMPTS, pair_prompts=("query", "passage")), make()
    queries = [f"good film {text}" for text in FIRSTS]
    passages = [[f"the {text}" for text in column] for column in (SECONDS, NEGATIVES)]
    expected = plain.evaluate((queries, *passages), batch_size=5, verbose=0)
    assert task.evaluate((FIRSTS, SECONDS, NEGATIVES), batch_size=5, verbose=0) == pytest.approx(expected, rel=1e-6)
    np.testing.assert_array_equal(task.embed(FIRSTS), plain.embed(FIRSTS))
    np.testing.assert_array_equal(task.embed(FIRSTS, prompt_name="query"), plain.embed(queries))
    task.pair_prompts = (None, "passage")
    expected = plain.evaluate((FIRSTS, passages[0]), batch_size=5, verbose=0)
    assert task.evaluate((FIRSTS, SECONDS), batch_size=5, verbose=0) == pytest.approx(expected, rel=1e-6)
    task.pair_prompts = ("query", "answer")
    with pytest.raises(ValueError, match="There is no prompt 'answer'; `prompts` has 'query', 'passage'"):
        task.fit((FIRSTS, SECONDS), verbose=0)


def test_prompts_do_not_matter_for_the_equality_of_texts():
    task = make(prompts=PROMPTS, pair_prompts=("query", "passage"))
    pairs = (["good film", "bad"], ["bad", "dull"])  # "bad" is not a negative of itself
    first, second = task.embed(pairs[0], prompt_name="query"), task.embed(pairs[1], prompt_name="passage")
    scores = np.exp(first.astype("float64") @ second.T / 0.05)
    forward = [-np.log(scores[0, 0] / scores[0].sum()), 0.0]
    backward = [0.0, -np.log(scores[1, 1] / scores[:, 1].sum())]
    assert task.evaluate(pairs, verbose=0)[0] == pytest.approx(np.mean([forward, backward]), rel=1e-4)


def test_reports_use_the_prompts_of_training():
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
    task.export(tmp_path / "task/1", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "task/1")).signatures
    for name, prompt in (("query", "query"), ("passage", "passage"), ("serving_default", "passage")):
        vectors = served[name](text=tf.constant(FIRSTS))["embedding"]
        np.testing.assert_allclose(vectors, task.embed(FIRSTS, prompt_name=prompt), atol=1e-6)


# === Widths ===


@pytest.mark.slow
def test_losses_and_vectors_of_several_widths():
    task = make(matryoshka_widths=[5, 3])
    full = task.output.shape[-1]
    columns = (FIRSTS, SECONDS, NEGATIVES)
    expected = sum(compute_ranking_losses(task, *columns, width=width).mean() for width in (full, 5, 3))
    assert task.evaluate(columns, batch_size=5, verbose=0)[0] == pytest.approx(expected, rel=1e-4)
    vectors = task.embed(FIRSTS)
    np.testing.assert_allclose(task.embed(FIRSTS, width=5), normalize(vectors[:, :5]), atol=1e-6)
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
def test_mini_batches_train_like_the_whole_batch(size, weights_of):
    results = []
    for mini_batch_size in (None, size):
        task = make(mini_batch_size=mini_batch_size)
        task.compile(keras.optimizers.SGD(0.1))
        before = weights_of(task)
        task.fit((FIRSTS, SECONDS, NEGATIVES), batch_size=5, shuffle=False, verbose=0)
        results.append([new - old for old, new in zip(before, weights_of(task), strict=True)])
    for expected, actual in zip(*results, strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert max(np.abs(change).max() for change in results[0]) > 0.01


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("name", ["bert", "albert", "elmo"])
def test_compiled_mini_batches_train_like_the_whole_batch(name, weights_of):
    changes, weights = [], None
    for mini_batch_size in (None, 4):
        backbone = tiny_backbone(families()[name])
        task = TextEmbedder(backbone, tiny_preprocessor(families()[name]), mini_batch_size=mini_batch_size)
        task.compile(keras.optimizers.SGD(0.1))
        weights = weights_of(task) if weights is None else weights
        task.set_weights(weights)
        task.fit((FIRSTS, SECONDS), batch_size=5, shuffle=False, verbose=0)
        changes.append([new - old for old, new in zip(weights, weights_of(task), strict=True)])
    for expected, actual in zip(*changes, strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-5)


# === Files and errors ===


def test_settings_are_saved_with_the_model(save_and_load, tmp_path):
    settings = {"pooling": "max", "normalize": False, "objective": "angle", "temperature": 0.5, "prompts": PROMPTS}
    settings |= {"pair_prompts": ["query", None], "matryoshka_widths": [5, 3], "mini_batch_size": 4}
    task = make(**settings)
    for clone in save_and_load(task):
        assert {name: getattr(clone, name) for name in settings} == settings
        scores = clone.evaluate((FIRSTS, SECONDS), LABELS, verbose=0)
        assert scores == pytest.approx(task.evaluate((FIRSTS, SECONDS), LABELS, verbose=0), rel=1e-6)
        np.testing.assert_array_equal(clone.embed(FIRSTS), task.embed(FIRSTS))
    overrides = {"objective": "contrastive", "pooling": "mean", "matryoshka_widths": None}
    overridden = TextEmbedder.from_preset(tmp_path / "preset", **overrides)
    assert overridden.fit((FIRSTS, SECONDS), verbose=0).history["accuracy"]
    assert overridden.loss.temperature == 0.5


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
        ({"objective": "triplet"}, (FIRSTS, SECONDS, NEGATIVES, MORE_NEGATIVES), None, "got groups of 4"),
        ({"objective": "cosent"}, (FIRSTS, SECONDS, NEGATIVES), LABELS, r"groups of 2 texts, \(firsts, seconds\), got"),
        ({"objective": "angle"}, (FIRSTS, SECONDS), None, "needs a label for each text"),
        ({"objective": "cosent"}, (FIRSTS, SECONDS), [1, 2, 3, 4, np.nan], "Label nan at position 4 is not a finite"),
        ({}, (FIRSTS, SECONDS, NEGATIVES[:4]), None, r"columns of equal length, got \[5, 5, 4\] texts"),
        ({}, (FIRSTS, SECONDS, NEGATIVES, SECONDS), None, "negative of example 0, 'a good plot', is its second text"),
    ],
)
def test_errors_of_groups(arguments, columns, labels, message):
    task = make(**arguments)
    for call in (task.fit, task.evaluate):
        with pytest.raises(ValueError, match=message):
            call(columns, labels, verbose=0)


def test_graded_pairs_have_no_weights():
    for objective in ("cosent", "angle"):
        with pytest.raises(ValueError, match=r'a pair has no `sample_weight`\. Leave it out, or choose "cosine"'):
            make(objective=objective).fit((FIRSTS, SECONDS), LABELS, sample_weight=np.ones(5), verbose=0)


def test_the_triplet_objective_refuses_single_texts():
    with pytest.raises(ValueError, match=r"trained on triples of texts: pass \(anchors, positives, negatives\), three"):
        make(objective="triplet").fit(FIRSTS, verbose=0)
