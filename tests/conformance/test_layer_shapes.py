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
from lmzoo.families.electra import FAMILY as ELECTRA
from lmzoo.families.elmo import FAMILY as ELMO
from lmzoo.families.elmo.layers import BiLM
from lmzoo.families.lstm_lm import FAMILY as LSTM_LM
from lmzoo.families.xlnet import FAMILY as XLNET
from lmzoo.layers.adapted import AdaptedLayer, Dense, EinsumDense, Embedding, ReversibleEmbedding
from lmzoo.layers.bidaf import AttentionFlow
from lmzoo.layers.bilstm import HashedWordEmbedding, LSTMPair
from lmzoo.layers.carried_state import CarriesState, StreamedBackbone
from lmzoo.layers.character_encoder import CharacterEncoder, Highway
from lmzoo.layers.choice_axis import MergeChoices, SplitChoices
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.heads import OutputBias, TransformingHead
from lmzoo.layers.lstm import BidirectionalLSTM
from lmzoo.layers.stateful_bilm import StreamedBiLM
from lmzoo.layers.word_features import StaticWordFeatures
from lmzoo.tasks.objectives.permutation_lm import QueryStream
from lmzoo.tasks.objectives.replaced_tokens import Generator, ReplacedTokens
from lmzoo.testing import (
    DTYPE_POLICIES,
    LAYER_CHECKS,
    check_layer_config,
    check_layer_files,
    check_layer_masks,
    check_layer_outputs,
    check_layer_training,
)
from lmzoo.testing.tiny import tiny_backbone
from lmzoo.training import DistillationLoss
from lmzoo.training.gradient_cache import _Uncast
from tests.conformance.enrolled import subclasses

T, S, N, H, I, V, P, D, W = 5, 2, 7, 21, 17, 11, 13, 19, 6  # see the layers' shape comments  # noqa: E741
RNG = np.random.default_rng(1721)


def floats(*shape):
    return RNG.normal(size=shape).astype("float32")


def ids(count, *shape):
    return RNG.integers(1, count, shape).astype("int32")


def mask(*shape):
    return np.arange(shape[-1]) < RNG.integers(1, shape[-1] + 1, (*shape[:-1], 1))


def segmented(b):
    return {"token_ids": ids(V, b, T), "padding_mask": ids(2, b, T), "segment_ids": ids(2, b, T)}


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


def lstm_state(b):
    return [(floats(b, D), floats(b, P)) for _ in range(2)]


def content(b):
    return [floats(b, T, H), floats(2 * T, H), mask(b, T, T), mask(b, T, T)]


def queries(b):
    return [floats(b, S, H), ids(T, b, S), mask(b, S, T), mask(b, S, T)]


def distant(b):
    return [floats(b, T, H), mask(b, T), floats(2 * T + 1, H), floats(b, S, H), ids(T, b, S)]


def pair(b):
    segments = np.tile([0, 0, 1, 1, 0], (b, 1)).astype("int32")
    return [floats(b, T, P), ids(262, b, T, W), np.tile(np.arange(T) < 4, (b, 1)), segments]


# For each class, functions that build the layer with a dtype policy, and a call's arguments for a number of sequences.
CASES = {
    layers.Dropout: (lambda p: layers.Dropout(0.3, dtype=p), lambda b: [floats(b, T, H)]),
    layers.LockedDropout: (lambda p: layers.LockedDropout(0.3, dtype=p), lambda b: [floats(b, T, H)]),
    layers.WordDropout: (lambda p: layers.WordDropout(0.3, V, dtype=p), lambda b: [floats(b, T, H), ids(V, b, T)]),
    layers.LayerNorm: (lambda p: layers.LayerNorm(dtype=p), lambda b: [floats(b, T, H)]),
    layers.RMSNorm: (lambda p: layers.RMSNorm(dtype=p), lambda b: [floats(b, T, H)]),
    layers.SelfAttention: (
        lambda p: layers.SelfAttention(N, H, dtype=p),
        lambda b: [floats(b, T, H), mask(b, T), floats(b, S, H)],
    ),
    layers.TransformerBlock: (block, lambda b: [floats(b, T, H), mask(b, T), floats(b, S, H)]),
    SharedBlocks: (
        lambda p: SharedBlocks([block(p) for _ in range(4)], 2, 3, dtype=p),
        lambda b: [floats(b, T, H), mask(b, T)],
    ),
    layers.TransformerEmbedding: (
        lambda p: layers.TransformerEmbedding(V, H, T, dtype=p),
        lambda b: [ids(V, b, T), ids(2, b, T)],
    ),
    layers.RelativeEncoding: (lambda p: layers.RelativeEncoding(dtype=p), lambda b: [floats(b, T, H - 1)]),
    layers.RelativeAttention: (lambda p: layers.RelativeAttention(N, H, dtype=p), lambda b: [*content(b), *queries(b)]),
    layers.RelativeBlock: (lambda p: layers.RelativeBlock(N, H, I, dtype=p), lambda b: [*content(b), *queries(b)]),
    layers.DistanceEmbedding: (lambda p: layers.DistanceEmbedding(3, T, dtype=p), lambda b: [floats(b, T, H)]),
    layers.DisentangledAttention: (lambda p: layers.DisentangledAttention(N, H, dtype=p), distant),
    layers.DisentangledBlock: (lambda p: layers.DisentangledBlock(N, H, I, dtype=p), distant),
    layers.RelativePositionBias: (
        lambda p: layers.RelativePositionBias(N, 10, 19, dtype=p),
        lambda b: [floats(b, T, H), ids(T, b, S)],
    ),
    QueryStream: (
        lambda p: QueryStream(tiny_backbone(XLNET, dtype=p)),
        lambda b: [segmented(b), ids(T, b, T), ids(T, b, S)],
    ),
    Generator: (
        lambda p: Generator(tiny_backbone(ELECTRA, dtype=p), "gelu", 1e-5),
        lambda b: [segmented(b), ids(T, b, S)],
    ),
    ReplacedTokens: (
        lambda p: ReplacedTokens(Generator(tiny_backbone(ELECTRA, dtype=p), "gelu", 1e-5)),
        lambda b: [segmented(b), ids(T, b, S), floats(b, S)],
    ),
    layers.FirstTokenPooler: (lambda p: layers.FirstTokenPooler(H, dtype=p), lambda b: [floats(b, T, H)]),
    layers.MeanPooler: (lambda p: layers.MeanPooler(dtype=p), lambda b: [floats(b, T, H), mask(b, T)]),
    layers.SquareRootMeanPooler: (
        lambda p: layers.SquareRootMeanPooler(dtype=p),
        lambda b: [floats(b, T, H), mask(b, T)],
    ),
    layers.WeightedMeanPooler: (lambda p: layers.WeightedMeanPooler(dtype=p), lambda b: [floats(b, T, H), mask(b, T)]),
    layers.LastTokenPooler: (lambda p: layers.LastTokenPooler(dtype=p), lambda b: [floats(b, T, H), mask(b, T)]),
    layers.MaxPooler: (lambda p: layers.MaxPooler(dtype=p), lambda b: [floats(b, T, H), mask(b, T)]),
    layers.GatherPositions: (lambda p: layers.GatherPositions(dtype=p), lambda b: [floats(b, T, H), ids(T, b, S)]),
    HashedWordEmbedding: (lambda p: HashedWordEmbedding(V, H, dtype=p), lambda b: [ids(262, b, T, W)]),
    LSTMPair: (lambda p: LSTMPair(D, dtype=p), lambda b: [floats(b, T, H), mask(b, T), ids(2, b, T)]),
    layers.BiLSTMEncoder: (
        lambda p: layers.BiLSTMEncoder(D, P, V, dtype=p),
        lambda b: [floats(b, T, H), ids(262, b, T, W), mask(b, T)],
    ),
    layers.ESIMEncoder: (lambda p: layers.ESIMEncoder(S, 3, V, dtype=p), pair),
    layers.BiDAFEncoder: (lambda p: layers.BiDAFEncoder(S, 3, V, dtype=p), pair),
    AttentionFlow: (
        lambda p: AttentionFlow(dtype=p),
        lambda b: [floats(b, T, H), np.arange(T) < np.full((b, 1), 2), np.arange(T) > np.full((b, 1), 1)],
    ),
    StaticWordFeatures: (
        lambda p: StaticWordFeatures(V, D, dtype=p),
        lambda b: [floats(b, T, H), ids(262, b, T, W)],
    ),
    Highway: (lambda p: Highway(dtype=p), lambda b: [floats(T, H)]),
    CharacterEncoder: (
        lambda p: CharacterEncoder(V, D, ((1, 5), (2, 7)), P, 1, "relu", W, padding=V - 1, dtype=p),
        lambda b: [ids(V, T, W)],
    ),
    OutputBias: (lambda p: OutputBias(H, dtype=p), lambda b: [floats(b, T, H)]),
    layers.ClassificationHead: (
        lambda p: layers.ClassificationHead(P, activation="tanh", dtype=p),
        lambda b: [floats(b, H)],
    ),
    layers.MaskedLMHead: (lambda p: layers.MaskedLMHead(table(p), dtype=p), lambda b: [floats(b, S, D)]),
    layers.ReplacedTokenHead: (lambda p: layers.ReplacedTokenHead(dtype=p), lambda b: [floats(b, T, H)]),
    layers.SpanBoundaries: (
        lambda p: layers.SpanBoundaries(3, dtype=p),
        lambda b: [floats(b, T, H), np.tile([1, 2, 4, 5, 0], (b, 1)).astype("int32")],
    ),
    layers.SpanHead: (lambda p: layers.SpanHead(dtype=p), lambda b: [floats(b, T, H), mask(b, T)]),
    layers.TransitionScores: (lambda p: layers.TransitionScores(P, dtype=p), lambda b: [floats(b, T, P)]),
    DistillationLoss: (
        lambda p: DistillationLoss(dtype=p),
        lambda b: [
            *(floats(b, S, V) for _ in range(2)),
            *(floats(b, T, H) for _ in range(2)),
            ids(T, b, S),
            mask(b, T),
        ],
    ),
    MergeChoices: (lambda p: MergeChoices(dtype=p), lambda b: [ids(V, b, S, T)]),
    SplitChoices: (lambda p: SplitChoices(), lambda b: [floats(b * S, 1), mask(b, S, T)]),
    layers.ScalarMix: (
        lambda p: layers.ScalarMix("bilm_tf", dtype=p),
        lambda b: [[floats(b, T, H) for _ in range(3)], mask(b, T)],
    ),
    layers.SampledSoftmax: (lambda p: layers.SampledSoftmax(V, 3, dtype=p), lambda b: [floats(b, T, P), ids(V, b, T)]),
    BidirectionalLSTM: (
        lambda p: BidirectionalLSTM(D, P, 3.0, 3.0, dtype=p),
        lambda b: [floats(T, b, P), floats(T, b, P), lstm_state(b)],
    ),
    layers.RecurrentLayer: (
        lambda p: layers.RecurrentLayer("lstm", P, dtype=p),
        lambda b: [floats(b, T, H), (floats(b, P), floats(b, P))],
    ),
    BiLM: (lambda p: tiny_backbone(ELMO, dtype=p).bilm, lambda b: [ids(262, b, T, W), mask(b, T)]),
    _Scores: (
        attention_scores,
        lambda b: [
            {"token_ids": ids(V, b, T), "padding_mask": mask(b, T).astype("int32"), "segment_ids": ids(2, b, T)}
        ],
    ),
    Dense: (lambda p: Dense(P, dtype=p), lambda b: [floats(b, T, H)]),
    EinsumDense: (
        lambda p: EinsumDense("btd,dnh->btnh", (T, N, P), bias_axes="nh", dtype=p),
        lambda b: [floats(b, T, H)],
    ),
    Embedding: (lambda p: Embedding(V, P, dtype=p), lambda b: [ids(V, b, T)]),
    ReversibleEmbedding: (lambda p: ReversibleEmbedding(V, P, dtype=p), lambda b: [ids(V, b, T)]),
    StreamedBackbone: (
        lambda p: StreamedBackbone(tiny_backbone(LSTM_LM, dtype=p), dtype=p),
        lambda b: [ids(V, b, T), np.ones((b, T), "int32"), ids(2, b)],
    ),
    StreamedBiLM: (streamed, lambda b: [ids(262, b, T, 2, W), ids(2, b)]),
    lmzoo.compat.allennlp.Elmo: (allennlp_elmo, lambda b: [ids(262, b, T, 50)]),
}


# Base classes of layers, and a layer that returns the variables of another.
BASES = {AdaptedLayer, CarriesState, ConfiguredLayer, TransformingHead, _Uncast}
# Layers that consist of further checked layers or of whole models, and the checks that take longest for them.
COMPOSED = {
    SharedBlocks, QueryStream, Generator, ReplacedTokens, BiLM, StreamedBackbone, StreamedBiLM, _Scores,
    lmzoo.compat.allennlp.Elmo, layers.ESIMEncoder, layers.BiDAFEncoder,
}  # fmt: skip
LONGEST = {check_layer_config, check_layer_masks, check_layer_training}
# Layers that exist only during a computation.
NOT_SAVED = {_Scores, lmzoo.compat.allennlp.Elmo}


def test_every_layer_is_a_case():
    layer_classes = {cls for cls in subclasses(keras.layers.Layer) if cls.__module__.startswith("lmzoo.")}
    assert {cls for cls in layer_classes if not issubclass(cls, keras.Model)} - BASES == set(CASES)


def declares(cls):
    return any(
        getattr(cls, name) is not getattr(keras.layers.Layer, name)
        for name in ("compute_output_spec", "compute_output_shape")
    )


def policies():
    """Yield each layer with each dtype policy; `make test` omits the slow ones that reveal little more."""
    for cls in CASES:
        for policy in DTYPE_POLICIES:
            slow = policy != "float32" and (policy != "mixed_bfloat16" or keras.backend.backend() == "jax")
            yield pytest.param(cls, policy, marks=[pytest.mark.slow] * slow, id=f"{cls.__name__}-{policy}")


@pytest.mark.parametrize(("cls", "policy"), list(policies()))
def test_outputs_have_the_declared_shapes(cls, policy):
    assert declares(cls), f"{cls.__name__} does not declare its output's shape"
    check_layer_outputs(*CASES[cls], policies=[policy])


@pytest.mark.parametrize("policy", DTYPE_POLICIES)
def test_a_head_that_leaves_the_product_to_the_backbone(policy):
    def build(policy):
        return layers.MaskedLMHead(table_shape=(V, D), dtype=policy)

    check_layer_outputs(build, lambda b: [floats(b, S, H)], policies=[policy])


def parameters():
    """Yield the remaining checks of each layer; on JAX, `make test` omits those that compile a model."""
    on_jax = keras.backend.backend() == "jax"
    for cls in CASES:
        for check in LAYER_CHECKS:
            if check is check_layer_outputs or (cls in NOT_SAVED and check in (check_layer_config, check_layer_files)):
                continue
            if cls is Generator and check is check_layer_training:  # it uses only the embeddings of its backbone
                continue
            slow = (on_jax and check is not check_layer_config) or (cls in COMPOSED and check in LONGEST)
            marks = [pytest.mark.slow] * slow
            yield pytest.param(cls, check, marks=marks, id=f"{cls.__name__}-{check.__name__}")


@pytest.mark.parametrize(("cls", "check"), list(parameters()))
def test_layer(cls, check):
    check(*CASES[cls])
