"""Parameter counts of the released sizes of RoBERTa, ALBERT, DistilBERT and ELMo."""

from __future__ import annotations

import math

import pytest

from lmzoo.layers import MaskedLMHead
from lmzoo.models import AlbertBackbone, DistilBertBackbone, ElmoBackbone, Gpt2Backbone, RobertaBackbone
from tests.families.test_parameter_counts import BASE, CHINESE, LARGE

pytestmark = pytest.mark.usefixtures("unallocated")


def sizes(cls, layers, shape, vocabulary, **config):
    """Parameters of the backbone and of a masked LM on it without a pooler, from a model of one layer."""
    width, intermediate, heads = shape
    backbone = cls(
        vocabulary_size=vocabulary,
        num_layers=1,
        num_heads=heads,
        hidden_dim=width,
        intermediate_dim=intermediate,
        **config,
    )
    head = MaskedLMHead(backbone.embeddings.token_embedding)
    head.build((None, None, width))
    total = backbone.count_params()
    if cls is not AlbertBackbone:  # which shares the one
        total += (layers - 1) * backbone.blocks[0].count_params()
    without_pooler = total - (backbone.pooler.count_params() if cls.has_pooler else 0)
    return total, without_pooler + head.count_params() - backbone.embeddings.token_embedding.count_params()


@pytest.mark.parametrize(
    ("shape", "segments", "backbone", "masked_lm"),
    [
        pytest.param(BASE, 0, 124_054_272, 124_696_665, id="base, fairseq"),
        pytest.param(BASE, 1, 124_055_040, 124_697_433, id="base, transformers"),
        pytest.param(LARGE, 0, 354_309_120, 355_411_033, id="large, fairseq"),
        pytest.param(LARGE, 1, 354_310_144, 355_412_057, id="large, transformers"),
    ],
)
def test_roberta(shape, segments, backbone, masked_lm):
    assert sizes(RobertaBackbone, shape[0], shape[1:], 50265, num_segments=segments) == (backbone, masked_lm)


ALBERT = {
    "base": (12, 768, 3072, 12),
    "large": (24, 1024, 4096, 16),
    "xlarge": (24, 2048, 8192, 16),
    "xxlarge": (12, 4096, 16384, 64),
}


@pytest.mark.parametrize(
    ("name", "vocabulary", "backbone", "masked_lm"),
    [
        ("base", 30000, 11_683_584, 11_221_680),
        ("large", 30000, 17_683_968, 16_795_824),
        ("xlarge", 30000, 58_724_864, 54_821_040),
        ("xxlarge", 30000, 222_595_584, 206_368_944),
        ("base", CHINESE, 10_547_968, 10_077_192),
        ("large", CHINESE, 16_548_352, 15_651_336),
        ("xlarge", CHINESE, 57_589_248, 53_676_552),
        ("xxlarge", CHINESE, 221_459_968, 205_224_456),
    ],
)
def test_albert(name, vocabulary, backbone, masked_lm):
    layers, *shape = ALBERT[name]
    assert sizes(AlbertBackbone, layers, shape, vocabulary, embedding_dim=128) == (backbone, masked_lm)


@pytest.mark.parametrize(
    ("width", "shared", "apart"),
    [
        (64, 9_681_408, 87_648_000),
        (128, 11_683_584, 89_650_176),
        (256, 15_687_936, 93_654_528),
        (768, 31_114_752, 109_081_344),
    ],
)
def test_albert_of_the_paper_s_ablation(width, shared, apart):
    """Table 3 of Lan et al.: the width of the word table, all layers shared or none."""
    layers, *shape = ALBERT["base"]
    assert sizes(AlbertBackbone, layers, shape, 30000, embedding_dim=width)[0] == shared
    model = AlbertBackbone(
        vocabulary_size=30000,
        num_layers=2,
        num_heads=12,
        hidden_dim=768,
        intermediate_dim=3072,
        embedding_dim=width,
        num_groups=2,
    )
    assert model.count_params() + 10 * model.blocks[0].count_params() == apart


def test_distilbert():
    assert sizes(DistilBertBackbone, 6, BASE[1:], 30522)[0] == 66_362_880


@pytest.mark.parametrize(
    ("layers", "width", "heads", "expected"),
    [
        (12, 768, 12, 124_439_808),
        (24, 1024, 16, 354_823_168),
        (36, 1280, 20, 774_030_080),
        (48, 1600, 25, 1_557_611_200),
    ],
)
def test_gpt2(layers, width, heads, expected):
    assert sizes(Gpt2Backbone, layers, (width, None, heads), 50257)[0] == expected


# memory, width, highways; parameters. The row of no token (16) and the mix (2 + 1 scalars, gamma) are not counted in
# what was published.
EXTRA = 16 + 4
ELMO = {
    "small": ((1024, 128, 1), 13_593_296),
    "medium": ((2048, 256, 1), 28_027_728),
    "original": ((4096, 512, 2), 93_600_848),
}


@pytest.mark.parametrize("name", ELMO)
def test_elmo(name):
    (memory, width, highways), expected = ELMO[name]
    backbone = ElmoBackbone(lstm_dim=memory, projection_dim=width, num_highway=highways)
    assert backbone.count_params() == expected + EXTRA
    assert sum(math.prod(w.shape) for lstm in backbone.bilm.lstms for w in lstm.weights) == (
        4 * (9 * width * memory + 4 * memory)
    )
