"""Parameter counts of every released BERT size."""

from __future__ import annotations

import functools

import pytest

from lmzoo.layers import MaskedLMHead
from lmzoo.models import BertBackbone

pytestmark = pytest.mark.usefixtures("unallocated")
UNCASED, CASED, MULTI_CASED, MULTI_UNCASED, CHINESE = 30522, 28996, 119547, 105879, 21128
BASE, LARGE = (12, 768, 3072, 12), (24, 1024, 4096, 16)

# name -> vocabulary, (layers, width, feed-forward width, heads), backbone, masked LM without the pooler
RELEASED = {
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
# layers -> backbones of width 128, 256, 512, 768; feed-forward 4 times as wide, 64 to a head
SMALL = {
    2: (4_385_920, 9_591_040, 22_458_880, 38_603_520),
    4: (4_782_464, 11_170_560, 28_763_648, 52_779_264),
    6: (5_179_008, 12_750_080, 35_068_416, 66_955_008),
    8: (5_575_552, 14_329_600, 41_373_184, 81_130_752),
    10: (5_972_096, 15_909_120, 47_677_952, 95_306_496),
    12: (6_368_640, 17_488_640, 53_982_720, 109_482_240),
}
WIDTHS = (128, 256, 512, 768)


@functools.cache
def parts(vocabulary, width, intermediate, heads):
    """Parameters of a backbone of one layer, of that layer, of the pooler, of the masked-LM head without the table."""
    backbone = build(vocabulary, 1, width, intermediate, heads)
    head = MaskedLMHead(backbone.embeddings.token_embedding)
    head.build((None, None, width))
    table = backbone.embeddings.token_embedding.count_params()
    return *(m.count_params() for m in (backbone, backbone.blocks[0], backbone.pooler)), head.count_params() - table


def build(vocabulary, layers, width, intermediate, heads):
    return BertBackbone(
        vocabulary_size=vocabulary,
        num_layers=layers,
        num_heads=heads,
        hidden_dim=width,
        intermediate_dim=intermediate,
    )


def count(vocabulary, layers, *shape):
    """Parameters of the backbone and of the masked LM without its pooler."""
    one_layer, layer, pooler, head = parts(vocabulary, *shape)
    backbone = one_layer + (layers - 1) * layer
    return backbone, backbone - pooler + head


@pytest.mark.parametrize("name", RELEASED)
def test_released_sizes(name):
    vocabulary, shape, backbone, masked_lm = RELEASED[name]
    assert count(vocabulary, *shape) == (backbone, masked_lm)


@pytest.mark.parametrize("layers", SMALL)
def test_the_24_small_sizes(layers):
    assert tuple(count(UNCASED, layers, w, 4 * w, w // 64)[0] for w in WIDTHS) == SMALL[layers]


@pytest.mark.parametrize("name", ["base_uncased", pytest.param("xlarge", marks=pytest.mark.slow)])
def test_whole_models(name):
    vocabulary, shape, backbone, _ = RELEASED[name]
    assert build(vocabulary, *shape).count_params() == backbone
