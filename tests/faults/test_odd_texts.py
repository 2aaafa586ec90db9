"""Odd strings from hypothesis: all ways to tokenize a text agree, and offsets lie within the text."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")

from lmzoo.text import (  # noqa: E402
    BytePairTokenizer,
    CharacterTokenizer,
    SentencePieceTokenizer,
    TextWarning,
    Tokenizer,
    WordPieceTokenizer,
    WordTokenizer,
)
from lmzoo.text.graphs import graph_tokenizer  # noqa: E402
from tests.text.trained import reviews, train_albert, train_byte_pairs  # noqa: E402
from tests.text.varied import FIXED, INVALID, SAYINGS, has_marks_in_order  # noqa: E402

pytestmark = pytest.mark.tf_only

SPECIAL = [*WordPieceTokenizer.special_tokens, *BytePairTokenizer.special_tokens, "<S>", "</S>", "<UNK>"]
BROKEN = [
    "[MASK", "]", "[mask]", "<mask", ">", "[MA\x01SK]", "##", "▁", "Ġ", "n't", "'s", "``", "9,", "\u200d", "\u0301",
]  # fmt: skip
PIECES = [*SPECIAL, *BROKEN, *SAYINGS, *(text for text in FIXED if isinstance(text, str))]
# Arbitrary characters; strings that tokenizers treat specially, mixed with others; long repetitions; invalid UTF-8.
TEXT = st.one_of(
    st.text(max_size=40),
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=9).map("".join),
    st.tuples(st.text(min_size=1, max_size=2), st.integers(1, 210)).map(lambda pair: pair[0] * pair[1]),
    st.lists(st.one_of(st.sampled_from(INVALID), st.binary(max_size=5), st.text().map(str.encode))).map(b"".join),
)
BATCH_SIZE = 8
TensorFunction: TypeAlias = Callable[[tf.Tensor], Any]


def word_pieces(lowercase: bool) -> Callable[[Path], Tokenizer]:
    letters = [c for word in SAYINGS for c in word] + list("abcdefghijklmnopqrstuvwxyz.,!?-'")
    pieces = dict.fromkeys([*letters, *(f"##{c}" for c in letters), "the", "film", "straße", "strasse"])
    return lambda root: WordPieceTokenizer([*WordPieceTokenizer.special_tokens, *pieces], lowercase)


def byte_pairs(root: Path) -> Tokenizer:
    trained = train_byte_pairs(root, [])
    return BytePairTokenizer(trained.get_vocab(), json.loads(trained.to_str())["model"]["merges"])


def words(root: Path) -> Tokenizer:
    vocabulary = sorted({word for text in reviews(root)[:200] for word in text.split()})
    return WordTokenizer([*WordTokenizer.special_tokens, *vocabulary, *SAYINGS])


TOKENIZERS: dict[str, Callable[[Path], Tokenizer]] = {
    "WordPiece": word_pieces(True),
    "WordPiece, cased": word_pieces(False),
    "BPE": byte_pairs,
    "SentencePiece": lambda root: SentencePieceTokenizer(train_albert(root)),
    "words": words,
    "characters": lambda root: CharacterTokenizer(),
}


def assert_agree(
    tokenizer: Tokenizer, ids_of: TensorFunction, offsets_of: TensorFunction | None, texts: list[str | bytes]
) -> None:
    """Check that ids agree with and without offsets, for single texts and batches, in Python and in a graph."""
    ids = tokenizer.tokenize(texts)
    spans = tokenizer.tokenize_with_offsets(texts)
    assert [[span.id for span in row] for row in spans] == ids
    assert [tokenizer.tokenize([text])[0] for text in texts] == ids
    ids_with_bounds, bounds = tokenizer.tokenize_with_spans(texts)
    assert ids_with_bounds == ids
    assert np.asarray(bounds).reshape(-1, 2).tolist() == [[span.start, span.end] for row in spans for span in row]
    for text, row in zip(texts, spans, strict=True):
        length = len(text if isinstance(text, str) else text.decode("utf-8", "replace"))
        assert all(0 <= span.start <= span.end <= length for span in row), (text, row)
        assert sorted(row, key=lambda span: span.start) == row, (text, row)
    graph_ids = ids_of(tf.constant(texts, tf.string))
    if isinstance(tokenizer, CharacterTokenizer):
        words = [word for row in ids for word in row]
        np.testing.assert_array_equal(graph_ids.values, tokenizer.as_array(words, len(words)))
        return
    for text, expected, row in zip(texts, ids, graph_ids.to_list(), strict=True):
        if isinstance(tokenizer, SentencePieceTokenizer) and row != expected:  # two segmentations of equal score
            score, graph_score = (sum(map(tokenizer.backend.get_score, pieces)) for pieces in (expected, row))
            assert abs(score - graph_score) < 1e-4 + np.spacing(np.float32(abs(score))), (text, expected, row)
        else:
            assert row == expected, text
    if offsets_of is not None:
        _, offsets = offsets_of(tf.constant(texts, tf.string))
        for text, row, row_offsets in zip(texts, spans, offsets.to_list(), strict=True):
            if not isinstance(text, bytes) and (isinstance(tokenizer, BytePairTokenizer) or has_marks_in_order(text)):
                assert row_offsets == [[span.start, span.end] for span in row], text


@pytest.mark.parametrize(
    ("name", "examples"),
    [("words", 8), ("characters", 8), *(pytest.param(name, 200, marks=pytest.mark.slow) for name in TOKENIZERS)],
)
def test_python_and_graph_tokenizers_agree_on_odd_texts(name: str, examples: int, root: Path) -> None:
    tokenizer = TOKENIZERS[name](root)
    graph = graph_tokenizer(tokenizer)
    has_offsets = isinstance(tokenizer, (WordPieceTokenizer, BytePairTokenizer))
    ids_of, offsets_of = graph, graph.with_offsets if has_offsets else None
    if examples > 10:  # worth tracing
        signature = [tf.TensorSpec([None], tf.string)]
        ids_of = tf.function(graph, input_signature=signature)
        offsets_of = tf.function(graph.with_offsets, input_signature=signature) if has_offsets else None

    @settings(
        max_examples=examples, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )  # fmt: skip
    @given(st.lists(TEXT, min_size=BATCH_SIZE, max_size=BATCH_SIZE))
    def check(texts: list[str | bytes]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TextWarning)
            assert_agree(tokenizer, ids_of, offsets_of, texts)

    check()
