"""What must not change a result: padding, companions in the batch, and (almost) the precision."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.models import TextClassifier
from tests.reference.gradients import gradients
from tests.reference.weights import (
    LENGTHS,
    MASK_POSITIONS,
    difference,
    padded_batch,
    randomise,
    run,
    tiny_backbone,
    tiny_masked_lm,
)

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def backbone():
    return tiny_backbone()


@pytest.fixture(scope="module")
def outputs(backbone):
    return run(backbone, padded_batch())


def real(hidden_states, rows=LENGTHS):
    """The vectors of real tokens, row by row."""
    return [state[row, :length] for state in hidden_states for row, length in enumerate(rows)]


def agree(a, b, rows=LENGTHS):
    assert difference(real(a["hidden_states"], rows), real(b["hidden_states"], rows)) <= TOLERANCE
    assert difference(a["pooled_output"], b["pooled_output"]) <= TOLERANCE


def test_more_padding_changes_nothing(backbone, outputs):
    batch = {name: np.pad(array, [(0, 0), (0, 12)], constant_values=0) for name, array in padded_batch().items()}
    agree(run(backbone, batch), outputs)


def test_what_stands_in_the_padding_changes_nothing(backbone, outputs):
    batch, other = padded_batch(), padded_batch(seed=29)
    for name in ("token_ids", "segment_ids"):
        batch[name] = np.where(batch["padding_mask"] > 0, batch[name], other[name])
    assert not np.array_equal(batch["token_ids"], padded_batch()["token_ids"])
    agree(run(backbone, batch), outputs)


def test_each_row_alone_and_unpadded_gives_the_same(backbone, outputs):
    for row, length in enumerate(LENGTHS):
        alone = run(backbone, {name: a[row : row + 1, :length] for name, a in padded_batch().items()})
        agree(alone, keras.tree.map_structure(lambda a, row=row: a[row : row + 1], outputs), rows=(length,))


def test_order_of_the_rows_and_new_neighbors_change_nothing(backbone, outputs):
    batch, others = padded_batch(), padded_batch((5, 13), width=19, seed=31)
    order = [2, 0, 1]
    mixed = {name: np.concatenate([others[name], array[order]]) for name, array in batch.items()}
    got = keras.tree.map_structure(lambda a: a[2:][np.argsort(order)], run(backbone, mixed))
    agree(got, outputs)


def test_the_mask_and_the_segments_matter(backbone, outputs):
    batch = padded_batch()
    for change in ({"padding_mask": np.ones_like(batch["padding_mask"])}, {"segment_ids": 1 - batch["segment_ids"]}):
        changed = run(backbone, {**batch, **change})
        assert difference(changed["pooled_output"][1:], outputs["pooled_output"][1:]) > 0.01


def test_row_of_padding_gives_finite_values_and_gradients():
    batch = padded_batch((11, 0, 4))
    model = TextClassifier(tiny_backbone(), num_classes=3)
    randomise(model)
    assert all(np.isfinite(a).all() for a in keras.tree.flatten(run(model.backbone, batch)))
    target = np.array([0, 1, 2])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found = gradients(model, lambda logits: loss(target, logits), batch)
    assert len(found) == len(model.weights)
    assert all(np.isfinite(g).all() for g in found.values())
    # Adding a constant to all scores of a row changes no probability, so key biases alone may be without gradient.
    assert all(np.abs(g).max() > 1e-6 for path, g in found.items() if not path.endswith("key/bias"))


def test_batch_of_nothing_but_padding_is_finite():
    model, batch = tiny_masked_lm(), padded_batch((0, 0), width=5)
    inputs = {**batch, "mask_positions": np.zeros((2, 1), "int32")}
    assert np.isfinite(run(model, inputs)).all()
    found = gradients(model, lambda logits: keras.ops.mean(keras.ops.logsumexp(logits, axis=-1)), inputs)
    assert all(np.isfinite(g).all() for g in found.values())


@pytest.mark.quick_cases("bfloat16")
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16"])
def test_bfloat16_points_the_same_way(dtype):
    batch = {**padded_batch(), "mask_positions": MASK_POSITIONS}
    full, half = tiny_masked_lm(), tiny_masked_lm(dtype=dtype)
    layers = [layer for layer in half.backbone._flatten_layers(include_self=False) if layer.weights]
    assert {layer.compute_dtype for layer in layers} == {"bfloat16"}
    pairs = [(run(full, batch), run(half, batch))]
    del batch["mask_positions"]
    a, b = run(full.backbone, batch), run(half.backbone, batch)
    pairs += [(a["pooled_output"], b["pooled_output"]), *zip(a["hidden_states"], b["hidden_states"], strict=True)]
    for exact, rounded in pairs:
        assert difference(exact, rounded) > 1e-5  # it really was computed in less
        norms = np.linalg.norm(exact, axis=-1) * np.linalg.norm(rounded, axis=-1)
        assert ((exact * rounded).sum(-1) / norms).min() >= 0.999
