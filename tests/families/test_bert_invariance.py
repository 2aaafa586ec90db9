"""The mask and the segments affect BERT's results, and the precision hardly does."""

from __future__ import annotations

import numpy as np
import pytest

from tests.families.comparing import cosines
from tests.reference.weights import MASK_POSITIONS, difference, padded_batch, run, tiny_backbone, tiny_masked_lm


@pytest.fixture(scope="module")
def backbone():
    return tiny_backbone()


@pytest.fixture(scope="module")
def outputs(backbone):
    return run(backbone, padded_batch())


def test_the_mask_and_the_segments_matter(backbone, outputs):
    batch = padded_batch()
    for change in ({"padding_mask": np.ones_like(batch["padding_mask"])}, {"segment_ids": 1 - batch["segment_ids"]}):
        changed = run(backbone, {**batch, **change})
        assert difference(changed["pooled_output"][1:], outputs["pooled_output"][1:]) > 0.01


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
