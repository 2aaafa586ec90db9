"""Layouts: the weights that are split between devices."""

from __future__ import annotations

import re

import pytest

from lmzoo.parallel import layout_map
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone


class Mesh:
    """A mesh for `layout_map`, of more devices than exist."""

    def __init__(self, batch: int, model: int) -> None:
        self.shape, self.axis_names = (batch, model), ["batch", "model"]


def test_weights_that_devices_cannot_split_evenly_stay_whole():
    backbone = tiny_backbone(families()["bert"])  # 35 wide, 53 in the feed-forward layers, 131 tokens
    assert set(layout_map(backbone, Mesh(2, 5))) == {
        ".*(query|key|value)/kernel",
        ".*(query|key|value)/bias",
        ".*attention/output_dense/kernel",
    }
    assert not layout_map(backbone, Mesh(2, 2))
    by_words = layout_map(backbone, Mesh(1, 131))
    assert {pattern: layout.axes for pattern, layout in by_words.items()} == {
        ".*token_embedding/embeddings": ("model", None)
    }


@pytest.mark.slow_cases("distilbert", "gpt", "roberta", "xlm_roberta")
@pytest.mark.parametrize("name", families())
def test_layouts_name_each_axis_of_a_weight(name):
    family = families()[name]
    patterns = dict.fromkeys(family.layouts, 0)
    for weight in tiny_backbone(family).weights:
        matching = [pattern for pattern in patterns if re.fullmatch(pattern, weight.path)]
        assert len(matching) <= 1, f"{weight.path} has several layouts"
        for pattern in matching:
            patterns[pattern] += 1
            assert len(family.layouts[pattern]) == len(weight.shape), weight.path
    assert any(patterns.values())


def test_heads_that_are_an_axis_are_split():
    backbone = tiny_backbone(families()["xlnet"])  # three heads
    assert set(layout_map(backbone, Mesh(1, 3))) == {
        ".*(query|key|value)/kernel",
        ".*attention/output_dense/kernel",
        ".*attention/distance/kernel",
        ".*attention/(content|distance|segment)_bias",
        ".*attention/segments",
    }


def test_a_mesh_without_the_axis_is_refused():
    with pytest.raises(ValueError, match=r"The mesh has the axes batch, model: .* not 'heads'"):
        layout_map(tiny_backbone(families()["bert"]), Mesh(1, 2), axis="heads")
