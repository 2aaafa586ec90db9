"""Choosing: scores of choices are those of pairs, whatever the number of choices beside them."""

from __future__ import annotations

import csv
import gzip

import keras
import numpy as np
import pytest

from lmzoo.models import MultipleChoice, TextRegressor
from lmzoo.registry.family import families
from lmzoo.testing import tiny_examples, tiny_task
from lmzoo.text import TextWarning
from lmzoo.training import AdamW

ABSENT = -30_000.0
EXAMPLES = [
    ("the film was", ["good .", "never !"]),
    ("a plot", ["dull"]),
    ("", ["is", "", "fine", "very very very bad ."]),
]
LABELS = [1, 0, 3]


def build(tiny, rate=None, **arguments):
    task = MultipleChoice(tiny.backbone(), tiny.preprocessor(), **arguments)
    task.compile(keras.optimizers.SGD(0.0) if rate is None else keras.optimizers.Adam(rate))
    return task


@pytest.fixture(scope="module")
def task(tiny):
    return build(tiny)


@pytest.mark.quick_cases("bert")
@pytest.mark.parametrize("family", ["bert", "elmo"])
def test_logits_are_scores_of_pairs(family):
    """A regressor with the same weights scores the pairs one by one."""
    task = tiny_task(MultipleChoice, families()[family])
    regressor = tiny_task(TextRegressor, families()[family])
    for mine, its in zip(task.weights, regressor.weights, strict=True):
        assert mine.path == its.path
        its.assign(keras.ops.convert_to_numpy(mine))
    logits = task.predict(EXAMPLES, batch_size=2, verbose=0)
    assert logits.shape == (3, 4)
    assert logits.dtype == "float32"
    for row, (prompt, choices) in zip(logits, EXAMPLES, strict=True):
        expected = regressor.score([(prompt, choice) for choice in choices])
        np.testing.assert_allclose(row[: len(choices)], expected, rtol=1e-5, atol=1e-6)
        assert (row[len(choices) :] == ABSENT).all()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "elmo"])
def test_neighbors_and_order_do_not_matter(family):
    task = tiny_task(MultipleChoice, families()[family])
    x, _ = tiny_examples(task, 9)
    together = task.predict(x, verbose=0)
    for (prompt, choices), row in zip(x, together, strict=True):
        alone = task.predict([(prompt, choices[::-1])], verbose=0)
        assert alone.shape == (1, len(choices))
        np.testing.assert_allclose(alone[0, ::-1], row[: len(choices)], rtol=1e-5, atol=1e-6)
    columns = [prompt for prompt, _ in x], [choices for _, choices in x]
    np.testing.assert_array_equal(task.predict(columns, verbose=0), together)


@pytest.mark.slow
def test_loss_and_accuracy_are_over_the_examples_own_choices(task):
    logits, weights = task.predict(EXAMPLES, verbose=0), np.array([2.0, 0.5, 1.0])
    own = [row[: len(choices)] for row, (_, choices) in zip(logits, EXAMPLES, strict=True)]
    losses = [np.log(np.exp(row - row[label]).sum()) for row, label in zip(own, LABELS, strict=True)]
    right = [row.argmax() == label for row, label in zip(own, LABELS, strict=True)]
    assert losses[1] == 0
    for size in (1, 2, 3):
        found = task.evaluate(EXAMPLES, LABELS, batch_size=size, verbose=0, return_dict=True)
        assert found == pytest.approx({"loss": np.mean(losses), "accuracy": np.mean(right)}, rel=1e-5)
    found = task.evaluate(EXAMPLES, LABELS, sample_weight=weights, verbose=0)
    assert found == pytest.approx([np.mean(losses * weights), np.average(right, weights=weights)], rel=1e-5)


@pytest.mark.slow
@pytest.mark.compiled
def test_learns_to_choose(tiny, weights_of):
    rng = np.random.default_rng(3)
    prompts, examples, labels = tiny.texts(24), [], []
    for prompt in prompts:
        choices = [" ".join(rng.permutation(["a", "dull", word, "."])) for word in ("bad", "fine", "film", "good")]
        chosen = rng.permutation([[3, 0], [1, 3, 2], [3, 1, 0, 2]][len(examples) % 3])
        examples.append((prompt, [choices[i] for i in chosen]))
        labels.append(int(np.flatnonzero(chosen == 3)[0]))
    task = build(tiny, 0.01)
    before = {w.path: a for w, a in zip(task.weights, weights_of(task), strict=True)}
    history = task.fit(examples, labels, batch_size=12, epochs=25, verbose=0).history
    assert history["loss"][-1] < 0.3 * history["loss"][0]
    assert [answer["index"] for answer in task.choose(examples)] == labels
    still = [w.path for w, a in zip(task.weights, weights_of(task), strict=True) if np.array_equal(a, before[w.path])]
    assert still == ["classifier/logits/bias"]
    assert still[0] in {w.path for w in task.non_trainable_weights}


def test_choose(task):
    logits = task.predict(EXAMPLES, verbose=0)
    ranked = task.choose(EXAMPLES, top_k=3, batch_size=2)
    assert [len(answers) for answers in ranked] == [2, 1, 3]
    for answers, row, (_, choices) in zip(ranked, logits, EXAMPLES, strict=True):
        own = row[: len(choices)]
        order = np.argsort(-own, kind="stable")[:3]
        assert [answer["index"] for answer in answers] == order.tolist()
        assert [answer["choice"] for answer in answers] == [choices[i] for i in order]
        expected = np.exp(own) / np.exp(own).sum()
        np.testing.assert_allclose([answer["score"] for answer in answers], expected[order], rtol=1e-5)
    assert task.choose(EXAMPLES, batch_size=2) == [answers[0] for answers in ranked]
    assert ranked[1] == [{"index": 0, "choice": "dull", "score": 1.0}]
    assert task.choose([]) == []
    assert task.predict([], verbose=0).shape == (0, 0)


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        ([1, 1, 0], ValueError, r"Label 1 at position 1 is outside \[0, 1\): that example has 1 choices"),
        ([1, 0, 4], ValueError, r"Label 4 at position 2 is outside \[0, 4\)"),
        ([1, -1, 0], ValueError, "Label -1 at position 1 is not the index of a choice: choices count from 0"),
        (["B", "A", "D"], TypeError, "Label 'B' at position 0 is not an integer: a label is the index"),
        ([1, 0, 0.5], TypeError, "Label 0.5 at position 2 is not an integer"),
        ([1, None, 0], TypeError, "Label None at position 1 is not an integer"),
        (np.eye(3, 4), ValueError, r"one choice for each example, got labels of shape \(3, 4\)"),
        ([1, 0], ValueError, "3 texts but 2 labels"),
        (None, ValueError, "needs a label"),
    ],
)
def test_wrong_labels_come_before_the_first_step(task, steps, labels, error, message):
    with pytest.raises(error, match=message):
        task.fit(EXAMPLES, labels, callbacks=[steps], verbose=0)
    with pytest.raises(error, match=message):
        task.evaluate(EXAMPLES, labels, verbose=0)
    with pytest.raises(error, match=message):
        task.fit(EXAMPLES, LABELS, validation_data=(EXAMPLES, labels), callbacks=[steps], verbose=0)
    assert steps.count == 0


def test_wrong_examples_come_before_the_first_step(task, steps):
    for wrong, error, message in (
        ([*EXAMPLES, ("a", [])], ValueError, r"`choices\[3\]` is empty"),
        ([*EXAMPLES, ("a", ["b", 7])], TypeError, r"`choices\[3\]\[1\]` must be a string, got 7"),
        (["a", "b", "c", "d"], ValueError, r"`x\[0\]` must be a pair \(prompt, choices\)"),
    ):
        with pytest.raises(error, match=message):
            task.fit(wrong, [0, 0, 0, 0], callbacks=[steps], verbose=0)
        with pytest.raises(error, match=message):
            task.choose(wrong)
    with pytest.raises(ValueError, match=r"needs exactly one class per text, .* pass `sample_weight`"):
        task.fit(EXAMPLES, LABELS, class_weight={0: 2.0}, verbose=0)
    with pytest.raises(ValueError, match="no examples"):
        task.fit([], [], verbose=0)
    assert steps.count == 0


@pytest.mark.slow
def test_forms_of_labels(task):
    expected = task.evaluate(EXAMPLES, LABELS, verbose=0)
    for labels in (np.array(LABELS), np.array(LABELS, object), np.array(LABELS)[:, None], np.array(LABELS, float)):
        assert task.evaluate(EXAMPLES, labels, verbose=0) == expected


@pytest.mark.slow
def test_token_features(task):
    encoded = task.encode_inputs(EXAMPLES)
    features = task.features(encoded, np.arange(3), int(encoded.lengths.max()) + 3)
    assert features["token_ids"].shape == (3, 4, encoded.lengths.max() + 3)
    np.testing.assert_allclose(task.predict(features, verbose=0), task.predict(EXAMPLES, verbose=0), atol=1e-5)
    found = task.evaluate(features, np.array(LABELS), verbose=0)
    assert found == pytest.approx(task.evaluate(EXAMPLES, LABELS, verbose=0), rel=1e-4)
    assert np.isfinite(task.fit(features, np.array(LABELS), verbose=0).history["loss"]).all()


@pytest.mark.quick_cases("bert")
@pytest.mark.parametrize("family", ["bert", "elmo"])
def test_token_features_are_checked(family, steps):
    task = tiny_task(MultipleChoice, families()[family])
    encoded = task.encode_inputs(EXAMPLES[:1])
    features = task.features(encoded, np.array([0]), int(encoded.lengths.max()))
    gap = {
        name: np.concatenate([values[:, :1], 0 * values[:, :1], values[:, 1:]], axis=1)
        for name, values in features.items()
    }
    found = task.predict(gap, verbose=0)  # a choice that is not there may stand before others
    np.testing.assert_allclose(found[:, [0, 2]], task.predict(features, verbose=0), rtol=1e-5)
    assert found[0, 1] == ABSENT
    name = next(iter(features))
    wrong = {**features, name: features[name].copy()}
    wrong[name][0, 1, 2] = -3
    for call in (task.predict, lambda x, **_: task.fit(x, np.array([0]), callbacks=[steps])):
        with pytest.raises(ValueError, match=f"`{name}` must be in .*, got -3 in sequence 1 at position 2"):
            call(wrong, verbose=0)
        with pytest.raises(
            ValueError, match=rf"`\w+` must have {features[name].ndim} axes, examples and choices first"
        ):
            call({name: values[:, 0] for name, values in features.items()}, verbose=0)
        with pytest.raises(ValueError, match=f"takes a dict of .*'{name}'"):
            call({key: values for key, values in features.items() if key != name}, verbose=0)
    assert steps.count == 0


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "elmo"])
def test_an_example_without_choices_has_no_part_in_the_step(family, weights_of):
    """All padding gives a finite output, and gradients of zero."""
    task = tiny_task(MultipleChoice, families()[family])
    encoded, _ = task.encode_inputs(EXAMPLES), task.compile(keras.optimizers.SGD(1.0))
    features = task.features(encoded, np.array([0, 2]), int(encoded.lengths.max()))
    features = {name: np.concatenate([values, np.zeros_like(values[:1])]) for name, values in features.items()}
    assert (task.predict_on_batch(features)[2] == ABSENT).all()
    start, after = weights_of(task), []
    for count in (3, 2):
        for weight, value in zip(task.weights, start, strict=True):
            weight.assign(value)
        rows = {name: values[:count] for name, values in features.items()}
        weight = np.array([1.5, 1.5, 1.5] if count == 3 else [1.0, 1.0])  # the mean is over the batch
        task.train_on_batch(rows, np.array([1, 3, 0])[:count], weight)
        after.append(weights_of(task))
    for a, b in zip(*after, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_datasets(task, strings_dataset):
    prompts, choices, labels = ["a", "the film is", "dull"], [["bad", "fine"], ["good .", "!"], ["a", "the"]], [0, 1, 0]
    rows = list(zip(prompts, choices, strict=True))
    dataset = strings_dataset(((prompts, choices), labels))
    for form in (dataset, dataset.batch(2)):
        np.testing.assert_allclose(task.predict(form, verbose=0), task.predict(rows, verbose=0), atol=1e-5)
        assert task.evaluate(form, verbose=0) == pytest.approx(task.evaluate(rows, labels, verbose=0), rel=1e-5)
        assert np.isfinite(task.fit(form, epochs=2, verbose=0).history["loss"]).all()
    with pytest.raises(Exception, match=r"Label 2 at position 1 is outside \[0, 2\)"):
        task.fit(strings_dataset(((prompts, choices), [0, 2, 0])).batch(3), verbose=0)


@pytest.mark.slow
@pytest.mark.tf_only
def test_datasets_of_different_numbers_of_choices(task):
    import tensorflow as tf

    prompts, choices = [prompt for prompt, _ in EXAMPLES], tf.ragged.constant([row for _, row in EXAMPLES])
    dataset = tf.data.Dataset.from_tensor_slices(((prompts, choices), LABELS)).batch(2)
    np.testing.assert_allclose(task.predict(dataset, verbose=0), task.predict(EXAMPLES, verbose=0), atol=1e-5)
    assert task.evaluate(dataset, verbose=0) == pytest.approx(task.evaluate(EXAMPLES, LABELS, verbose=0), rel=1e-5)


@pytest.mark.compiled
@pytest.mark.slow
@pytest.mark.parametrize("family", ["elmo", "bert"])
def test_with_an_encoder(family, tmp_path):
    task = tiny_task(MultipleChoice, families()[family], encoder="bilstm", encoder_dim=11)
    x, y = tiny_examples(task, 6)
    task.compile(keras.optimizers.Adam(0.02))
    losses = task.fit(x, y, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]
    expected = task.predict(x, verbose=0)
    for example, row in zip(x, expected, strict=True):
        found = task.predict([example], verbose=0)[0]
        np.testing.assert_allclose(found, row[: len(found)], atol=1e-5)
    task.save(tmp_path / "task.keras")
    clone = keras.saving.load_model(tmp_path / "task.keras")
    np.testing.assert_array_equal(clone.predict(x, verbose=0), expected)
    assert clone.get_config() == task.get_config()


@pytest.mark.slow
def test_half_precision_hides_choices(tiny):
    backbone = type(tiny.backbone())(**{**tiny.backbone().get_config(), "dtype": "mixed_float16"})
    task = MultipleChoice(backbone, tiny.preprocessor())
    logits = task.predict(EXAMPLES, verbose=0)
    assert logits.dtype == "float32"
    assert (logits[1, 1:] == ABSENT).all()
    assert np.isfinite(task.fit(EXAMPLES, LABELS, epochs=2, verbose=0).history["loss"]).all()


@pytest.mark.slow
def test_validation_split_and_options(tiny, task):
    history = task.fit(EXAMPLES * 3, LABELS * 3, validation_split=0.34, verbose=0).history
    expected = task.evaluate((EXAMPLES * 3)[5:], (LABELS * 3)[5:], verbose=0)[0]
    assert history["val_loss"] == [pytest.approx(expected, rel=1e-5)]
    mean = build(tiny, pooling="mean")
    assert not {v.path for v in mean.trainable_variables} & {v.path for v in mean.backbone.pooler.variables}
    with pytest.raises(ValueError, match='`pooling` must be "first", "mean" or a list'):
        build(tiny, pooling="max")
    with pytest.raises(ValueError, match="has no preprocessor"):
        MultipleChoice(tiny.backbone()).choose(EXAMPLES)


# The stories are longer than what is read of them here.
@pytest.mark.filterwarnings(f"ignore::{TextWarning.__module__}.{TextWarning.__name__}")
@pytest.mark.compiled
@pytest.mark.slow
def test_real_questions(shared):
    """The loss on a few hundred questions of Cosmos QA goes down."""
    with gzip.open(shared("data/mc_cosmosqa/valid.open.csv.gz"), "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))[:240]
    examples = [(f"{row['context']} {row['question']}", [row[f"answer{i}"] for i in range(4)]) for row in rows]
    labels = [int(row["label"]) for row in rows]
    task = MultipleChoice.from_preset("bert_nano_en_uncased", sequence_length=48, pooling="mean")
    task.compile(AdamW(1e-3, global_clipnorm=1.0))
    losses = task.fit(examples, labels, batch_size=16, epochs=4, verbose=0).history["loss"]
    assert losses[0] == pytest.approx(np.log(4), rel=0.1)
    assert losses[-1] < 0.95 * losses[0]
    assert len({answer["index"] for answer in task.choose(examples[:40])}) > 1
