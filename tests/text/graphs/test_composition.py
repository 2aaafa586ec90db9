"""Unicode's normalization form C as TensorFlow ops against `tokenizers`, also where characters came from."""

from __future__ import annotations

import random
import unicodedata

import pytest

tf = pytest.importorskip("tensorflow")

from lmzoo.text import NormalizedBytePairTokenizer  # noqa: E402
from lmzoo.text.graphs import graph_tokenizer  # noqa: E402
from lmzoo.text.graphs.composition import Composition, composition_tables  # noqa: E402
from tests.text.varied import EVERY_CODE_POINT, code_points, sizes, varied_texts  # noqa: E402

pytestmark = pytest.mark.tf_only
PARTS = ["[MASK]", "[CLS", "]", "e\u0301", "\u0323", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u0344", "\u2126", "\u0f77"]


def piled_up(rng: random.Random) -> str:
    """Characters that are decomposed or composed, in any order."""
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
    found = varied_texts(request.param, 1913, PARTS, piled_up, piled_up)
    return [text if isinstance(text, str) else text.decode("utf-8", "replace") for text in found]


@pytest.fixture(scope="module")
def codes(request: pytest.FixtureRequest) -> list[str]:
    return code_points(request.param)


def normalize(texts: list[str]) -> list[str]:
    rows, source = tf.function(Composition())(tf.strings.unicode_decode(texts, "UTF-8"))
    assert source.shape == rows.values.shape
    return [text.decode() for text in tf.strings.unicode_encode(rows, "UTF-8").numpy()]


def library(texts: list[str]) -> list[str]:
    from tokenizers import normalizers

    return list(map(normalizers.NFC().normalize_str, texts))


def test_texts(texts):
    different = [ascii(a) for a, b, c in zip(texts, normalize(texts), library(texts), strict=True) if b != c]
    assert different == []
    assert sum(text != unicodedata.normalize("NFC", text) for text in texts) > len(texts) / 4


@EVERY_CODE_POINT
def test_code_points(codes):
    assert normalize(codes) == library(codes)


def test_long_piles():
    texts = ["a" + "\u0323\u0301" * 300, "\u0301" * 500, "\u1100\u1161\u11a8" * 200, "", "plain"]
    assert normalize(texts) == library(texts)


@pytest.fixture(scope="module")
def tokenizer() -> NormalizedBytePairTokenizer:
    return NormalizedBytePairTokenizer.of_words(["café", "naïve", "가각", "good"], 320)


def test_ids_and_offsets(texts, tokenizer):
    graph = graph_tokenizer(tokenizer)
    ids, spans = tf.function(graph.with_offsets)(tf.constant(texts))
    expected = tokenizer.tokenize_with_offsets(texts)
    assert ids.to_list() == [[span.id for span in row] for row in expected] == tokenizer.tokenize(texts)
    assert graph(tf.constant(texts)).to_list() == ids.to_list()
    found = spans.to_list()
    different = [
        (ascii(text), [list(span[2:]) for span in row], other)
        for text, row, other in zip(texts, expected, found, strict=True)
        if [list(span[2:]) for span in row] != other
    ]
    assert different == []


def test_composed_characters_count_from_their_first_part(tokenizer):
    (row,) = tokenizer.tokenize_with_offsets(["a cafe\u0301!"])
    assert [(span.token, span.start, span.end) for span in row] == [("a", 0, 1), ("ĠcafÃ©", 2, 6), ("!", 7, 8)]
