"""Length buckets and batches of sequences of similar length."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref
from collections.abc import Iterator

import keras
import numpy as np
import pytest

from lmzoo.text import LengthBatches, batching
from lmzoo.text.batching import ArrayBatches, fit_buckets, ladder_buckets
from lmzoo.text.keras_input import in_memory, keras_input, prefetch


def padded_size(lengths: np.ndarray, widths: list[int]) -> int:
    return int(np.sum(np.asarray(widths)[np.searchsorted(widths, lengths)]))


def best_size(lengths: np.ndarray, max_widths: int, multiple: int) -> int:
    """Return the smallest padded size over every choice of widths."""
    top = -(-int(lengths.max()) // multiple) * multiple
    below = range(multiple, top, multiple)
    choices = (c for n in range(min(max_widths, len(below) + 1)) for c in itertools.combinations(below, n))
    return min(padded_size(lengths, [*choice, top]) for choice in choices)


def natural_lengths(longest: int = 128) -> np.ndarray:
    """Return lengths distributed like those of sentences."""
    return np.minimum(np.random.default_rng(1).lognormal(3.1, 0.5, 9973).astype(int) + 3, longest)


def test_fitted_buckets_are_optimal() -> None:
    rng = np.random.default_rng(13)
    for _ in range(120):
        lengths = rng.integers(1, rng.choice([4, 20, 45]), rng.integers(1, 30))
        max_widths, multiple = int(rng.integers(1, 6)), int(rng.choice([1, 3, 5, 8]))
        widths = fit_buckets(lengths, limit=10**6, most=max_widths, multiple=multiple)
        if multiple == 1 and lengths.max() > 20:
            continue
        assert widths == sorted(set(widths))
        assert 1 <= len(widths) <= max_widths
        assert not any(width % multiple for width in widths)
        assert widths[-1] - multiple < lengths.max() <= widths[-1]
        assert padded_size(lengths, widths) == best_size(lengths, max_widths, multiple), (lengths, widths)


def test_fitted_buckets_of_natural_lengths_save_padding() -> None:
    lengths = natural_lengths()
    widths = fit_buckets(lengths, limit=128)
    assert len(widths) == 7
    assert padded_size(lengths, widths) < 1.2 * lengths.sum() < padded_size(lengths, [128])


@pytest.mark.tf_only
def test_there_are_more_widths_if_one_graph_computes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = natural_lengths(126)
    widths, few = fit_buckets(lengths, limit=126, compiled=False), fit_buckets(lengths, limit=126)
    assert set(widths) <= {*range(4, 126, 4), 126}
    assert padded_size(lengths, widths) < 1.1 * lengths.sum() < 0.95 * padded_size(lengths, few)
    assert len(fit_buckets(np.arange(1, 500), limit=512, compiled=False)) == 32
    with monkeypatch.context() as patch:
        patch.setattr(keras.distribution, "list_devices", lambda kind: ["gpu:0"])
        assert not any(width % 8 for width in fit_buckets(lengths, limit=128, compiled=False))
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    assert fit_buckets(lengths, limit=126, compiled=False) == few, "JAX compiles parts for each width"


def test_there_are_fewer_widths_if_each_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = natural_lengths()
    assert not batching.prefers_few_shapes()
    monkeypatch.setattr(batching, "prefers_few_shapes", lambda: True)
    widths = fit_buckets(lengths, limit=128)
    assert len(widths) == 4
    assert padded_size(lengths, widths) < 1.15 * padded_size(lengths, fit_buckets(lengths, 128, most=7))


def test_a_width_that_is_compiled_must_save_padding() -> None:
    for count, max_widths in ((97, 2), (997, 5), (9973, 7)):
        lengths = natural_lengths()[:count]
        saving = 3 * 32 * lengths.mean()
        widths = fit_buckets(lengths, limit=128, batch_size=32)
        assert len(widths) <= max_widths
        sizes = [padded_size(lengths, fit_buckets(lengths, 128, most=k)) for k in range(1, 8)]
        costs = [size + k * saving for k, size in enumerate(sizes)]
        assert padded_size(lengths, widths) + (len(widths) - 1) * saving == pytest.approx(min(costs), rel=1e-9)
    assert len(widths) == 7, "with many examples every width pays"


@pytest.mark.parametrize(
    ("lengths", "limit", "expected"),
    [
        ([67], 67, [67]),  # never wider than the model, whatever the multiple
        ([3, 3, 67], 67, [8, 67]),
        ([3, 66], 67, [8, 67]),
        ([3, 70], 67, [8, 70]),  # the limit truncates no rows
        ([1], 67, [8]),
        ([0], 67, [8]),
        ([8], 67, [8]),
        ([9], 67, [16]),
    ],
)
def test_fitted_buckets_and_the_limit(lengths: list[int], limit: int, expected: list[int]) -> None:
    assert fit_buckets(np.array(lengths), limit) == expected


@pytest.mark.parametrize("limit", [1, 8, 9, 67, 509, 512, 4096])
def test_ladder_buckets(limit: int) -> None:
    widths = ladder_buckets(limit)
    assert widths == sorted(set(widths))
    assert len(widths) <= 8
    assert widths[-1] == limit
    assert all(width % 8 == 0 for width in widths[:-1])
    if limit >= 512:
        assert len(widths) == 8
        assert widths[0] <= limit // 16, "short rows get little padding"


LENGTHS = np.random.default_rng(17).integers(1, 51, 83)
BUCKETS = [8, 24, 51]


def make_batches(order: str, **kwargs: object) -> LengthBatches:
    return LengthBatches(
        LENGTHS, lambda rows, width, rng: (rows, width, rng.integers(10**9)), 7, BUCKETS, order, **kwargs
    )


def read_all(batches: LengthBatches) -> list[tuple[np.ndarray, int, int]]:
    return [batches[i] for i in range(len(batches))]


@pytest.mark.parametrize("order", ["shuffle", "sorted", "given"])
def test_every_row_once_in_the_narrowest_bucket(order: str) -> None:
    batches = make_batches(order)
    outputs = read_all(batches)
    assert len(outputs) == len(batches) == batches.num_batches == 12
    rows = np.concatenate([rows for rows, *_ in outputs])
    assert sorted(rows) == list(range(83))
    np.testing.assert_array_equal(rows, batches.example_order)
    assert sorted(len(rows) for rows, *_ in outputs) == [6] + [7] * 11
    for rows, width, _ in outputs:
        if len(rows) == 7:
            assert width == next(b for b in BUCKETS if b >= LENGTHS[rows].max())
        else:
            assert width == 51, "one shape for the partial batches of all epochs"


def test_a_row_may_fill_its_bucket() -> None:
    batches = LengthBatches(np.array([8, 9, 24, 25, 51]), lambda rows, width, rng: width, 1, BUCKETS, "given")
    assert list(batches.batches()) == [8, 24, 24, 51, 51]


def test_partial_batches_have_one_shape() -> None:
    lengths = np.array([30, 9, 2, 3, 1])
    batches = LengthBatches(lengths, lambda rows, width, rng: (len(rows), width), 3, BUCKETS, "given")
    assert read_all(batches) == [(3, 51), (2, 51)]
    batches = LengthBatches(lengths, lambda rows, width, rng: (len(rows), width), 3, BUCKETS, "given", round_up=True)
    assert read_all(batches) == [(3, 51), (3, 8)]


def test_orders_of_examples_and_batches() -> None:
    np.testing.assert_array_equal(make_batches("given").example_order, np.arange(83))
    np.testing.assert_array_equal(make_batches("sorted").example_order, np.argsort(LENGTHS, kind="stable"))
    shuffled = make_batches("shuffle")
    spread = np.mean([np.ptp(LENGTHS[rows]) for rows, *_ in read_all(shuffled)])
    assert spread < 10 < np.mean([np.ptp(LENGTHS[rows]) for rows, *_ in read_all(make_batches("given"))])
    longest = [LENGTHS[rows].max() for rows, *_ in read_all(shuffled)]
    assert longest != sorted(longest), "batches are not sorted by length"


def test_epochs_and_seeds() -> None:
    """Each epoch of each seed has its own order and draws; `resumed` begins at the last epoch and repeats it."""
    first, second_seed, resumed = make_batches("shuffle"), make_batches("shuffle", seed=(1,)), make_batches("shuffle")
    passes = []
    for epoch in range(3):
        for batches in (first, second_seed):
            batches.begin_epoch(epoch)
            passes.append(read_all(batches))
    resumed.begin_epoch(2)
    for (rows, *actual), (expected_rows, *expected) in zip(read_all(resumed), passes[4], strict=True):
        np.testing.assert_array_equal(rows, expected_rows)
        assert actual == expected
    orders = [tuple(np.concatenate([rows for rows, *_ in outputs])) for outputs in passes]
    assert len(set(orders)) == 6  # three epochs of two seeds
    draws = [draw for outputs in passes for *_, draw in outputs]
    assert len(set(draws)) == len(draws), "every batch has its own random numbers"


@pytest.mark.parametrize(("count", "expected"), [(14, 7), (8, 7), (12, 7), (1, 1), (3, 4), (5, 7)])
def test_last_batches_are_filled(count: int, expected: int) -> None:
    """A single batch is filled up to a power of two, at most the batch size."""
    batches = LengthBatches(
        LENGTHS[:count], lambda rows, width, rng: (rows, width), 7, BUCKETS, "sorted", round_up=True
    )
    rows, width = batches[len(batches) - 1]
    assert len(rows) == expected
    assert width == next(b for b in BUCKETS if b >= LENGTHS[:count].max())
    assert sorted(set(batches.example_order.tolist())) == list(range(count))
    # Outputs assigned by row are right although a row is repeated.
    outputs = LENGTHS[batches.example_order]
    result = np.zeros(count, int)
    result[batches.example_order] = outputs
    np.testing.assert_array_equal(result, LENGTHS[:count])


def test_identity_names_what_has_changed() -> None:
    labels, lengths = np.arange(83) % 7, np.random.default_rng(3).integers(1, 51, 83)

    def identity(labels: np.ndarray = labels, lengths: np.ndarray = lengths, **kwargs: object) -> dict[str, object]:
        def batch(rows: np.ndarray, width: int, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], np.ndarray]:
            return {"x": rng.integers(9, size=(len(rows), width))}, labels[rows]

        return LengthBatches(lengths, batch, **{"batch_size": 7, "buckets": BUCKETS} | kwargs).identity()

    def changed(**kwargs: object) -> set[str]:
        return {name for name, value in identity(**kwargs).items() if value != identity()[name]}

    assert changed() == set()
    changed_labels = labels.copy()
    changed_labels[71] += 1
    assert changed(labels=changed_labels) == changed(labels=labels.astype("float32")) == {"content of the batches"}
    assert changed(seed=(3,), order="given", batch_size=5) == {"seed", "order", "batch size"}
    assert changed(lengths=lengths[::-1]) >= {"texts"}


def test_identity_of_many_rows_is_quick() -> None:
    """It reads all lengths but only a sample of the rows, from the first to the last."""
    rows_read = []
    batches = LengthBatches(np.full(1_000_000, 8), lambda rows, *_: rows_read.append(rows), 7, BUCKETS, "given")
    start = time.perf_counter()
    batches.identity()
    assert time.perf_counter() - start < 1
    rows = np.concatenate(rows_read)
    assert (rows[0], rows[-1], len(rows)) == (0, 999_999, 1024)
    assert np.diff(rows).max() < 1000


def test_buckets_need_examples() -> None:
    with pytest.raises(ValueError, match="no examples"):
        fit_buckets(np.zeros(0, int), 8)


def test_keras_reads_the_batches() -> None:
    def batch(rows: np.ndarray, width: int, rng: np.random.Generator) -> tuple[dict[str, np.ndarray]]:
        return ({"x": np.full((len(rows), width), 1, "float32")},)

    batches = LengthBatches(LENGTHS, batch, 7, BUCKETS, "given")
    inputs = {"x": keras.Input((None,), name="x")}
    model = keras.Model(inputs, keras.ops.sum(inputs["x"], axis=1, keepdims=True))
    widths = np.concatenate([np.full(len(b[0]["x"]), b[0]["x"].shape[1]) for b in batches.batches()])
    np.testing.assert_array_equal(model.predict(keras_input(batches), verbose=0)[:, 0], widths)


@pytest.mark.tf_only
@pytest.mark.parametrize(("count", "size", "order"), [(83, 7, "sorted"), (83, 2, "given"), (5, 7, "sorted")])
def test_batches_in_memory_are_those_of_a_pass(count: int, size: int, order: str) -> None:
    def batch(rows: np.ndarray, width: int, rng: np.random.Generator) -> tuple[dict[str, np.ndarray]]:
        ids = np.arange(width, dtype="int32") * LENGTHS[rows, None]  # (b, t)
        return ({"ids": ids, "characters": np.stack([ids, -ids], axis=-1), "row": rows.astype("float32")},)

    batches = LengthBatches(LENGTHS[:count], batch, size, BUCKETS, order, round_up=True)
    assert_same_batches(batches)
    assert len({b[0]["ids"].shape[1] for b in batches.batches()}) == (3 if count > size else 1), "of all widths"


@pytest.mark.tf_only
def test_arrays_in_memory_are_those_of_a_pass() -> None:
    features = {"ids": np.arange(17 * 5, dtype="int32").reshape(17, 5), "row": np.arange(17.0)}
    assert_same_batches(ArrayBatches((features, None, None), 3))


def assert_same_batches(batches: LengthBatches) -> None:
    dataset = in_memory(batches)
    for actual, expected in zip(dataset.as_numpy_iterator(), batches.batches(), strict=True):
        assert actual[0].keys() == expected[0].keys()
        for name, values in expected[0].items():
            np.testing.assert_array_equal(actual[0][name], values, strict=True)
    assert dataset.element_spec == keras_input(batches).element_spec, "functions would be traced again"
    assert dataset.cardinality() == len(batches)


@pytest.mark.tf_only
def test_a_dataset_releases_its_batches() -> None:
    batches = LengthBatches(LENGTHS, lambda indices, width, rng: indices, 32, BUCKETS)
    dataset, reference = keras_input(batches), weakref.ref(batches)
    assert sum(len(batch) for batch in dataset) == len(LENGTHS)
    del batches, dataset
    gc.collect()
    assert reference() is None


def test_batches_are_prefetched() -> None:
    indices: list[int] = []

    def batches(count: int, fails: bool = False) -> Iterator[np.ndarray]:
        for i in range(count):
            indices.append(i)
            yield np.array([i])
        if fails:
            raise ValueError("no more text")

    assert [int(batch[0]) for batch in prefetch(batches(7))] == [*range(7)]
    indices.clear()
    ahead = prefetch(batches(10**9))
    assert int(next(ahead)[0]) == 0
    ahead.close()  # also ends the thread
    assert len(indices) <= 4
    assert not any(thread.name.startswith("batches") for thread in threading.enumerate())
    with pytest.raises(ValueError, match="no more text"):
        list(prefetch(batches(3, fails=True)))
