"""Comparison of SentencePiece tokenizers in TensorFlow graphs with the Python path."""

from __future__ import annotations

import pytest

from lmzoo.text import Tokenizer


def check_graph(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Check that a graph has the ids and offsets of the Python path, and return the ids."""
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("tensorflow_text")
    from lmzoo.text.graphs import graph_tokenizer

    ids, spans = graph_tokenizer(tokenizer).with_offsets(tf.constant([text.encode() for text in texts]))
    assert ids.to_list() == tokenizer.tokenize(texts)
    expected = tokenizer.tokenize_with_offsets(texts)
    assert spans.to_list() == [[[*span[2:]] for span in row] for row in expected]
    return ids.to_list()
