"""Packing as TensorFlow ops with a last token in its own segment."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.families.xlnet import FAMILY
from lmzoo.testing import tiny_preprocessor, tiny_texts
from lmzoo.text.graphs import graph_packer
from lmzoo.text.validate_text import collect_warnings

pytestmark = pytest.mark.tf_only


@pytest.mark.slow
def test_packing_equals_the_python_path():
    preprocessor, texts = tiny_preprocessor(FAMILY), tiny_texts()
    preprocessor.sequence_length = 9
    for columns in ([["", *texts]], [texts, texts[::-1]]):
        with collect_warnings():  # of truncation
            features = graph_packer(preprocessor)(*columns)
            expected = preprocessor(tuple(columns) if len(columns) > 1 else columns[0])
        for name, values in expected.items():
            assert np.array_equal(features[name], values), name
