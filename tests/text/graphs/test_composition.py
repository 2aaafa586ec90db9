"""Unicode's normalization form C as TensorFlow ops, compared with `tokenizers`, and offsets of composed characters."""

from __future__ import annotations

import random
import unicodedata

import pytest

tf = pytest.importorskip("tensorflow")

from lmzoo.text import NormalizedBytePairTokenizer  # noqa: E402
from lmzoo.text.graphs import graph_tokenizer  # noqa: E402
from lmzoo.text.graphs.composition import Composition, composition_tables  # noqa: E402
from tests.text.varied import EVERY_CODE_POINT, sizes, varied_strings  # noqa: E402

pytestmark = pytest.mark.tf_only
PARTS = ["[MASK]", "[CLS", "]", "e\u0301", "\u0323", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u0344", "\u2126", "\u0f77"]


def piled_up(rng: random.Random) -> str:
    """Draw characters that are decomposed or composed, in any order."""
    tables = composition_tables()
    kinds = [
        "aeiouAEIOUyY<=ωαυ",
        *2 * [[chr(code) for code in tables.marks[:97]]],
        [chr(code) for code in tables.marks],
        [chr(code) for code in tables.seconds],
        [chr(code) for code in tables.characters[:2000]],
        [chr(0xAC00 + 28 * rng.randrange(400)), chr(0x1100 + rng.randrange(19))],
    ]
    return "".join(rng.choice(rng.choice(kinds)) for _ in range(rng.randrange(1, 10)))


@pytest.fixture(scope="module", params=sizes(20_000))
def texts(request: pytest.FixtureRequest) -> list[str]:
    return varied_strings(request.param, 1913, PARTS, piled_up, piled_up)


def normalize(texts: list[str]) -> list[str]:
    rows, source = tf.function(Composition())(tf.strings.unicode_decode(texts, "UTF-8"))
    assert source.shape == rows.values.shape
    return [text.decode() for text in tf.strings.unicode_encode(rows, "UTF-8").numpy()]


def normalize_by_library(texts: list[str]) -> list[str]:
    from tokenizers import normalizers

    return list(map(normalizers.NFC().normalize_str, texts))


def test_composed_texts_equal_the_library(texts):
    for text, actual, expected in zip(texts, normalize(texts), normalize_by_library(texts), strict=True):
        assert actual == expected, ascii(text)
    assert sum(text != unicodedata.normalize("NFC", text) for text in texts) > len(texts) / 4


@EVERY_CODE_POINT
def test_every_code_point_equals_the_library(codes):
    assert normalize(codes) == normalize_by_library(codes)


def test_many_marks_equal_the_library():
    texts = ["a" + "\u0323\u0301" * 300, "\u0301" * 500, "\u1100\u1161\u11a8" * 200, "", "plain"]
    assert normalize(texts) == normalize_by_library(texts)


@pytest.fixture(scope="module")
def tokenizer() -> NormalizedBytePairTokenizer:
    return NormalizedBytePairTokenizer.of_words(["café", "naïve", "가각", "good"], 320)


def test_ids_and_offsets_equal_the_python_path(texts, tokenizer):
    graph = graph_tokenizer(tokenizer)
    ids, spans = tf.function(graph.with_offsets)(tf.constant(texts))
    expected = tokenizer.tokenize_with_offsets(texts)
    assert ids.to_list() == [[span.id for span in row] for row in expected] == tokenizer.tokenize(texts)
    assert graph(tf.constant(texts)).to_list() == ids.to_list()
    for text, row, offsets in zip(texts, expected, spans.to_list(), strict=True):
        assert offsets == [list(span[2:]) for span in row], ascii(text)


def test_spans_of_composed_characters_begin_at_their_first_part(tokenizer):
    (row,) = tokenizer.tokenize_with_offsets(["a cafe\u0301!"])
    assert [(span.token, span.start, span.end) for span in row] == [("a", 0, 1), ("ĠcafÃ©", 2, 6), ("!", 7, 8)]
