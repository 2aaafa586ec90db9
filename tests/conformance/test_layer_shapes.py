"""Every layer declares the shape and dtype of its output, so that building a model traces nothing."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import lmzoo.compat.allennlp
import lmzoo.models
from lmzoo import layers
from lmzoo.analysis.attention import _Scores
from lmzoo.families.albert.backbone import SharedBlocks
from lmzoo.families.bert import FAMILY as BERT
from lmzoo.families.elmo import FAMILY as ELMO
from lmzoo.families.elmo.layers import BiLM
from lmzoo.families.lstm_lm import FAMILY as LSTM_LM
from lmzoo.families.xlnet import FAMILY as XLNET
from lmzoo.layers.bilstm import HashedWordEmbedding
from lmzoo.layers.carried_state import CarriesState, StreamedBackbone
from lmzoo.layers.character_encoder import CharacterEncoder, Highway
from lmzoo.layers.choice_axis import MergeChoices, SplitChoices
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.heads import OutputBias
from lmzoo.layers.lstm import BidirectionalLSTM
from lmzoo.layers.stateful_bilm import StreamedBiLM
from lmzoo.tasks.base.query_stream import QueryStream
from lmzoo.testing.tiny import tiny_backbone
from lmzoo.training import DistillationLoss
from tests.conformance.enrolled import subclasses

B, T, S, N, H, I, V, P, D, W = 3, 5, 2, 7, 21, 17, 11, 13, 19, 6  # see the layers' shape comments  # noqa: E741
POLICIES = ("float32", "mixed_bfloat16")
RNG = np.random.default_rng(1721)


def floats(*shape):
    return RNG.normal(size=shape).astype("float32")


def ids(count, *shape):
    return RNG.integers(1, count, shape).astype("int32")


def mask(*shape):
    return np.arange(shape[-1]) < RNG.integers(1, shape[-1] + 1, (*shape[:-1], 1))


def streamed(policy):
    return StreamedBiLM(tiny_backbone(ELMO, dtype=policy).bilm, 0.1, dtype=policy)


def allennlp_elmo(policy):
    backbone = tiny_backbone(ELMO, dtype=policy)
    return lmzoo.compat.allennlp.Elmo(num_output_representations=2, module=backbone, dtype=policy)


def attention_scores(policy):
    backbone = tiny_backbone(BERT, dtype=policy)
    return _Scores(backbone, backbone.attention_scores)


def table(policy):
    embedding = keras.layers.ReversibleEmbedding(V, H, dtype=policy)
    embedding.build()
    return embedding


def block(policy):
    return layers.TransformerBlock(N, H, I, dtype=policy)


def lstm_state():
    return [(floats(B, D), floats(B, P)) for _ in range(2)]


def content():
    return [floats(B, T, H), floats(2 * T, H), mask(B, T, T), mask(B, T, T)]


def queries():
    return [floats(B, S, H), ids(T, B, S), mask(B, S, T), mask(B, S, T)]


# By class: how to build it, and the arguments of a call.
CASES = {
    layers.Dropout: (lambda p: layers.Dropout(0.3, dtype=p), lambda: [floats(B, T, H)]),
    layers.LayerNorm: (lambda p: layers.LayerNorm(dtype=p), lambda: [floats(B, T, H)]),
    layers.SelfAttention: (
        lambda p: layers.SelfAttention(N, H, dtype=p),
        lambda: [floats(B, T, H), mask(B, T), floats(B, S, H)],
    ),
    layers.TransformerBlock: (block, lambda: [floats(B, T, H), mask(B, T), floats(B, S, H)]),
    SharedBlocks: (
        lambda p: SharedBlocks([block(p) for _ in range(4)], 2, 3, dtype=p),
        lambda: [floats(B, T, H), mask(B, T)],
    ),
    layers.TransformerEmbedding: (
        lambda p: layers.TransformerEmbedding(V, H, T, dtype=p),
        lambda: [ids(V, B, T), ids(2, B, T)],
    ),
    layers.RelativeEncoding: (lambda p: layers.RelativeEncoding(dtype=p), lambda: [floats(B, T, H - 1)]),
    layers.RelativeAttention: (lambda p: layers.RelativeAttention(N, H, dtype=p), lambda: [*content(), *queries()]),
    layers.RelativeBlock: (lambda p: layers.RelativeBlock(N, H, I, dtype=p), lambda: [*content(), *queries()]),
    QueryStream: (
        lambda p: QueryStream(tiny_backbone(XLNET, dtype=p)),
        lambda: [
            {"token_ids": ids(V, B, T), "padding_mask": ids(2, B, T), "segment_ids": ids(2, B, T)},
            ids(T, B, T),
            ids(T, B, S),
        ],
    ),
    layers.FirstTokenPooler: (lambda p: layers.FirstTokenPooler(H, dtype=p), lambda: [floats(B, T, H)]),
    layers.MeanPooler: (lambda p: layers.MeanPooler(dtype=p), lambda: [floats(B, T, H), mask(B, T)]),
    layers.SquareRootMeanPooler: (
        lambda p: layers.SquareRootMeanPooler(dtype=p),
        lambda: [floats(B, T, H), mask(B, T)],
    ),
    layers.WeightedMeanPooler: (lambda p: layers.WeightedMeanPooler(dtype=p), lambda: [floats(B, T, H), mask(B, T)]),
    layers.LastTokenPooler: (lambda p: layers.LastTokenPooler(dtype=p), lambda: [floats(B, T, H), mask(B, T)]),
    layers.MaxPooler: (lambda p: layers.MaxPooler(dtype=p), lambda: [floats(B, T, H), mask(B, T)]),
    layers.GatherPositions: (lambda p: layers.GatherPositions(dtype=p), lambda: [floats(B, T, H), ids(T, B, S)]),
    HashedWordEmbedding: (lambda p: HashedWordEmbedding(V, H, dtype=p), lambda: [ids(262, B, T, W)]),
    layers.BiLSTMEncoder: (
        lambda p: layers.BiLSTMEncoder(D, P, V, dtype=p),
        lambda: [floats(B, T, H), ids(262, B, T, W), mask(B, T)],
    ),
    Highway: (lambda p: Highway(dtype=p), lambda: [floats(T, H)]),
    CharacterEncoder: (
        lambda p: CharacterEncoder(V, D, ((1, 5), (2, 7)), P, 1, "relu", W, padding=V - 1, dtype=p),
        lambda: [ids(V, T, W)],
    ),
    OutputBias: (lambda p: OutputBias(H, dtype=p), lambda: [floats(B, T, H)]),
    layers.ClassificationHead: (
        lambda p: layers.ClassificationHead(P, activation="tanh", dtype=p),
        lambda: [floats(B, H)],
    ),
    layers.MaskedLMHead: (lambda p: layers.MaskedLMHead(table(p), dtype=p), lambda: [floats(B, S, D)]),
    layers.SpanHead: (lambda p: layers.SpanHead(dtype=p), lambda: [floats(B, T, H), mask(B, T)]),
    layers.TransitionScores: (lambda p: layers.TransitionScores(P, dtype=p), lambda: [floats(B, T, P)]),
    DistillationLoss: (
        lambda p: DistillationLoss(dtype=p),
        lambda: [*(floats(B, S, V) for _ in range(2)), *(floats(B, T, H) for _ in range(2)), ids(T, B, S), mask(B, T)],
    ),
    MergeChoices: (lambda p: MergeChoices(dtype=p), lambda: [ids(V, B, S, T)]),
    SplitChoices: (lambda p: SplitChoices(), lambda: [floats(B * S, 1), mask(B, S, T)]),
    layers.ScalarMix: (
        lambda p: layers.ScalarMix("bilm_tf", dtype=p),
        lambda: [[floats(B, T, H) for _ in range(3)], mask(B, T)],
    ),
    layers.SampledSoftmax: (lambda p: layers.SampledSoftmax(V, 3, dtype=p), lambda: [floats(B, T, P), ids(V, B, T)]),
    BidirectionalLSTM: (
        lambda p: BidirectionalLSTM(D, P, 3.0, 3.0, dtype=p),
        lambda: [floats(T, B, P), floats(T, B, P), lstm_state()],
    ),
    layers.RecurrentLayer: (
        lambda p: layers.RecurrentLayer("lstm", P, dtype=p),
        lambda: [floats(B, T, H), (floats(B, P), floats(B, P))],
    ),
    BiLM: (lambda p: tiny_backbone(ELMO, dtype=p).bilm, lambda: [ids(262, B, T, W), mask(B, T)]),
    _Scores: (
        attention_scores,
        lambda: [{"token_ids": ids(V, B, T), "padding_mask": mask(B, T).astype("int32"), "segment_ids": ids(2, B, T)}],
    ),
    StreamedBackbone: (
        lambda p: StreamedBackbone(tiny_backbone(LSTM_LM, dtype=p), dtype=p),
        lambda: [ids(V, B, T), np.ones((B, T), "int32"), ids(2, B)],
    ),
    StreamedBiLM: (streamed, lambda: [ids(262, B, T, 2, W), ids(2, B)]),
    lmzoo.compat.allennlp.Elmo: (allennlp_elmo, lambda: [ids(262, B, T, 50)]),
}


def test_every_layer_is_a_case():
    ours = {cls for cls in subclasses(keras.layers.Layer) if cls.__module__.startswith("lmzoo.")}
    assert {cls for cls in ours if not issubclass(cls, keras.Model)} - {CarriesState, ConfiguredLayer} == set(CASES)


def declares(cls):
    return any(
        getattr(cls, name) is not getattr(keras.layers.Layer, name)
        for name in ("compute_output_spec", "compute_output_shape")
    )


def computed(layer, arguments):
    """The layer's outputs; on JAX their shapes and dtypes, since every operation would be compiled by itself."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.eval_shape(layer, *arguments)
    return layer(*keras.tree.map_structure(keras.ops.convert_to_tensor, arguments))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cls", CASES, ids=lambda cls: cls.__name__)
def test_declared_shapes_and_dtypes_are_the_computed_ones(cls, policy):
    assert declares(cls), f"{cls.__name__} leaves its output's shape to be found by tracing"
    build, arguments = CASES[cls]
    layer, arguments = build(policy), arguments()
    for known in (False, True):
        symbols = keras.tree.map_structure(
            lambda a, known=known: keras.KerasTensor((a.shape[0] if known else None, *a.shape[1:]), str(a.dtype)),
            arguments,
        )
        declared, found = layer(*symbols), computed(layer, arguments)
        keras.tree.assert_same_structure(declared, found)
        for spec, tensor in zip(keras.tree.flatten(declared), keras.tree.flatten(found), strict=True):
            assert spec.dtype == keras.backend.standardize_dtype(tensor.dtype)
            sizes = tuple(tensor.shape)
            assert tuple(size or n for size, n in zip(spec.shape, sizes, strict=True)) == sizes
            assert None not in spec.shape or not known
