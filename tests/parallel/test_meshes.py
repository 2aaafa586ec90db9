"""Several devices compute the same as one: every family, every task, and other uses of a model."""

from __future__ import annotations

from collections.abc import Iterable

import keras
import pytest

from lmzoo.registry.family import families
from tests.parallel.mesh_probe import FUNCTIONS, TASKS, WAYS
from tests.virtual_devices import assert_equal_on_devices

BACKEND = keras.backend.backend()
# Each family and task runs on one mesh: a layout depends on the kinds of layers, most of which several families share.
MESHES = "4x2", "1x8", "2x4"
# test_layouts.py reads the layouts of the remaining families.
FAMILIES = [family.name for family in families().values() if not family.like]
# One family for each way to pre-train.
PRETRAINING = [
    f"pretrain_{name}"
    for name in {
        (family.pretrained_head, family.objective): family.name
        for family in families().values()
        if f"pretrain_{family.name}" in WAYS and (family.objective or family.pretrained_head != "pretraining")
    }.values()
]


def case(devices: str, *names: str, slow: bool = True):
    return pytest.param(devices, names, marks=[pytest.mark.slow] * slow, id=f"{devices}-{names[0]}")


def cases(devices: str, names: Iterable[str]):
    """Return cases of three names: starting a process takes as long as one of them, and all together take minutes."""
    names = [*names]
    parts = -(-len(names) // 3)
    return [case(devices, *names[part::parts]) for part in range(parts)]


@pytest.mark.slow_cases("1x2-token_features")
@pytest.mark.skipif(BACKEND != "jax", reason=f"needs the JAX backend, this is {BACKEND}")
@pytest.mark.parametrize(
    ("devices", "names"),
    [
        case("1x2", "token_features", slow=False),
        case("8x1", "bert"),
        *(group for number, mesh in enumerate(MESHES) for group in cases(mesh, FAMILIES[number::3])),
        *cases("2x2", FUNCTIONS),
        *cases("2x2", TASKS[::2]),
        *cases("4", TASKS[1::2]),
        *cases("2x2", PRETRAINING[::2]),
        *cases("2", PRETRAINING[1::2]),
    ],
)
def test_results_equal_those_of_one_device(root, devices, names):
    count = 1
    for size in devices.split("x"):
        count *= int(size)
    assert_equal_on_devices(root, count, "tests.parallel.mesh_probe", devices, *names)
