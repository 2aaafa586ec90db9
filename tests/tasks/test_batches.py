"""How rows are put into batches: few shapes, every row once, in an order that the seed decides."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.tasks.base import prediction
from lmzoo.tasks.base.examples import BatchOptions
from lmzoo.tasks.inputs import read_inputs


@pytest.fixture
def watched(tiny, monkeypatch):
    """A classifier that does no work to speak of, and what it was given: `(rows, width)` of each training batch."""
    task = tiny.classifier()
    given = []
    original = task.make_batch

    def make_batch(examples, rows, width, rng):
        given.append((rows.tolist(), width))
        return original(examples, rows, width, rng)

    monkeypatch.setattr(task, "make_batch", make_batch)
    return task, given


def one_epoch(watched, epochs=1, batch_size=4, **arguments):
    """The batches of each epoch. (On TensorFlow one more is made ahead, to see its structure.)"""
    task, given = watched
    texts, labels = arguments.pop("data")
    given.clear()
    task.fit(texts, labels, batch_size=batch_size, epochs=epochs, verbose=0, **arguments)
    count = -(-len(texts) // batch_size)
    made = given[len(given) - count * epochs :]
    return [made[i : i + count] for i in range(0, len(made), count)]


def compute_row_indices(epoch):
    return [row for rows, _ in epoch for row in rows]


@pytest.mark.compiled
def test_every_row_once_and_a_new_order_each_epoch(tiny, watched):
    data = tiny.data(18)
    epochs = one_epoch(watched, epochs=3, data=data)
    for epoch in epochs:
        assert sorted(compute_row_indices(epoch)) == list(range(18))
        assert sorted(len(rows) for rows, _ in epoch) == [2, 4, 4, 4, 4]
    assert len({tuple(compute_row_indices(epoch)) for epoch in epochs}) == 3
    again = one_epoch((watched[0], watched[1]), epochs=3, data=data)
    assert again[0] != epochs[0], "a second fit repeats the order of the first"
    watched[0].optimizer.iterations.assign(0)
    assert one_epoch(watched, epochs=3, data=data) == epochs, "the same seed from the same start"
    watched[0].optimizer.iterations.assign(0)
    assert one_epoch(watched, epochs=3, data=data, seed=1) != epochs
    given = one_epoch(watched, epochs=2, data=data, shuffle=False)
    assert [compute_row_indices(epoch) for epoch in given] == [list(range(18))] * 2


@pytest.mark.slow
def test_steps_per_epoch_goes_through_all_rows(tiny, watched):
    data = tiny.data(16)
    task, given = watched
    given.clear()
    task.fit(*data, batch_size=4, epochs=4, steps_per_epoch=2, verbose=0)
    first, second = ([row for rows, _ in part for row in rows] for part in (given[-8:-4], given[-4:]))
    assert sorted(first) == sorted(second) == list(range(16))
    assert first != second


def shapes_of(task, data):
    batches, *_ = task.batches(read_inputs(*data), BatchOptions(4, "shuffle"))
    shapes = set()
    for epoch in range(5):
        batches.begin_epoch(epoch)
        shapes |= {features["token_ids"].shape for features, _ in batches.batches()}
    return shapes


def test_few_shapes_that_fit(tiny):
    shapes = shapes_of(tiny.classifier(jit_compile=True), tiny.data(611, longest=35))
    assert 3 <= len(shapes) <= 8
    assert max(width for _, width in shapes) <= tiny.length


@pytest.mark.tf_only
def test_shapes_that_fit_closely_where_one_graph_computes_them_all(tiny):
    shapes = shapes_of(tiny.classifier(jit_compile=False), tiny.data(611, longest=35))
    assert len({width for _, width in shapes if width % 8}) >= 3
    assert max(width for _, width in shapes) <= tiny.length


@pytest.mark.parametrize(("count", "fewest", "most"), [(23, 1, 2), (223, 3, 5)])
def test_a_shape_is_only_compiled_where_it_saves_padding(tiny, count, fewest, most):
    texts, labels = tiny.data(count, longest=35)
    batches, *_ = tiny.classifier(jit_compile=True).batches(read_inputs(texts, labels), BatchOptions(4, "sorted"))
    widths = {features["token_ids"].shape[1] for features, _ in batches.batches()}
    assert fewest <= len(widths) <= most


@pytest.mark.quick_cases("1")
@pytest.mark.parametrize("count", [1, 7, 33])
def test_predictions_in_the_order_given(tiny, count):
    task = tiny.classifier()
    texts = tiny.texts(count, longest=30)
    together = task.predict(texts, batch_size=8, verbose=0)
    assert together.shape == (count, 2)
    for i in {0, count // 2, count - 1}:
        np.testing.assert_allclose(together[i], task.predict([texts[i]], verbose=0)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.tf_only
def test_few_sequences_need_no_generator(tiny, monkeypatch):
    """A dataset of a generator takes longer to make than a small model takes to predict."""
    import tensorflow as tf

    def fail(*args, **kwargs):
        raise AssertionError("made a generator")

    task, texts = tiny.classifier(), tiny.texts(17)
    with monkeypatch.context() as patch:
        patch.setattr(prediction, "_MAX_IN_MEMORY", 16)
        expected = task.predict(texts, batch_size=4, verbose=0)  # from a generator
    monkeypatch.setattr(tf.data.Dataset, "from_generator", fail)
    np.testing.assert_array_equal(task.predict(texts, batch_size=4, verbose=0), expected)
    np.testing.assert_allclose(task.predict(texts[:3], verbose=0), expected[:3], rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(prediction, "_MAX_IN_MEMORY", 16)
    with pytest.raises(AssertionError, match="made a generator"):
        task.predict(texts, batch_size=4, verbose=0)


def test_a_few_batches_give_the_numbers_of_keras_loop(tiny):
    """Keras' loop is entered only where somebody watches it: it takes longer to start than a few batches take."""
    task = tiny.classifier()
    texts, _ = tiny.data(13)
    counted = []
    count = keras.callbacks.LambdaCallback(on_predict_batch_end=lambda batch, logs=None: counted.append(batch))
    expected = task.predict(texts, batch_size=4, callbacks=[count], verbose=0)
    assert counted == [0, 1, 2, 3]
    np.testing.assert_array_equal(task.predict(texts, batch_size=4, verbose=0), expected)
    assert len(counted) == 4


@pytest.mark.compiled
def test_repeated_calls_compile_a_bounded_number_of_times(tiny):
    task = tiny.classifier()
    traced, head = [], task.head.call

    def call(pooled, training=False):
        traced.append(tuple(pooled.shape))
        return head(pooled, training=training)

    task.head.call = call
    for count in (1, 2, 3, 5, 6, 7, 8, 11, 13, 16, 17, 19, 31, 33):
        task.classify(tiny.texts(count, seed=count))
    # TensorFlow: one size, any size, any size and width. Others: 1, 2, 4, ... 32.
    sizes = 3 if keras.backend.backend() == "tensorflow" else 6
    assert 1 <= len(traced) <= sizes
    before = len(traced)
    for count in range(1, 40, 3):
        task.classify(tiny.texts(count, seed=100 + count))
    assert len(traced) == before
