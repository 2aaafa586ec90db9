"""Every family with checkpoints in transformers, compared with its classes there: every head and configuration."""

from __future__ import annotations

import pytest

import lmzoo.models  # noqa: F401 - registers the families
from lmzoo.registry.family import families
from lmzoo.testing import CHECKPOINT_CHECKS, check_peer_outputs, peer_heads

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = [pytest.mark.tf_only, pytest.mark.usefixtures("eager")]

FAMILIES = list(families().values())


def parameters():
    """Yield each check with each head; variants of a configuration with no head, the first head and masks.

    `make test` compares all hidden states and one head of each family, and writes the latter.
    """
    for family in FAMILIES:
        heads = peer_heads(family)
        for variant in range(1 + len(family.variants)):
            for head in (head for head in heads if not variant or head in (*heads[:2], "masked_lm")):
                for check in CHECKPOINT_CHECKS:
                    quick = head in heads[:2] and not (variant or (check is not check_peer_outputs and not head))
                    name = f"{family.name}-{head or 'backbone'}-{check.__name__.removeprefix('check_')}-{variant}"
                    yield pytest.param(family, head, variant, check, id=name, marks=[] if quick else pytest.mark.slow)


@pytest.mark.parametrize(("family", "head", "variant", "check"), list(parameters()))
def test_checkpoint(family, head, variant, check):
    check(family, head, variant)


def test_families_have_the_heads_of_their_layouts():
    heads = {family.name: peer_heads(family) for family in FAMILIES}
    assert {"", "classification", "masked_lm"} <= set(heads["bert"])
    assert heads["elmo"] == []
