"""BERT against an independent forward pass in numpy."""

from __future__ import annotations

import pytest

from tests.reference.bert import Bert
from tests.reference.weights import (
    MASK_POSITIONS,
    TINY,
    difference,
    named_weights,
    padded_batch,
    run,
    tiny_backbone,
    tiny_masked_lm,
    to_numpy,
)

TOLERANCE = 1e-5


def reference_of(model, activation="gelu", epsilon=1e-12):
    return Bert(named_weights(model), TINY["num_layers"], TINY["num_heads"], activation, epsilon)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_backbone_equals_numpy(activation):
    backbone, batch = tiny_backbone(activation=activation), padded_batch()
    outputs = run(backbone, batch)
    reference = reference_of(backbone, activation)
    states = reference.hidden_states(batch["token_ids"], batch["padding_mask"], batch["segment_ids"])
    # Padding is computed like any other position.
    assert difference(outputs["hidden_states"], tuple(states)) <= TOLERANCE
    assert difference(outputs["sequence_output"], states[-1]) <= TOLERANCE
    assert difference(outputs["pooled_output"], reference.pooled(states[-1])) <= TOLERANCE
    for layer, scores in enumerate(to_numpy(backbone.attention_scores(batch))):
        expected = reference.attention(states[layer], batch["padding_mask"], layer)[1]
        assert difference(scores, expected) <= TOLERANCE


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_masked_lm_equals_numpy(activation):
    model, batch = tiny_masked_lm(activation=activation), padded_batch()
    logits = run(model, {**batch, "mask_positions": MASK_POSITIONS})
    reference = reference_of(model, activation)
    states = reference.hidden_states(batch["token_ids"], batch["padding_mask"], batch["segment_ids"])
    assert logits.shape == (3, 3, TINY["vocabulary_size"])
    assert difference(logits, reference.masked_lm_logits(states[-1], MASK_POSITIONS)) <= TOLERANCE


def test_epsilon_reaches_every_layer_norm():
    backbone, batch = tiny_backbone(layer_norm_epsilon=0.07), padded_batch()
    reference = reference_of(backbone, epsilon=0.07)
    states = reference.hidden_states(batch["token_ids"], batch["padding_mask"], batch["segment_ids"])
    assert difference(run(backbone, batch)["hidden_states"], tuple(states)) <= TOLERANCE
