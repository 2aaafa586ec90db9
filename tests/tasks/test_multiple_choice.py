"""`MultipleChoice`: scores, loss, labels, token features, datasets."""

from __future__ import annotations

import csv
import gzip

import keras
import numpy as np
import pytest

from lmzoo.models import MultipleChoice, TextRegressor
from lmzoo.registry.family import families
from lmzoo.testing import tiny_task
from lmzoo.text import TextWarning
from lmzoo.training import AdamW

MISSING_CHOICE_LOGIT = -30_000.0
EXAMPLES = [
    ("the film was", ["good .", "never !"]),
    ("a plot", ["dull"]),
    ("", ["is", "", "fine", "very very very bad ."]),
]
LABELS = [1, 0, 3]


def build(tiny, **arguments):
    task = MultipleChoice(tiny.backbone(), tiny.preprocessor(), **arguments)
    task.compile(keras.optimizers.SGD(0.0))
    return task


@pytest.fixture(scope="module")
def task(tiny):
    return build(tiny)


@pytest.mark.quick_cases("bert")
@pytest.mark.parametrize("family", ["bert", "elmo"])
def test_logits_are_scores_of_pairs(family):
    """A regressor with the same weights scores each pair of prompt and choice."""
    task = tiny_task(MultipleChoice, families()[family])
    regressor = tiny_task(TextRegressor, families()[family])
    for source, target in zip(task.weights, regressor.weights, strict=True):
        assert source.path == target.path
        target.assign(keras.ops.convert_to_numpy(source))
    logits = task.predict(EXAMPLES, batch_size=2, verbose=0)
    assert logits.shape == (3, 4)
    assert logits.dtype == "float32"
    for row, (prompt, choices) in zip(logits, EXAMPLES, strict=True):
        expected = regressor.score([(prompt, choice) for choice in choices])
        np.testing.assert_allclose(row[: len(choices)], expected, rtol=1e-5, atol=1e-6)
        assert (row[len(choices) :] == MISSING_CHOICE_LOGIT).all()


@pytest.mark.slow
def test_loss_and_accuracy_are_over_the_examples_own_choices(task):
    logits, weights = task.predict(EXAMPLES, verbose=0), np.array([2.0, 0.5, 1.0])
    choice_logits = [row[: len(choices)] for row, (_, choices) in zip(logits, EXAMPLES, strict=True)]
    losses = [np.log(np.exp(row - row[label]).sum()) for row, label in zip(choice_logits, LABELS, strict=True)]
    is_correct = [row.argmax() == label for row, label in zip(choice_logits, LABELS, strict=True)]
    assert losses[1] == 0
    for batch_size in (1, 2, 3):
        scores = task.evaluate(EXAMPLES, LABELS, batch_size=batch_size, verbose=0, return_dict=True)
        assert scores == pytest.approx({"loss": np.mean(losses), "accuracy": np.mean(is_correct)}, rel=1e-5)
    scores = task.evaluate(EXAMPLES, LABELS, sample_weight=weights, verbose=0)
    assert scores == pytest.approx([np.mean(losses * weights), np.average(is_correct, weights=weights)], rel=1e-5)


def test_choose_ranks_the_choices(task):
    logits = task.predict(EXAMPLES, verbose=0)
    ranked = task.choose(EXAMPLES, top_k=3, batch_size=2)
    assert [len(answers) for answers in ranked] == [2, 1, 3]
    for answers, row, (_, choices) in zip(ranked, logits, EXAMPLES, strict=True):
        choice_logits = row[: len(choices)]
        order = np.argsort(-choice_logits, kind="stable")[:3]
        assert [answer["index"] for answer in answers] == order.tolist()
        assert [answer["choice"] for answer in answers] == [choices[i] for i in order]
        expected = np.exp(choice_logits) / np.exp(choice_logits).sum()
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
    ],
)
def test_errors_of_labels_come_before_the_first_step(task, assert_refused, labels, error, message):
    assert_refused(task, (EXAMPLES, labels), (EXAMPLES, LABELS), error, message)


def test_errors_of_examples_come_before_the_first_step(task, steps):
    for examples, error, message in (
        ([*EXAMPLES, ("a", [])], ValueError, r"`choices\[3\]` is empty"),
        ([*EXAMPLES, ("a", ["b", 7])], TypeError, r"`choices\[3\]\[1\]` must be a string, got 7"),
        (["a", "b", "c", "d"], ValueError, r"`x\[0\]` must be a pair \(prompt, choices\)"),
    ):
        with pytest.raises(error, match=message):
            task.fit(examples, [0, 0, 0, 0], callbacks=[steps], verbose=0)
        with pytest.raises(error, match=message):
            task.choose(examples)
    with pytest.raises(ValueError, match=r"needs exactly one class per text, .* pass `sample_weight`"):
        task.fit(EXAMPLES, LABELS, class_weight={0: 2.0}, verbose=0)
    with pytest.raises(ValueError, match="no examples"):
        task.fit([], [], verbose=0)
    assert steps.count == 0


@pytest.mark.slow
def test_all_forms_of_labels_are_equivalent(task):
    expected = task.evaluate(EXAMPLES, LABELS, verbose=0)
    for labels in (np.array(LABELS), np.array(LABELS, object), np.array(LABELS)[:, None], np.array(LABELS, float)):
        assert task.evaluate(EXAMPLES, labels, verbose=0) == expected


@pytest.mark.slow
def test_token_features_are_read_like_texts(task):
    encoded = task.encode_inputs(EXAMPLES)
    features = task.features(encoded, np.arange(3), int(encoded.lengths.max()) + 3)
    assert features["token_ids"].shape == (3, 4, encoded.lengths.max() + 3)
    np.testing.assert_allclose(task.predict(features, verbose=0), task.predict(EXAMPLES, verbose=0), atol=1e-5)
    scores = task.evaluate(features, np.array(LABELS), verbose=0)
    assert scores == pytest.approx(task.evaluate(EXAMPLES, LABELS, verbose=0), rel=1e-4)
    assert np.isfinite(task.fit(features, np.array(LABELS), verbose=0).history["loss"]).all()


def test_labels_of_token_features_are_among_the_choices(task):
    features = {name: np.ones((2, 3, 5), "int32") for name in task.input}
    assert np.isfinite(task.test_on_batch(features, [2, 0])).all()
    for call in (task.test_on_batch, task.evaluate):
        with pytest.raises(ValueError, match=r"Label 3 at position 1 is outside \[0, 3\), the choices"):
            call(features, [2, 3])


@pytest.mark.quick_cases("bert")
@pytest.mark.parametrize("family", ["bert", "elmo"])
def test_token_features_are_checked(family, steps):
    task = tiny_task(MultipleChoice, families()[family])
    encoded = task.encode_inputs(EXAMPLES[:1])
    features = task.features(encoded, np.array([0]), int(encoded.lengths.max()))
    features_with_gap = {
        name: np.concatenate([values[:, :1], 0 * values[:, :1], values[:, 1:]], axis=1)
        for name, values in features.items()
    }
    logits = task.predict(features_with_gap, verbose=0)  # a missing choice may come before other choices
    np.testing.assert_allclose(logits[:, [0, 2]], task.predict(features, verbose=0), rtol=1e-5)
    assert logits[0, 1] == MISSING_CHOICE_LOGIT
    name = next(iter(features))
    invalid = {**features, name: features[name].copy()}
    invalid[name][0, 1, 2] = -3
    for call in (task.predict, lambda x, **_: task.fit(x, np.array([0]), callbacks=[steps])):
        with pytest.raises(ValueError, match=f"`{name}` must be in .*, got -3 in sequence 1 at position 2"):
            call(invalid, verbose=0)
        with pytest.raises(
            ValueError, match=rf"`\w+` must have {features[name].ndim} axes, examples and choices first"
        ):
            call({name: values[:, 0] for name, values in features.items()}, verbose=0)
        with pytest.raises(ValueError, match=f"takes a dict of .*'{name}'"):
            call({key: values for key, values in features.items() if key != name}, verbose=0)
    assert steps.count == 0


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "elmo"])
def test_an_example_without_choices_does_not_affect_the_step(family, weights_of):
    """Padding alone gives finite outputs and gradients of zero."""
    task = tiny_task(MultipleChoice, families()[family])
    encoded, _ = task.encode_inputs(EXAMPLES), task.compile(keras.optimizers.SGD(1.0))
    features = task.features(encoded, np.array([0, 2]), int(encoded.lengths.max()))
    features = {name: np.concatenate([values, np.zeros_like(values[:1])]) for name, values in features.items()}
    assert (task.predict_on_batch(features)[2] == MISSING_CHOICE_LOGIT).all()
    start, after = weights_of(task), []
    for count in (3, 2):
        for weight, value in zip(task.weights, start, strict=True):
            weight.assign(value)
        batch = {name: values[:count] for name, values in features.items()}
        weight = np.array([1.5, 1.5, 1.5] if count == 3 else [1.0, 1.0])  # the mean is over the batch
        task.train_on_batch(batch, np.array([1, 3, 0])[:count], weight)
        after.append(weights_of(task))
    for actual, expected in zip(*after, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_datasets_are_read_like_lists(task, strings_dataset):
    prompts, choices, labels = ["a", "the film is", "dull"], [["bad", "fine"], ["good .", "!"], ["a", "the"]], [0, 1, 0]
    examples = list(zip(prompts, choices, strict=True))
    dataset = strings_dataset(((prompts, choices), labels))
    for data in (dataset, dataset.batch(2)):
        np.testing.assert_allclose(task.predict(data, verbose=0), task.predict(examples, verbose=0), atol=1e-5)
        assert task.evaluate(data, verbose=0) == pytest.approx(task.evaluate(examples, labels, verbose=0), rel=1e-5)
        assert np.isfinite(task.fit(data, epochs=2, verbose=0).history["loss"]).all()
    with pytest.raises(Exception, match=r"Label 2 at position 1 is outside \[0, 2\)"):
        task.fit(strings_dataset(((prompts, choices), [0, 2, 0])).batch(3), verbose=0)


@pytest.mark.slow
@pytest.mark.tf_only
def test_datasets_may_have_ragged_choices(task):
    import tensorflow as tf

    prompts, choices = [prompt for prompt, _ in EXAMPLES], tf.ragged.constant([row for _, row in EXAMPLES])
    dataset = tf.data.Dataset.from_tensor_slices(((prompts, choices), LABELS)).batch(2)
    np.testing.assert_allclose(task.predict(dataset, verbose=0), task.predict(EXAMPLES, verbose=0), atol=1e-5)
    assert task.evaluate(dataset, verbose=0) == pytest.approx(task.evaluate(EXAMPLES, LABELS, verbose=0), rel=1e-5)


@pytest.mark.slow
def test_missing_choices_are_masked_in_half_precision(tiny):
    backbone = type(tiny.backbone())(**{**tiny.backbone().get_config(), "dtype": "mixed_float16"})
    task = MultipleChoice(backbone, tiny.preprocessor())
    logits = task.predict(EXAMPLES, verbose=0)
    assert logits.dtype == "float32"
    assert (logits[1, 1:] == MISSING_CHOICE_LOGIT).all()
    assert np.isfinite(task.fit(EXAMPLES, LABELS, epochs=2, verbose=0).history["loss"]).all()


@pytest.mark.slow
def test_validation_split_and_pooling(tiny, task):
    history = task.fit(EXAMPLES * 3, LABELS * 3, validation_split=0.34, verbose=0).history
    expected = task.evaluate((EXAMPLES * 3)[5:], (LABELS * 3)[5:], verbose=0)[0]
    assert history["val_loss"] == [pytest.approx(expected, rel=1e-5)]
    mean_task = build(tiny, pooling="mean")
    assert not {v.path for v in mean_task.trainable_variables} & {v.path for v in mean_task.backbone.pooler.variables}
    with pytest.raises(ValueError, match='`pooling` must be "first", "mean" or a list'):
        build(tiny, pooling="max")
    with pytest.raises(ValueError, match="has no preprocessor"):
        MultipleChoice(tiny.backbone()).choose(EXAMPLES)


# The stories are longer than `sequence_length`.
@pytest.mark.filterwarnings(f"ignore::{TextWarning.__module__}.{TextWarning.__name__}")
@pytest.mark.compiled
@pytest.mark.slow
def test_training_on_cosmos_qa_lowers_the_loss(shared):
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
