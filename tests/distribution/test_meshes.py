"""Several devices compute what one computes: every family, every task, and the ways to use them."""

from __future__ import annotations

from collections.abc import Iterable

import keras
import pytest

from lmzoo.registry.family import families
from tests.distribution.mesh_probe import FUNCTIONS, TASKS, WAYS
from tests.virtual_devices import assert_equal_on_devices

BACKEND = keras.backend.backend()
# On JAX each family is on one mesh, and so is each task: a layout depends on the kinds of layers, most of which several
# families share. TensorFlow splits batches only, in the same way for all: half of the families and tasks do.
MESHES = "4x2", "1x8", "2x4"
# The layouts of all others test_layouts.py reads.
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
# TensorFlow does not accumulate gradients on several devices, nor carry the states of a BidirectionalLM.
ON_TENSORFLOW = [name for name in FUNCTIONS if name not in ("accumulation", "outside")]


def case(backend: str, devices: str, *names: str, slow: bool = True):
    marks = [pytest.mark.slow] * slow
    if backend != BACKEND:
        marks.append(pytest.mark.skip(reason=f"needs the {backend} backend, this is {BACKEND}"))
    return pytest.param(devices, names, marks=marks, id=f"{backend}-{devices}-{names[0]}")


def cases(backend: str, devices: str, names: Iterable[str]):
    """Three at a time: starting a process takes as long as one of them, and all together would take minutes."""
    names = [*names]
    parts = -(-len(names) // 3)
    return [case(backend, devices, *names[part::parts]) for part in range(parts)]


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        case("jax", "1x2", "token_features", slow=False),
        case("jax", "8x1", "bert"),
        *(group for number, mesh in enumerate(MESHES) for group in cases("jax", mesh, FAMILIES[number::3])),
        *cases("jax", "2x2", [name for name in FUNCTIONS if name != "outside"]),
        *cases("jax", "2x2", TASKS[::2]),
        *cases("jax", "4", TASKS[1::2]),
        *cases("jax", "2x2", PRETRAINING[::2]),
        *cases("jax", "2", PRETRAINING[1::2]),
        case("tensorflow", "2", "outside", slow=False),
        case("tensorflow", "4", "bert"),
        *cases("tensorflow", "2", FAMILIES[::2]),
        *cases("tensorflow", "2", ON_TENSORFLOW),
        *cases("tensorflow", "2", TASKS[::2]),
        *cases("tensorflow", "2", [name for name in PRETRAINING if name != "pretrain_elmo"][::2]),
    ],
)
def test_results_equal_those_of_one_device(root, devices, names):
    count = 1
    for size in devices.split("x"):
        count *= int(size)
    assert_equal_on_devices(root, count, "tests.distribution.mesh_probe", devices, *names)
