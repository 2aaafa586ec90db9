"""Masks that a row keeps."""

from __future__ import annotations

import numpy as np

from lmzoo.tasks.base.examples import Examples
from lmzoo.text import EncodedTexts


def masked(task, encoded, rows, width, seed):
    features, targets, weights = task.make_batch(Examples(encoded), rows, width, np.random.default_rng(seed))
    return features["token_ids"], features["mask_positions"], targets, weights


def test_a_row_keeps_its_masks(tiny):
    """In another batch, order and width, with another seed; and other rows have others."""
    task = tiny.masked_lm(masking={"probability": 0.4, "dynamic": False})
    encoded = task.encode_inputs(tiny.texts(11, longest=9))
    ids, positions, targets, weights = masked(task, encoded, np.arange(11), 16, 3)
    rows = np.array([7, 2, 10])
    again = masked(task, encoded, rows, 24, 5)
    for first, second in zip((ids, positions, targets, weights), again, strict=True):
        width = min(first.shape[1], second.shape[1])  # beyond it there is padding only
        np.testing.assert_array_equal(second[:, :width], first[rows, :width])
    same = EncodedTexts(
        np.tile(encoded[:1].token_ids, 2), np.array([0, 1, 2]) * encoded.lengths[0], np.zeros(2, "int32")
    )
    assert len({tuple(row) for row in masked(task, same, np.arange(2), 16, 3)[0].tolist()}) == 1
    assert len({tuple(row) for row in positions.tolist()}) > 3
    dynamic = tiny.masked_lm(masking={"probability": 0.4})
    assert (masked(dynamic, encoded, rows, 16, 3)[0] != masked(dynamic, encoded, rows, 16, 5)[0]).any()
