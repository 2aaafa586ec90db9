"""Helpers for the last axis of tensors."""

from __future__ import annotations

import pytest

from lmzoo.layers import ClassificationHead
from lmzoo.layers.rows import width_of


def test_width_must_be_known_to_create_weights():
    assert width_of((None, 7)) == 7
    with pytest.raises(ValueError, match=r"last axis must be known to create weights, got the shape \(2, None\)"):
        ClassificationHead(3, activation="tanh").build((2, None))
