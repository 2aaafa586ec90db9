"""Changes that do not affect BERT's results: the values at padding and (almost) the precision."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from tests.families.comparing import cosines
from tests.reference.gradients import gradients
from tests.reference.weights import (
    LENGTHS,
    MASK_POSITIONS,
    difference,
    padded_batch,
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


def real(hidden_states):
    """Return the vectors of real tokens, row by row."""
    return [state[row, :length] for state in hidden_states for row, length in enumerate(LENGTHS)]


def test_values_at_padding_change_nothing(backbone, outputs):
    batch, replacements = padded_batch(), padded_batch(seed=29)
    for name in ("token_ids", "segment_ids"):
        batch[name] = np.where(batch["padding_mask"] > 0, batch[name], replacements[name])
    assert not np.array_equal(batch["token_ids"], padded_batch()["token_ids"])
    changed = run(backbone, batch)
    assert difference(real(changed["hidden_states"]), real(outputs["hidden_states"])) <= TOLERANCE
    assert difference(changed["pooled_output"], outputs["pooled_output"]) <= TOLERANCE


def test_the_mask_and_the_segments_matter(backbone, outputs):
    batch = padded_batch()
    for change in ({"padding_mask": np.ones_like(batch["padding_mask"])}, {"segment_ids": 1 - batch["segment_ids"]}):
        changed = run(backbone, {**batch, **change})
        assert difference(changed["pooled_output"][1:], outputs["pooled_output"][1:]) > 0.01


def test_a_batch_of_padding_is_finite():
    model, batch = tiny_masked_lm(), padded_batch((0, 0), width=5)
    inputs = {**batch, "mask_positions": np.zeros((2, 1), "int32")}
    assert np.isfinite(run(model, inputs)).all()
    by_path = gradients(model, lambda logits: keras.ops.mean(keras.ops.logsumexp(logits, axis=-1)), inputs)
    assert all(np.isfinite(gradient).all() for gradient in by_path.values())


@pytest.mark.quick_cases("bfloat16")
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16"])
def test_bfloat16_points_the_same_way(dtype):
    batch = {**padded_batch(), "mask_positions": MASK_POSITIONS}
    full, half = tiny_masked_lm(), tiny_masked_lm(dtype=dtype)
    layers = [layer for layer in half.backbone._flatten_layers(include_self=False) if layer.weights]
    assert {layer.compute_dtype for layer in layers} == {"bfloat16"}
    pairs = [(run(full, batch), run(half, batch))]
    del batch["mask_positions"]
    full_outputs, half_outputs = run(full.backbone, batch), run(half.backbone, batch)
    pairs.append((full_outputs["pooled_output"], half_outputs["pooled_output"]))
    pairs += zip(full_outputs["hidden_states"], half_outputs["hidden_states"], strict=True)
    for exact, rounded in pairs:
        assert difference(exact, rounded) > 1e-5  # the precision really was lower
        assert cosines(exact, rounded).min() >= 0.999
