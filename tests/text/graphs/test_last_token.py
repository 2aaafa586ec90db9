"""Packing as TensorFlow ops with a last token in its own segment."""

from __future__ import annotations

import pytest

from lmzoo.families.xlnet import FAMILY
from lmzoo.testing import tiny_preprocessor, tiny_texts
from lmzoo.text.graphs import graph_packer
from tests.text.graph_checks import check_packer

pytestmark = pytest.mark.tf_only


@pytest.mark.slow
def test_packing_equals_the_python_path():
    preprocessor, texts = tiny_preprocessor(FAMILY), tiny_texts()
    preprocessor.sequence_length = 9
    for inputs in ([["", *texts]], [texts, texts[::-1]]):
        check_packer(graph_packer(preprocessor), preprocessor, *inputs)
