"""Labels of tokens: weights of sequences, ignored tokens, and checks, from every source of batches."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.models import CausalLM, MaskedLM, Pretrainer, Seq2SeqLM, TokenClassifier
from lmzoo.registry.family import families
from lmzoo.tasks.token_labels import replace_ignored, weigh_tokens
from lmzoo.testing import tiny_task
from lmzoo.training.losses import SmoothedCrossEntropy
from lmzoo.training.span_metrics import IGNORED

TASKS = {CausalLM: "gpt2", MaskedLM: "bert", Seq2SeqLM: "marian", TokenClassifier: "bert"}


@pytest.fixture(params=TASKS, ids=lambda cls: cls.__name__)
def task(request):
    return tiny_task(request.param, families()[TASKS[request.param]])


def make_arrays(task):
    """Return features, labels and token weights of 5 sequences with 5 labels each, so that any axis may be weighed."""
    rng = np.random.default_rng(3)
    vocabulary_size = task.backbone.config.vocabulary_size
    features = {name: rng.integers(1, vocabulary_size, (5, 5), "int32") for name in task.input}
    for name in features:
        if name.endswith("mask"):
            features[name][:] = 1
        if name == "segment_ids":
            features[name][:] = 0
        if name == "mask_positions":
            features[name][:] = np.arange(5)
    labels = rng.integers(0, task.num_classes or vocabulary_size, (5, 5), "int32")
    weights = rng.uniform(0.1, 3, (5, 5)).astype("float32")
    if isinstance(task, Pretrainer):
        labels = {"masked_lm": labels, "sentence": np.array([0, 1, 1, 0, 1], "int32")}
        weights = {"masked_lm": weights, "sentence": weights[0]}
    return features, {name: labels[name] for name in task.output} if isinstance(task, Pretrainer) else labels, weights


class Sequences(keras.utils.PyDataset):
    """A batch as a dataset."""

    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.batch


def measure(task, *batch):
    """Return the loss and metrics of a batch of arrays."""
    return task.test_on_batch(*batch, return_dict=True)


def measure_stream(task, *batch):
    """Return the loss and metrics of a batch that Keras reads from a dataset."""
    return task.evaluate(Sequences(batch), verbose=0, return_dict=True)


def test_the_weight_of_a_sequence_is_the_weight_of_its_tokens(task):
    features, labels, _ = make_arrays(task)
    weights = np.array([0.5, 3, 0, 2, 0.25], "float32")
    expected = measure(task, features, labels, np.repeat(weights[:, None], 5, axis=1))
    assert abs(measure(task, features, labels)["loss"] - expected["loss"]) > 1e-4
    from_arrays = task.evaluate(features, labels, sample_weight=weights, verbose=0, return_dict=True)
    from_stream = measure_stream(task, features, labels, weights)
    for result in (measure(task, features, labels, weights), from_arrays, from_stream):
        assert result == pytest.approx(expected, rel=1e-5)


@pytest.mark.tf_only
def test_the_weight_of_a_sequence_in_a_dataset():
    import tensorflow as tf

    task = tiny_task(Seq2SeqLM, families()["marian"])
    features, labels, _ = make_arrays(task)
    weights = np.array([0.5, 3, 0, 2, 0.25], "float32")
    dataset = tf.data.Dataset.from_tensor_slices((features, labels, weights)).batch(5)
    expected = measure(task, features, labels, np.repeat(weights[:, None], 5, axis=1))
    assert task.evaluate(dataset, verbose=0, return_dict=True) == pytest.approx(expected, rel=1e-5)


def ignore_a_third(labels):
    """Return labels in which a third is ignored, and whether each label counts."""
    is_ignored = np.arange(labels.size).reshape(labels.shape) % 3 == 1
    return np.where(is_ignored, IGNORED, labels), ~is_ignored


def test_ignored_tokens_count_as_tokens_with_the_weight_0(task):
    features, labels, weights = make_arrays(task)
    ignored_labels, is_counted = ignore_a_third(labels)
    expected = measure(task, features, labels, weights * is_counted)
    assert measure(task, features, ignored_labels, weights) == pytest.approx(expected, rel=1e-5)
    expected = measure(task, features, labels, is_counted.astype("float32"))
    assert measure(task, features, ignored_labels) == pytest.approx(expected, rel=1e-5)
    assert measure_stream(task, features, ignored_labels) == pytest.approx(expected, rel=1e-5)


def test_other_losses_leave_out_ignored_tokens():
    task = tiny_task(TokenClassifier, families()["bert"])
    task.compile(loss=SmoothedCrossEntropy(0.2))
    features, labels, _ = make_arrays(task)
    ignored_labels, is_counted = ignore_a_third(labels)
    expected = measure(task, features, labels, is_counted.astype("float32"))
    assert measure(task, features, ignored_labels)["loss"] == pytest.approx(expected["loss"], rel=1e-5)


def test_the_mean_of_a_users_loss_is_over_counted_tokens():
    task = tiny_task(TokenClassifier, families()["bert"])
    features, labels, _ = make_arrays(task)
    ignored_labels, _ = ignore_a_third(labels)
    expected = measure(task, features, ignored_labels)["loss"]
    task.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-100))
    assert measure(task, features, ignored_labels)["loss"] == pytest.approx(expected, rel=1e-5)


def test_pretrainers_ignore_tokens_with_and_without_weights():
    task = tiny_task(Pretrainer, families()["bert"])
    features, labels, weights = make_arrays(task)
    ignored_labels, is_counted = ignore_a_third(labels["masked_lm"])
    ignored_labels = {**labels, "masked_lm": ignored_labels}
    sequence_weights = np.array([0.5, 3, 0, 2, 0.25], "float32")
    ones = np.ones((5, 1), "float32")
    for passed, token_weights in (
        ((weights,), weights),
        ((), {"masked_lm": ones, "sentence": ones[:, 0]}),
        ((sequence_weights,), {"masked_lm": sequence_weights[:, None], "sentence": sequence_weights}),
    ):
        counted = {**token_weights, "masked_lm": token_weights["masked_lm"] * is_counted}
        expected = measure(task, features, labels, counted)
        assert measure(task, features, ignored_labels, *passed) == pytest.approx(expected, rel=1e-5)


def test_labels_outside_of_the_vocabulary_are_refused(task, steps):
    features, labels, _ = make_arrays(task)
    for label in (-1, -101, 10**6):
        wrong = np.where(np.arange(25).reshape(5, 5) == 11, label, labels)
        for call in (task.train_on_batch, lambda *data: task.fit(*data, callbacks=[steps], verbose=0)):
            with pytest.raises(ValueError, match=rf"Label {label} is outside \[0, \d+\)"):
                call(features, wrong)
    with pytest.raises(ValueError, match=r"Expected labels of tokens, int \(n, T\), got float32"):
        task.evaluate(features, labels.astype("float32"), verbose=0)
    assert steps.count == 0


def test_the_last_token_of_the_vocabulary_is_a_label(task):
    if isinstance(task, TokenClassifier):
        return
    size = task.backbone.config.vocabulary_size
    assert task.encode_labels([[0, size - 1, IGNORED]]).tolist() == [[0, size - 1, IGNORED]]
    with pytest.raises(ValueError, match=rf"Label {size} is outside \[0, {size}\), the token ids"):
        task.encode_labels([[size]])


def test_labels_of_a_pretrainer_are_checked_by_output():
    task = tiny_task(Pretrainer, families()["bert"])
    features, labels, _ = make_arrays(task)
    wrong = {**labels, "masked_lm": labels["masked_lm"] + 10**6}
    with pytest.raises(ValueError, match=r"In the labels of 'masked_lm': Label 1000.* is outside"):
        task.fit(features, wrong, verbose=0)
    with pytest.raises(ValueError, match=r"In the labels of 'sentence': Label 2 at position 0 is outside \[0, 2\)"):
        task.fit(features, {**labels, "sentence": labels["sentence"] * 0 + 2}, verbose=0)
    single = tiny_task(Pretrainer, families()["roberta"])  # its only output may have labels without a name
    features, labels, _ = make_arrays(single)
    assert measure(single, features, labels["masked_lm"]) == pytest.approx(measure(single, features, labels))


def test_weights_of_tokens_in_numbers():
    labels = np.array([[3, -100, 0], [-100, 5, 1]])
    weights = np.array([2.0, 0.5])
    expected = [[2, 0, 2], [0, 0.5, 0.5]]
    for sample_weight in (weights, weights[:, None], np.repeat(weights[:, None], 3, axis=1)):
        assert np.asarray(weigh_tokens(labels, sample_weight)).tolist() == expected
    assert np.asarray(weigh_tokens(labels.astype("uint8") * 0, None)).tolist() == [[1, 1, 1]] * 2
    assert weigh_tokens(np.arange(2), weights) is weights
    assert weigh_tokens(None, None) is None
    assert np.asarray(replace_ignored(labels)).tolist() == [[3, 0, 0], [0, 5, 1]]
