"""Parameter counts of every released size of BERT, RoBERTa, ALBERT, DistilBERT, GPT-2 and ELMo."""

from __future__ import annotations

import functools
import math

import pytest

from lmzoo.layers import MaskedLMHead
from lmzoo.models import (
    AlbertBackbone,
    BertBackbone,
    DistilBertBackbone,
    ElmoBackbone,
    Gpt2Backbone,
    RobertaBackbone,
)

pytestmark = pytest.mark.usefixtures("unallocated")
UNCASED, CASED, MULTI_CASED, MULTI_UNCASED, CHINESE = 30522, 28996, 119547, 105879, 21128
# layers, width, feed-forward width, heads
BASE, LARGE = (12, 768, 3072, 12), (24, 1024, 4096, 16)

# vocabulary, shape, parameters of the backbone and of the masked LM without the pooler
BERT = {
    "tiny": (UNCASED, (2, 128, 512, 2), 4_385_920, 4_416_698),
    "mini": (UNCASED, (4, 256, 1024, 4), 11_170_560, 11_201_594),
    "small": (UNCASED, (4, 512, 2048, 8), 28_763_648, 28_795_194),
    "medium": (UNCASED, (8, 512, 2048, 8), 41_373_184, 41_404_730),
    "base_uncased": (UNCASED, BASE, 109_482_240, 109_514_298),
    "base_cased": (CASED, BASE, 108_310_272, 108_340_804),
    "multi_cased": (MULTI_CASED, BASE, 177_853_440, 177_974_523),
    "multi_uncased": (MULTI_UNCASED, BASE, 167_356_416, 167_463_831),
    "chinese": (CHINESE, BASE, 102_267_648, 102_290_312),
    "large_uncased": (UNCASED, LARGE, 335_141_888, 335_174_458),
    "large_cased": (CASED, LARGE, 333_579_264, 333_610_308),
    "xlarge": (30000, (24, 2048, 8192, 32), 1_275_291_648, 1_275_325_744),
}
ALBERT = {
    "base": (30000, BASE, 11_683_584, 11_221_680),
    "large": (30000, LARGE, 17_683_968, 16_795_824),
    "xlarge": (30000, (24, 2048, 8192, 16), 58_724_864, 54_821_040),
    "xxlarge": (30000, (12, 4096, 16384, 64), 222_595_584, 206_368_944),
    "base_chinese": (CHINESE, BASE, 10_547_968, 10_077_192),
    "large_chinese": (CHINESE, LARGE, 16_548_352, 15_651_336),
    "xlarge_chinese": (CHINESE, (24, 2048, 8192, 16), 57_589_248, 53_676_552),
    "xxlarge_chinese": (CHINESE, (12, 4096, 16384, 64), 221_459_968, 205_224_456),
}
# number of segments, shape, parameters as above; fairseq's files have no segments, transformers' have one
ROBERTA = {
    "base, fairseq": (0, BASE, 124_054_272, 124_696_665),
    "base, transformers": (1, BASE, 124_055_040, 124_697_433),
    "large, fairseq": (0, LARGE, 354_309_120, 355_411_033),
    "large, transformers": (1, LARGE, 354_310_144, 355_412_057),
}
# layers -> parameters of BERTs of width 128, 256, 512, 768; feed-forward 4 times as wide, 64 columns per head
SMALL_BERT = {
    2: (4_385_920, 9_591_040, 22_458_880, 38_603_520),
    4: (4_782_464, 11_170_560, 28_763_648, 52_779_264),
    6: (5_179_008, 12_750_080, 35_068_416, 66_955_008),
    8: (5_575_552, 14_329_600, 41_373_184, 81_130_752),
    10: (5_972_096, 15_909_120, 47_677_952, 95_306_496),
    12: (6_368_640, 17_488_640, 53_982_720, 109_482_240),
}
GPT2 = {
    "small": ((12, 768, None, 12), 124_439_808),
    "medium": ((24, 1024, None, 16), 354_823_168),
    "large": ((36, 1280, None, 20), 774_030_080),
    "xl": ((48, 1600, None, 25), 1_557_611_200),
}


def build(cls, vocabulary, layers, width, intermediate, heads, **config):
    return cls(
        vocabulary_size=vocabulary,
        num_layers=layers,
        num_heads=heads,
        hidden_dim=width,
        intermediate_dim=intermediate,
        **config,
    )


@functools.cache
def count_parts(cls, vocabulary, *shape, **config):
    """Return the parameters of a one-layer backbone, its layer, its pooler, and an MLM head without the table."""
    backbone = build(cls, vocabulary, 1, *shape, **config)
    table = backbone.embeddings.token_embedding
    head = MaskedLMHead(table)
    head.build((None, None, shape[0]))
    pooler = backbone.pooler.count_params() if cls.has_pooler else 0
    head_parameters = head.count_params() - table.count_params()
    return backbone.count_params(), backbone.blocks[0].count_params(), pooler, head_parameters


def count(cls, vocabulary, shape, **config):
    """Return the parameters of the backbone and of the masked LM without the pooler."""
    one_layer, layer, pooler, head = count_parts(cls, vocabulary, *shape[1:], **config)
    num_layers = 1 if cls is AlbertBackbone else shape[0]  # ALBERT's layers share their parameters
    backbone = one_layer + (num_layers - 1) * layer
    return backbone, backbone - pooler + head


@pytest.mark.parametrize("name", BERT)
def test_parameters_of_bert(name):
    vocabulary, shape, *expected = BERT[name]
    assert count(BertBackbone, vocabulary, shape) == tuple(expected)


@pytest.mark.parametrize("layers", SMALL_BERT)
def test_the_24_small_sizes_of_bert(layers):
    widths = (128, 256, 512, 768)
    counts = [count(BertBackbone, UNCASED, (layers, width, 4 * width, width // 64))[0] for width in widths]
    assert tuple(counts) == SMALL_BERT[layers]


@pytest.mark.parametrize("name", ["base_uncased", pytest.param("xlarge", marks=pytest.mark.slow)])
def test_counts_by_parts_equal_those_of_whole_models(name):
    vocabulary, shape, backbone, _ = BERT[name]
    assert build(BertBackbone, vocabulary, *shape).count_params() == backbone


@pytest.mark.parametrize("name", ROBERTA)
def test_parameters_of_roberta(name):
    segments, shape, *expected = ROBERTA[name]
    assert count(RobertaBackbone, 50265, shape, num_segments=segments) == tuple(expected)


@pytest.mark.parametrize("name", ALBERT)
def test_parameters_of_albert(name):
    vocabulary, shape, *expected = ALBERT[name]
    assert count(AlbertBackbone, vocabulary, shape, embedding_dim=128) == tuple(expected)


@pytest.mark.parametrize(
    ("width", "shared", "separate"),
    [
        (64, 9_681_408, 87_648_000),
        (128, 11_683_584, 89_650_176),
        (256, 15_687_936, 93_654_528),
        (768, 31_114_752, 109_081_344),
    ],
)
def test_albert_in_the_ablation_of_its_paper(width, shared, separate):
    """Table 3 of Lan et al. varies the width of the token embeddings; the layers share all parameters or none."""
    assert count(AlbertBackbone, 30000, BASE, embedding_dim=width)[0] == shared
    model = build(AlbertBackbone, 30000, 2, *BASE[1:], embedding_dim=width, num_groups=2)
    assert model.count_params() + 10 * model.blocks[0].count_params() == separate


def test_parameters_of_distilbert():
    assert count(DistilBertBackbone, UNCASED, (6, *BASE[1:]))[0] == 66_362_880


@pytest.mark.parametrize("name", GPT2)
def test_parameters_of_gpt2(name):
    shape, expected = GPT2[name]
    assert count(Gpt2Backbone, 50257, shape)[0] == expected


# The published counts leave out the vector for no token (16) and the mix (2 + 1 scalars, gamma).
UNCOUNTED = 16 + 4
# memory, width, highways; parameters
ELMO = {
    "small": ((1024, 128, 1), 13_593_296),
    "medium": ((2048, 256, 1), 28_027_728),
    "original": ((4096, 512, 2), 93_600_848),
}


@pytest.mark.parametrize("name", ELMO)
def test_parameters_of_elmo(name):
    (memory, width, highways), expected = ELMO[name]
    backbone = ElmoBackbone(lstm_dim=memory, projection_dim=width, num_highway=highways)
    assert backbone.count_params() == expected + UNCOUNTED
    assert sum(math.prod(w.shape) for lstm in backbone.bilm.lstms for w in lstm.weights) == (
        4 * (9 * width * memory + 4 * memory)
    )
