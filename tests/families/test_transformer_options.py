"""Options of a family's Transformer: the place of the norms, causal attention, and a bias of the scores."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.families.encoder_config import EncoderConfig
from lmzoo.families.transformer import TransformerBackbone
from lmzoo.layers import RelativePositionBias
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone
from tests.reference.weights import difference, padded_batch, randomise, to_numpy

TINY = {"vocabulary_size": 131, "num_layers": 2, "num_heads": 5, "hidden_dim": 35, "intermediate_dim": 53}


def build(**attributes):
    cls = type("SomeBackbone", (TransformerBackbone,), {"config_class": EncoderConfig, **attributes})
    backbone = cls(**TINY, max_sequence_length=67)
    randomise(backbone)
    return backbone, padded_batch()


@pytest.mark.parametrize("has_pooler", [True, False])
def test_norms_may_come_before_the_sublayers(has_pooler):
    backbone, batch = build(norm="pre", has_pooler=has_pooler)
    outputs = backbone(batch)
    states, sequence = outputs["hidden_states"], outputs["sequence_output"]
    last = backbone.blocks[-1](states[-2], keras.ops.cast(batch["padding_mask"], "bool"))
    assert difference(to_numpy(sequence), to_numpy(backbone.final_norm(last))) <= 1e-5
    assert difference(to_numpy(states[-1]), to_numpy(sequence)) == 0
    pooled = backbone.pooler(sequence) if has_pooler else sequence[:, 0]
    assert difference(to_numpy(outputs["pooled_output"]), to_numpy(pooled)) <= 1e-5
    positions = np.array([[0, 4], [2, 2], [1, 3]], "int32")
    expected = np.take_along_axis(to_numpy(sequence), positions[:, :, None], axis=1)
    assert difference(to_numpy(backbone.vectors_at(batch, positions)), expected) <= 1e-5
    assert [tuple(scores.shape) for scores in backbone.attention_scores(batch)] == [(3, 5, 19, 19)] * 2


def test_a_causal_model_may_have_its_norms_after_the_sublayers():
    """The first GPT has no norm of the embeddings, no final norm and no pooler."""
    backbone, batch = build(causal=True, embedding_norm=False)
    layers = {weight.path.rsplit("/", 1)[0] for weight in backbone.weights}
    assert not layers & {"embeddings/layer_norm", "final_norm", "pooler/dense"}
    changed = {**batch, "token_ids": batch["token_ids"].copy()}
    changed["token_ids"][:, 2] = (changed["token_ids"][:, 2] + 1) % 131
    before, after = (to_numpy(backbone(inputs)["sequence_output"]) for inputs in (batch, changed))
    assert difference(after[:, :2], before[:, :2]) == 0
    assert np.abs(after[:, 2] - before[:, 2]).max(-1).min() > 1e-3


class BiasedBackbone(TransformerBackbone):
    """A backbone with a bias of the distances between tokens."""

    config_class = EncoderConfig

    @classmethod
    def make_layers(cls, config, dtype):
        bias = RelativePositionBias(config.num_heads, 10, 19, dtype=dtype, name="position_bias")
        return {**super().make_layers(config, dtype), "position_bias": bias}


def test_all_blocks_add_a_bias_of_distances():
    """Vectors at chosen positions also have it."""
    backbone = BiasedBackbone(**TINY, max_sequence_length=67)
    randomise(backbone)
    batch = padded_batch()
    table, mask = backbone.position_bias.embeddings, keras.ops.cast(batch["padding_mask"], "bool")
    table.assign(100 * to_numpy(table))
    outputs = backbone(batch)
    states, sequence = outputs["hidden_states"], to_numpy(outputs["sequence_output"])
    bias = backbone.position_bias(states[0])
    for block, before, after, scores in zip(
        backbone.blocks, states[:-1], states[1:], backbone.attention_scores(batch), strict=True
    ):
        assert difference(to_numpy(block(before, mask, bias=bias)), to_numpy(after)) <= 1e-5
        assert difference(to_numpy(block.attention_scores(before, mask, bias)), to_numpy(scores)) <= 1e-6
        assert difference(to_numpy(block(before, mask)), to_numpy(after)) > 0.01
    assert difference(to_numpy(outputs["pooled_output"]), to_numpy(backbone.pooler(sequence))) <= 1e-5
    positions = np.array([[0, 4], [2, 2], [1, 3]], "int32")
    expected = np.take_along_axis(sequence, positions[:, :, None], axis=1)
    assert difference(to_numpy(backbone.vectors_at(batch, positions)), expected) <= 1e-5


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_a_cache_without_room_is_refused(family):
    """NumPy integers are checked like Python's, though Keras turns them into tensors."""
    backbone = tiny_backbone(families()[family])
    ids = np.full((3, 2), 5, "int32")
    source = (backbone.read_source(ids, np.ones_like(ids)),) if backbone.reads_source else ()
    vectors, cache = backbone.call_with_cache(ids, backbone.empty_cache(3, 5), np.int64(3), *source)
    assert tuple(vectors.shape) == (3, 2, backbone.hidden_dim)
    for index in (4, np.int64(4)):
        with pytest.raises(ValueError, match=r"2 positions from 4 on do not fit into a cache of 5\. Pass a larger"):
            backbone.call_with_cache(ids, cache, index, *source)
