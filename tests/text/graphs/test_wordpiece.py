"""WordPiece as TensorFlow ops: the same ids and offsets as in Python for every string."""

from __future__ import annotations

import itertools
import random
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")

from lmzoo.serving.allowed_ops import check_ops, list_ops  # noqa: E402
from lmzoo.text import Packing, Preprocessor, WordPieceTokenizer  # noqa: E402
from lmzoo.text.graphs import graph_packer, graph_tokenizer  # noqa: E402
from lmzoo.text.graphs.wordpiece import UNKNOWN_WORD  # noqa: E402
from tests.text.graph_checks import check_packer, check_saved_packer  # noqa: E402
from tests.text.varied import (  # noqa: E402
    EVERY_CODE_POINT,
    SAYINGS,
    decode,
    has_marks_in_order,
    sizes,
    symbol,
    varied_texts,
)

SPECIAL = list(WordPieceTokenizer.special_tokens)
# lowercase, strip_accents, split_on_cjk
OPTIONS = [
    (True, None, True),
    (True, False, True),
    (False, None, True),
    (False, True, True),
    (True, False, False),
    (False, True, False),
]
BROKEN = ["[MASK", "]", "[mask]", "[MA\x01SK]", "\x01", "\ue000", "\ue004", "\ue005", "[", "[UNK]x", "é", "\n"]
MARKS = (
    "\u0301\u0323\u0345\u0334\u302e\u302f\u1b44\U0001d165\U0001d16d\u08d4\u0e31\u0f73\u0f71\u200d\x00a\u1fb3\U0001d15e "
)
LETTERS = ["a", "é", "ß", "İ", "\U00010400", "\u0301", "\u302e", "я", "각", "가"]


def around_the_longest_word(rng: random.Random) -> str:
    """Draw words of about 100 characters after normalization, beyond which a word is unknown."""
    count = rng.choice([33, 34, 49, 50, 51, 99, 100, 101, 201])
    return rng.choice(["", "x "]) + rng.choice([*LETTERS, symbol(rng)]) * count + rng.choice(["", "!", "b", " y"])


def marks_in_any_order(rng: random.Random) -> str:
    return "".join(rng.choices(MARKS, k=rng.randrange(12)))


def char_pieces(tokenizer: WordPieceTokenizer, texts: Iterable[str]) -> list[str]:
    """Return a vocabulary of the texts' characters, of which some stay unknown."""
    characters = sorted(set(tokenizer.backend.normalizer.normalize_str(" ".join(texts))) | set("".join(SAYINGS)))
    known = [c for i, c in enumerate(characters) if i % 23 and c != " "]
    return [*SPECIAL, *known, *(f"##{c}" for c in known), "straße", "strasse", "##ße", "\ue000", "\ue005", "[mask]"]


@pytest.fixture(scope="module", params=sizes(12_000))
def texts(request: pytest.FixtureRequest) -> list[str | bytes]:
    return varied_texts(request.param, 1301, [*SPECIAL, *BROKEN], around_the_longest_word, marks_in_any_order)


def list_words(tokenizer: WordPieceTokenizer, text: str) -> list[str]:
    normal = tokenizer.backend.normalizer.normalize_str(text)
    return [word for word, _ in tokenizer.backend.pre_tokenizer.pre_tokenize_str(normal)]


@pytest.fixture(scope="module")
def preprocessor() -> Preprocessor:
    tokenizer = WordPieceTokenizer([*SPECIAL, "a", "##a", "b", "##b", "##c", ",", "é"])
    packing = Packing(start="[CLS]", end="[SEP]", between=("[SEP]",), segments=True)
    return Preprocessor(tokenizer, packing, sequence_length=11)


@pytest.mark.slow_cases(
    "some-False-None-True",
    "some-False-True-False",
    "some-False-True-True",
    "some-True-False-True",
    "some-True-None-True",
)
@pytest.mark.parametrize(("lowercase", "strip_accents", "split_on_cjk"), OPTIONS)
@pytest.mark.filterwarnings("ignore::lmzoo.text.TextWarning")
def test_ids_equal_the_python_path(
    texts: list[str | bytes], lowercase: bool, strip_accents: bool | None, split_on_cjk: bool
) -> None:
    texts = texts if strip_accents is None else texts[:3000]
    strings = decode(texts)
    bare = WordPieceTokenizer(SPECIAL, lowercase, strip_accents, split_on_cjk)
    tokenizer = WordPieceTokenizer(char_pieces(bare, strings), lowercase, strip_accents, split_on_cjk)
    expected = tokenizer.tokenize(texts)
    unknown = np.mean(np.concatenate(expected) == tokenizer.token_to_id("[UNK]"))
    assert np.mean([len(ids) for ids in expected]) > 10
    assert 0.02 < unknown < 0.5, "the vocabulary must neither know everything nor nothing"
    graph = graph_tokenizer(tokenizer)
    ids = graph(tf.constant(texts))
    assert ids.dtype == tf.int32
    assert [(t, a, b) for t, a, b in zip(texts, expected, ids.to_list(), strict=True) if a != b] == []
    ids_with_offsets, spans = graph.with_offsets(tf.constant(texts))
    assert ids_with_offsets.to_list() == expected
    in_order = 0
    for text, row, actual in zip(strings, tokenizer.tokenize_with_offsets(texts), spans.to_list(), strict=True):
        if not has_marks_in_order(text):
            continue  # Hugging Face's offsets are then those of the place that a mark moves to
        in_order += 1
        assert actual == [[piece.start, piece.end] for piece in row], ascii(text)
    assert in_order > 0.8 * len(texts)


@EVERY_CODE_POINT
@pytest.mark.parametrize("options", OPTIONS[::2])
def test_every_code_point(codes: list[str], options: tuple[bool, bool | None, bool]) -> None:
    texts = ["a".join(codes[i : i + 64]) for i in range(0, len(codes), 64)]
    assert_same_words(WordPieceTokenizer(SPECIAL, *options), texts)


@pytest.mark.slow
def test_combining_marks_are_sorted_like_in_python() -> None:
    # Marks that stripping accents leaves, one of each combining class. U+0E31 is stripped but marks do not pass it.
    staying = "\u302e\u1b44\u08d4\U00011446\U0001d165\U0001d16d\U0001d15e"
    marks = [chr(c) for c in range(0x110000) if unicodedata.combining(chr(c))]
    texts = [
        " ".join(f"a{first}{mark}b{mark}{between}{second}" for mark in marks)
        for first, between, second in itertools.product(staying, ["", "\u0e31"], staying)
    ]
    assert_same_words(WordPieceTokenizer(SPECIAL), texts)


def assert_same_words(tokenizer: WordPieceTokenizer, texts: list[str]) -> None:
    normalize, split = tokenizer.backend.normalizer.normalize_str, tokenizer.backend.pre_tokenizer.pre_tokenize_str
    actual = graph_tokenizer(tokenizer).words(tf.constant(texts)).to_list()
    for text, words in zip(texts, actual, strict=True):
        expected = [word if len(word) <= 100 else UNKNOWN_WORD for word, _ in split(normalize(text))]
        assert [word.decode() for word in words] == expected, f"in {text!a:.60}"


def test_private_characters_in_a_text_are_no_special_tokens() -> None:
    tokenizer = WordPieceTokenizer([*SPECIAL, "[", "]", "mask", "x"])
    texts = ["[MASK]x[mask]", "[MA\ue000SK]", "\ue000\ue001\ue002\ue003\ue004\ue005", "[[MASK]]", "[CLS][SEP]"]
    expected = [[4, 8, 5, 7, 6], [5, 7, 6], [], [5, 4, 6], [2, 3]]
    assert tokenizer.tokenize(texts) == expected
    assert graph_tokenizer(tokenizer)(texts).to_list() == expected


def test_other_objects_are_refused() -> None:
    with pytest.raises(TypeError, match=r"a tokenizer of lmzoo\.text can run in a graph, got str"):
        graph_tokenizer("vocab.txt")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sequence_length", "between", "segments"),
    [
        (4, ("[SEP]",), True),
        (5, ("[SEP]", "[MASK]"), False),
        (6, (), True),
        (7, ("[SEP]",), True),
        (64, ("[SEP]",), False),
    ],
)
@pytest.mark.filterwarnings("ignore::lmzoo.text.TextWarning")
def test_packing_equals_the_python_path(
    preprocessor: Preprocessor, sequence_length: int, between: tuple[str, ...], segments: bool
) -> None:
    packing = Packing(start="[CLS]", end="[SEP]", between=between, segments=segments)
    preprocessor = Preprocessor(preprocessor.tokenizer, packing, sequence_length)
    grid = list(itertools.product(range(8), range(8)))
    texts, pairs = ["ab, " * a for a, _ in grid], ["bc" * b + " a" * (b % 3) for _, b in grid]
    pack = graph_packer(preprocessor)
    for inputs in [(texts,), (pairs,), (texts, pairs), (texts[:1],), (texts[:1], pairs[:1]), ([],)]:
        check_packer(pack, preprocessor, *inputs)


@pytest.mark.slow
def test_truncated_marks_rows(preprocessor: Preprocessor) -> None:
    pack = graph_packer(preprocessor)  # 11 tokens: 9 of a text, 8 of a pair
    assert pack(["a " * 9, "a " * 10, ""])["truncated"].numpy().tolist() == [False, True, False]
    pairs = pack(["a " * 4, "a " * 4, "a " * 5, ""], ["b " * 4, "b " * 5, "b " * 4, "b " * 9])
    assert pairs["truncated"].numpy().tolist() == [False, True, True, True]


@pytest.mark.slow
def test_steps_in_python_are_refused(preprocessor: Preprocessor) -> None:
    class MarkupRemover(Preprocessor):
        def encode(self, texts, pairs=None):
            return super().encode([text.replace("<br>", " ") for text in texts], pairs)

    class Renamed(Preprocessor):
        """A subclass without methods of its own."""

    parts = preprocessor.tokenizer, preprocessor.packing
    with pytest.raises(ValueError, match=r"A MarkupRemover has a `encode` of its own, .* exported model"):
        graph_packer(MarkupRemover(*parts))
    assert (
        graph_packer(Renamed(*parts))(["a"])["token_ids"].numpy().tolist() == preprocessor(["a"])["token_ids"].tolist()
    )


@pytest.mark.slow
def test_a_saved_graph_needs_only_tensorflow_text(preprocessor: Preprocessor, tmp_path: Path) -> None:
    texts = ["Aé,a [MASK] a\u0301B\x01 \u302e\u1b44", "", "ab" * 51 + " a", "a, " * 20, "\ufffd b 中"]
    check_saved_packer(preprocessor, [text.encode() for text in texts], tmp_path, with_tensorflow_text=True)


def test_servers_have_the_ops(preprocessor: Preprocessor) -> None:
    strings = tf.TensorSpec([None], tf.string)
    function = tf.function(graph_packer(preprocessor).__call__).get_concrete_function(strings, strings)
    graph = function.graph.as_graph_def()
    check_ops(graph)
    assert not list_ops(graph) & {"VarHandleOp", "LookupTableInsertV2"}
