"""Weights that are split between devices: which ones, and that the results are those of one device."""

from __future__ import annotations

import keras
import pytest

from lmzoo.distribution import layout_map
from lmzoo.family import families
from lmzoo.testing import tiny_backbone
from tests.distribution.mesh_probe import WAYS
from tests.virtual_devices import assert_equal_on_devices

BACKEND = keras.backend.backend()


class Mesh:
    """What `layout_map` asks of a mesh of more devices than there are."""

    def __init__(self, batch: int, model: int) -> None:
        self.shape, self.axis_names = (batch, model), ["batch", "model"]


def test_weights_that_the_devices_cannot_split_evenly_are_not_split():
    backbone = tiny_backbone(families()["bert"])  # 35 wide, 53 in between, 131 tokens
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


def test_a_mesh_without_the_axis():
    with pytest.raises(ValueError, match=r"The mesh has the axes batch, model: .* not 'heads'"):
        layout_map(tiny_backbone(families()["bert"]), Mesh(1, 2), axis="heads")


def on_mesh(mesh: str, *names: str, slow: bool = True):
    return pytest.param(mesh, names, marks=[pytest.mark.slow] * slow, id=f"{mesh}-{names[0]}")


@pytest.mark.skipif(BACKEND != "jax", reason=f"needs the JAX backend, this is {BACKEND}")
@pytest.mark.parametrize(
    ("mesh", "names"),
    [
        on_mesh("1x2", "bert", slow=False),
        *(on_mesh(mesh, *families()) for mesh in ("8x1", "4x2", "2x4", "1x8")),
        *(on_mesh("2x2", way) for way in WAYS),
    ],
)
def test_results_equal_those_of_one_device(root, mesh, names):
    batch, model = mesh.split("x")
    assert_equal_on_devices(root, int(batch) * int(model), "tests.distribution.mesh_probe", mesh, *names)
