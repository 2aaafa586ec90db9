"""Several devices compute what one computes: every family, every task, and the ways to use them."""

from __future__ import annotations

import keras
import pytest

from lmzoo.family import families
from tests.distribution.mesh_probe import FUNCTIONS, TASKS
from tests.virtual_devices import assert_equal_on_devices

BACKEND = keras.backend.backend()
PRETRAINING = [f"pretrain_{name}" for name, family in families().items() if not family.backbone.reads_source]
# TensorFlow does not accumulate gradients on several devices, nor carry the states of a BidirectionalLM.
ON_TENSORFLOW = [name for name in FUNCTIONS if name not in ("accumulation", "outside")]


def case(backend: str, devices: str, *names: str, slow: bool = True):
    marks = [pytest.mark.slow] * slow
    if backend != BACKEND:
        marks.append(pytest.mark.skip(reason=f"needs the {backend} backend, this is {BACKEND}"))
    return pytest.param(devices, names, marks=marks, id=f"{backend}-{devices}-{names[0]}")


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        case("jax", "1x2", "token_features", slow=False),
        *(case("jax", mesh, *families()) for mesh in ("8x1", "4x2", "2x4", "1x8")),
        *(case("jax", "2x2", name) for name in FUNCTIONS if name != "outside"),
        case("jax", "2x2", *TASKS),
        case("jax", "4", *TASKS),
        case("jax", "2x2", *PRETRAINING),
        case("jax", "2", *PRETRAINING),
        case("tensorflow", "2", "outside", slow=False),
        case("tensorflow", "4", "bert"),
        case("tensorflow", "2", *families()),
        *(case("tensorflow", "2", name) for name in ON_TENSORFLOW),
        case("tensorflow", "2", *TASKS),
        case("tensorflow", "2", *(name for name in PRETRAINING if name != "pretrain_elmo")),
    ],
)
def test_results_equal_those_of_one_device(root, devices, names):
    count = 1
    for size in devices.split("x"):
        count *= int(size)
    assert_equal_on_devices(root, count, "tests.distribution.mesh_probe", devices, *names)
