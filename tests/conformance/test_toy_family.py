"""A family from outside of the package passes all checks; details of a decoder."""

from __future__ import annotations

import importlib

import keras
import numpy as np
import pytest

import lmzoo.registry.family
from lmzoo.models import MaskedLM, Pretrainer, TextClassifier
from lmzoo.registry.family import families, get_family
from lmzoo.testing import FAMILY_CHECKS, TASK_CHECKS, tiny_backbone, tiny_preprocessor, tiny_texts

EXPENSIVE = {
    "check_task_backends",
    "check_task_export",
    "check_task_resume",
    "check_task_training",
}  # slow for every family


@pytest.fixture(autouse=True, scope="module")
def toy():
    """Register the family while this module's tests run: other tests use all registered families."""
    before = families()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lmzoo.registry.family, "_FAMILIES", dict(before))
        yield importlib.import_module("tests.conformance.toy_family").TOY
    assert families() == before


# On JAX, test_conformance.py covers the families of the package.
SLOW = [pytest.mark.slow] * (keras.backend.backend() == "jax")


@pytest.mark.slow_cases("check_backbone_files", "check_functional_model", "check_seed", "check_training")
@pytest.mark.parametrize("check", [pytest.param(check, marks=SLOW, id=check.__name__) for check in FAMILY_CHECKS])
def test_family(check, toy):
    check(toy)


@pytest.mark.slow_cases("check_task_files", "check_task_fit", "check_task_functional_model")
@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, marks=[pytest.mark.slow] * (check.__name__ in EXPENSIVE), id=check.__name__)
        for check in TASK_CHECKS
    ],
)
@pytest.mark.tf_only
def test_task(check, toy, request):
    if check.__name__ not in EXPENSIVE:
        request.getfixturevalue("eager")
    check(TextClassifier, toy)


# === Details of a decoder ===


@pytest.fixture(scope="module")
def backbone(toy):
    return tiny_backbone(toy)


@pytest.fixture
def features(toy):
    return tiny_preprocessor(toy)(tiny_texts())


def test_the_backbone_finds_its_family(backbone, toy):
    assert get_family(backbone) is toy


def test_the_last_token_represents_the_text(backbone, features):
    outputs = backbone.predict(features, verbose=0)
    last = features["padding_mask"].sum(1) - 1
    expected = outputs["sequence_output"][np.arange(len(last)), last]
    np.testing.assert_array_equal(outputs["pooled_output"], expected)
    np.testing.assert_array_equal(outputs["hidden_states"][-1], outputs["sequence_output"])


def test_vectors_at_positions_are_refused(backbone, features):
    message = "`vectors_at` lets chosen positions attend to all others, but this ToyBackbone is causal"
    with pytest.raises(ValueError, match=message):
        backbone.vectors_at(features, np.zeros((7, 1), "int32"))


@pytest.mark.parametrize("task", [MaskedLM, Pretrainer])
def test_tasks_with_masks_refuse_a_decoder(task, backbone, toy):
    assert not task.supports(toy)
    with pytest.raises(ValueError, match=r"ToyBackbone cannot fill masks: it is causal\."):
        task(backbone, tiny_preprocessor(toy))
