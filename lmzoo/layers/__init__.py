"""Layers that model families are built from."""

from lmzoo.layers.activations import get_activation, get_output_activation
from lmzoo.layers.adapted import Dense, EinsumDense, Embedding, ReversibleEmbedding
from lmzoo.layers.attention import SelfAttention, attention_probabilities
from lmzoo.layers.bidaf import BiDAFEncoder
from lmzoo.layers.bilstm import BiLSTMEncoder
from lmzoo.layers.choice_axis import MergeChoices, SplitChoices
from lmzoo.layers.crf import TransitionScores
from lmzoo.layers.disentangled_attention import DisentangledAttention, DistanceEmbedding
from lmzoo.layers.disentangled_block import DisentangledBlock
from lmzoo.layers.dropout import Dropout, LockedDropout, WordDropout
from lmzoo.layers.embeddings import TransformerEmbedding
from lmzoo.layers.encoder_registry import register_encoder
from lmzoo.layers.esim import ESIMEncoder
from lmzoo.layers.heads import ClassificationHead, MaskedLMHead, ReplacedTokenHead, SpanBoundaries, SpanHead
from lmzoo.layers.normalization import LayerNorm, RMSNorm, unit_vectors
from lmzoo.layers.pooling import (
    FirstTokenPooler,
    GatherPositions,
    LastTokenPooler,
    MaxPooler,
    MeanPooler,
    SquareRootMeanPooler,
    WeightedMeanPooler,
)
from lmzoo.layers.position_bias import RelativePositionBias
from lmzoo.layers.recurrent import RecurrentLayer
from lmzoo.layers.relative_attention import RelativeAttention, RelativeEncoding
from lmzoo.layers.relative_block import RelativeBlock
from lmzoo.layers.sampled_softmax import SampledSoftmax
from lmzoo.layers.scalar_mix import ScalarMix
from lmzoo.layers.transformer_block import TransformerBlock

__all__ = [
    "BiDAFEncoder",
    "BiLSTMEncoder",
    "ClassificationHead",
    "Dense",
    "DisentangledAttention",
    "DisentangledBlock",
    "DistanceEmbedding",
    "Dropout",
    "ESIMEncoder",
    "EinsumDense",
    "Embedding",
    "FirstTokenPooler",
    "GatherPositions",
    "LastTokenPooler",
    "LayerNorm",
    "LockedDropout",
    "MaskedLMHead",
    "MaxPooler",
    "MeanPooler",
    "MergeChoices",
    "RMSNorm",
    "RecurrentLayer",
    "RelativeAttention",
    "RelativeBlock",
    "RelativeEncoding",
    "RelativePositionBias",
    "ReplacedTokenHead",
    "ReversibleEmbedding",
    "SampledSoftmax",
    "ScalarMix",
    "SelfAttention",
    "SpanBoundaries",
    "SpanHead",
    "SplitChoices",
    "SquareRootMeanPooler",
    "TransformerBlock",
    "TransformerEmbedding",
    "TransitionScores",
    "WeightedMeanPooler",
    "WordDropout",
    "attention_probabilities",
    "get_activation",
    "get_output_activation",
    "register_encoder",
    "unit_vectors",
]
