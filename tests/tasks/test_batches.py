"""Batches: few shapes, every example once, in an order that the seed determines."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest

from lmzoo.tasks.base import prediction
from lmzoo.tasks.base.examples import BatchOptions
from lmzoo.tasks.inputs import read_inputs


@pytest.fixture
def task(tiny):
    return tiny.classifier()


@pytest.fixture
def batches(task, monkeypatch):
    """Return a list to which the task appends the indices of the examples in each training batch."""
    batches = []
    original = task.make_batch

    def make_batch(examples, indices, width, rng):
        batches.append(indices.tolist())
        return original(examples, indices, width, rng)

    monkeypatch.setattr(task, "make_batch", make_batch)
    return batches


@pytest.mark.compiled
def test_every_epoch_has_each_example_once_in_a_new_order(tiny, task, batches):
    texts, labels = tiny.data(18)

    def fit(epochs=3, **arguments):
        """Return the batches of each epoch."""
        batches.clear()
        task.fit(texts, labels, batch_size=4, epochs=epochs, verbose=0, **arguments)
        # TensorFlow makes one more batch before, to see its structure.
        return [batches[-5 * k :][:5] for k in range(epochs, 0, -1)]

    epochs = fit()
    for epoch in epochs:
        assert sorted(itertools.chain(*epoch)) == list(range(18))
        assert sorted(map(len, epoch)) == [2, 4, 4, 4, 4]
    assert len({(*itertools.chain(*epoch),) for epoch in epochs}) == 3
    assert fit()[0] != epochs[0], "a second fit repeats the order of the first"
    task.optimizer.iterations.assign(0)
    assert fit() == epochs, "the same seed from the same start"
    task.optimizer.iterations.assign(0)
    assert fit(seed=1) != epochs
    assert [[*itertools.chain(*epoch)] for epoch in fit(2, shuffle=False)] == [list(range(18))] * 2


def test_steps_per_epoch_goes_through_all_examples(tiny, task, batches):
    """Epochs of three steps end within the passes of five batches, and none is cut short."""
    task.fit(*tiny.data(20), batch_size=4, epochs=4, steps_per_epoch=3, verbose=0)
    assert int(keras.ops.convert_to_numpy(task.optimizer.iterations)) == 12
    # TensorFlow makes one more batch before, to see its structure.
    made = batches[1:] if keras.backend.backend() == "tensorflow" else batches
    first, second = ([*itertools.chain(*part)] for part in (made[:5], made[5:10]))
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second


def collect_shapes(task, data):
    batches, *_ = task.batches(read_inputs(*data), BatchOptions(4, "shuffle"))
    shapes = set()
    for epoch in range(5):
        batches.begin_epoch(epoch)
        shapes |= {features["token_ids"].shape for features, _ in batches.batches()}
    return shapes


def test_compiled_tasks_get_few_shapes(tiny):
    shapes = collect_shapes(tiny.classifier(jit_compile=True), tiny.data(611, longest=35))
    assert 3 <= len(shapes) <= 8
    assert max(width for _, width in shapes) <= tiny.length


@pytest.mark.tf_only
def test_one_open_graph_gets_closely_fitting_shapes(tiny):
    shapes = collect_shapes(tiny.classifier(jit_compile=False), tiny.data(611, longest=35))
    assert len({width for _, width in shapes if width % 8}) >= 3
    assert max(width for _, width in shapes) <= tiny.length


@pytest.mark.parametrize(("count", "fewest", "most"), [(23, 1, 2), (223, 3, 5)])
def test_another_shape_is_compiled_only_if_it_saves_padding(tiny, count, fewest, most):
    texts, labels = tiny.data(count, longest=35)
    batches, *_ = tiny.classifier(jit_compile=True).batches(read_inputs(texts, labels), BatchOptions(4, "sorted"))
    widths = {features["token_ids"].shape[1] for features, _ in batches.batches()}
    assert fewest <= len(widths) <= most


@pytest.mark.quick_cases("1")
@pytest.mark.parametrize("count", [1, 7, 33])
def test_predictions_keep_the_order_of_the_texts(tiny, task, count):
    texts = tiny.texts(count, longest=30)
    logits = task.predict(texts, batch_size=8, verbose=0)
    assert logits.shape == (count, 2)
    for i in {0, count // 2, count - 1}:
        np.testing.assert_allclose(logits[i], task.predict([texts[i]], verbose=0)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.tf_only
def test_few_sequences_need_no_generator(tiny, task, monkeypatch):
    """Making a dataset of a generator takes longer than the predictions of a small model."""
    import tensorflow as tf

    def fail(*args, **kwargs):
        raise AssertionError("made a generator")

    texts = tiny.texts(17)
    with monkeypatch.context() as patch:
        patch.setattr(prediction, "_MAX_IN_MEMORY", 16)
        expected = task.predict(texts, batch_size=4, verbose=0)  # from a generator
    monkeypatch.setattr(tf.data.Dataset, "from_generator", fail)
    np.testing.assert_array_equal(task.predict(texts, batch_size=4, verbose=0), expected)
    np.testing.assert_allclose(task.predict(texts[:3], verbose=0), expected[:3], rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(prediction, "_MAX_IN_MEMORY", 16)
    with pytest.raises(AssertionError, match="made a generator"):
        task.predict(texts, batch_size=4, verbose=0)


def test_a_few_batches_give_the_predictions_of_keras_loop(tiny, task):
    """Keras' loop, which takes longer to start than a few batches take, is used only if there are callbacks."""
    texts = tiny.texts(13)
    batches = []
    recorder = keras.callbacks.LambdaCallback(on_predict_batch_end=lambda batch, logs=None: batches.append(batch))
    expected = task.predict(texts, batch_size=4, callbacks=[recorder], verbose=0)
    assert batches == [0, 1, 2, 3]
    np.testing.assert_array_equal(task.predict(texts, batch_size=4, verbose=0), expected)


def test_padded_lengths_are_compiled_only_where_they_save_more():
    ladder, lengths = [24, 32, 48, 64], np.arange(17, 49)
    assert prediction._choose_buckets(lengths, ladder, 32) == [48]
    assert prediction._choose_buckets(np.repeat(lengths, 101), ladder, 32) == [24, 32, 48]


@pytest.mark.compiled
def test_repeated_calls_compile_a_bounded_number_of_times(tiny, task):
    traces, head = [], task.head.call

    def call(pooled, training=False):
        traces.append(tuple(pooled.shape))
        return head(pooled, training=training)

    task.head.call = call
    for count in (1, 2, 3, 5, 6, 7, 8, 11, 13, 16, 17, 19, 31, 33):
        task.classify(tiny.texts(count, seed=count))
    # TensorFlow traces once for all sizes and widths; other backends compile for 1, 2, 4, ... 32 texts.
    most = 1 if keras.backend.backend() == "tensorflow" else 6
    assert 1 <= len(traces) <= most
    before = len(traces)
    for count in range(1, 40, 3):
        task.classify(tiny.texts(count, seed=100 + count))
    assert len(traces) == before
