"""ELMo's tokenizers as TensorFlow ops: the same words, characters and rows as in Python for every string."""

from __future__ import annotations

import gzip
import itertools
import lzma
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from lmzoo.serving.allowed_ops import check_ops, list_ops  # noqa: E402
from lmzoo.text import CharacterTokenizer, Packing, Preprocessor, WordTokenizer  # noqa: E402
from lmzoo.text.graphs import graph_tokenizer  # noqa: E402
from lmzoo.text.word_splitting import list_words  # noqa: E402
from tests.text.graph_checks import check_packer, check_saved_packer, packing_module  # noqa: E402
from tests.text.varied import EVERY_CODE_POINT, phrase, sizes, varied_texts  # noqa: E402

PACKING = Packing(start="", end="", between=("</S>", "<S>"), segments=False)
SAYINGS = """It's they’re don't DON’T shouldn't've o'clock mother's-in-law 'tis ``hi'' the a''s ’’re
U.S. e.g., U.S... a.b.c I.B.M.'s
3.5 1,000.25 $12.50 ٣.٤ well-known -- ... ?! naïve re\u0301sume\u0301 \u0301a Straße москва́ 我爱北京。 東京タワー हिन्दी
क्\u200dष می\u200cخواهم co\u00adop 👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇩🇪 ❤️ 1️⃣ a\u200d👩 -\u200d👩
https://a.org/?b=c @user #tag a_b <S> </S>""".split()  # noqa: SIM905
PARTS = [*"nN'’tTsSmdrelLv.,,-‐‑1٣a_éx`。…$€😀👩🏽\u0301\u200d\u200c\u200b\ufeff\u3000\0\x01\x85\ufffd  "]
SCRIPTS = [(0, 0x2FF), (0, 0x2FFF), (0, 0x1FFFF), (0, 0x10FFFF)]


def around_the_longest_word(rng: random.Random) -> str:
    """Draw words of about as many bytes as a word may have."""
    letter = rng.choice(["a", "é", "中", "𐐀", "e\u0301", "-a"])
    return rng.choice(["", "x", "xy "]) + letter * rng.choice([11, 12, 13, 15, 16, 17, 23, 24, 25, 47, 48, 49, 99])


@pytest.fixture(scope="module", params=sizes(12_000))
def texts(request: pytest.FixtureRequest) -> list[str | bytes]:
    kinds = [around_the_longest_word, lambda rng: phrase(rng, SAYINGS, [" ", "  ", "\u2028", ""])]
    return [*SAYINGS, *varied_texts(request.param, 1301, [*PARTS, "n't"], *kinds, words=SAYINGS, scripts=SCRIPTS)]


@pytest.fixture(scope="module")
def graph() -> tf.Module:
    return graph_tokenizer(CharacterTokenizer())


def assert_same_words(graph: tf.Module, texts: list[str]) -> None:
    for start in range(0, len(texts), 20_000):
        batch = texts[start : start + 20_000]
        for text, row in zip(batch, graph.words(tf.constant(batch)).to_list(), strict=True):
            assert [word.decode() for word in row] == list_words(text), ascii(text)


# === Tokenizers ===


@pytest.mark.filterwarnings("ignore::lmzoo.text.TextWarning")
@pytest.mark.parametrize("width", [4, 50])
def test_characters_equal_the_python_path(texts: list[str | bytes], width: int) -> None:
    tokenizer = CharacterTokenizer(width)
    words = tokenizer.tokenize(texts)
    characters = graph_tokenizer(tokenizer)(tf.constant(texts))
    assert characters.dtype == tf.int32
    assert characters.shape.as_list() == [len(texts), None, width]
    assert characters.row_lengths().numpy().tolist() == [len(row) for row in words]
    flat = list(itertools.chain.from_iterable(words))
    assert len(flat) > 4.2 * len(texts)
    np.testing.assert_array_equal(characters.values, tokenizer.as_array(flat, len(flat)))


@pytest.mark.filterwarnings("ignore::lmzoo.text.TextWarning")
def test_ids_equal_the_python_path(texts: list[str | bytes]) -> None:
    words = sorted({word for row in CharacterTokenizer().tokenize(texts[::2]) for word in row})
    tokenizer = WordTokenizer(["<S>", "</S>", "<UNK>", *words[::3], "n't", *words[:50]])
    ids = graph_tokenizer(tokenizer)(tf.constant(texts))
    assert ids.dtype == tf.int32
    assert ids.to_list() == tokenizer.tokenize(texts)
    unknown = np.mean(ids.values == tokenizer.token_to_id("<UNK>"))
    assert 0.1 < unknown < 0.9


def test_lowercase_lookup_equals_the_python_path() -> None:
    texts = ["FILM Film film", "ÉTÉ Été", "ΟΔΟΣ οδος οδοσ", "Straße STRASSE İstanbul", "<S> <UNK> x"]
    words = ["film", "Film", "été", "οδος", "strasse", "i\u0307stanbul", "istanbul"]
    tokenizer = WordTokenizer(["<S>", "</S>", "<UNK>", *words], lowercase=True)
    assert graph_tokenizer(tokenizer)(tf.constant(texts)).to_list() == tokenizer.tokenize(texts)


@pytest.mark.parametrize("longest", [4, pytest.param(6, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "parts",
    [["n", "'", "t", ".", "-", "\u0301", " "], ["'", "s", "e", "r", ".", "1", "a"], list("👩\u200da.! ")],
    ids=ascii,
)
def test_every_short_string(graph: tf.Module, parts: list[str], longest: int) -> None:
    texts = ["".join(text) for n in range(1, longest + 1) for text in itertools.product(parts, repeat=n)]
    assert_same_words(graph, texts)


@EVERY_CODE_POINT
def test_every_code_point(graph: tf.Module, codes: list[str]) -> None:
    assert_same_words(graph, [f"a{c}{c}b {c}.{c}1" for c in codes[:0x30000:3]])
    assert_same_words(graph, ["a".join(codes[i : i + 64]) for i in range(0, len(codes), 64)])


def test_words_that_are_markers(graph: tf.Module) -> None:
    # The splitter splits markers, but a graph may get words.
    words = ["<S>", "</S>", "<s>", "<UNK>", "", "x" * 48, "é" * 25, "a\0"]
    np.testing.assert_array_equal(graph.of_words(tf.constant(words)), CharacterTokenizer().as_array(words, len(words)))


def test_texts_without_words(graph: tf.Module) -> None:
    traced = tf.function(graph.__call__, input_signature=[tf.TensorSpec([None], tf.string)])
    for texts, call in itertools.product([[], [""], ["", " \n"]], [graph, traced]):
        characters = call(tf.constant(texts, tf.string))
        assert characters.values.shape == (0, 50)
        assert characters.row_lengths().numpy().tolist() == [0] * len(texts)


# === Real text ===


@pytest.mark.quick_cases("data/pos_ewt/en_ewt-ud-dev.conllu.gz")
@pytest.mark.parametrize("path", ["data/sst2/stsa.binary.train", "data/pos_ewt/en_ewt-ud-dev.conllu.gz"])
def test_real_lines(graph: tf.Module, shared: Callable[[str], Path], path: str) -> None:
    file = shared(path)
    text = (gzip.decompress if file.suffix == ".gz" else bytes)(file.read_bytes()).decode("utf-8")
    lines = [line.removeprefix("# text = ") for line in text.split("\n") if "\t" not in line]
    assert len(lines) > 1000
    assert_same_words(graph, lines)


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_books(graph: tf.Module, shared: Callable[[str], Path], step: int) -> None:
    lines = lzma.decompress(shared("data/pretrain/books-dev.txt.xz").read_bytes()).decode("utf-8").split("\n")
    assert_same_words(graph, lines[::step])


# === Packing ===


@pytest.mark.slow_cases("tokenizer0-5")
@pytest.mark.parametrize(
    ("tokenizer", "sequence_length"),
    [
        pytest.param(tokenizer, length, marks=[] if i == j == 0 else [pytest.mark.slow])
        for i, tokenizer in enumerate([CharacterTokenizer(), CharacterTokenizer(7), WordTokenizer.of_words("abc", 11)])
        for j, length in enumerate([5, 8, 3])
    ],
)
def test_packing_equals_the_python_path_in_ops_that_servers_know(
    tokenizer: CharacterTokenizer | WordTokenizer, sequence_length: int
) -> None:
    preprocessor = Preprocessor(tokenizer, PACKING, sequence_length)
    rng = random.Random(1302)
    first, second = ([" ".join(rng.choices("abcé.", k=rng.randrange(7))) for _ in range(211)] for _ in range(2))
    module = packing_module(preprocessor)
    batches = [(first, second), (first[:1], second[:1]), (["", "a"], ["", ""]), (["", ""], ["", ""]), ([], [])]
    for texts, second_texts in batches:
        check_packer(module.packer, preprocessor, texts)
        check_packer(module.packer, preprocessor, texts, second_texts)
        check_packer(module.pair, preprocessor, texts, second_texts)
    definition = module.pair.get_concrete_function().graph.as_graph_def()
    check_ops(definition)
    assert not list_ops(definition) & {"VarHandleOp", "LookupTableInsertV2"}


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", [CharacterTokenizer(), WordTokenizer(["<S>", "</S>", "<UNK>", "n't", "é", "b"])])
def test_a_saved_graph_needs_only_tensorflow(tokenizer: CharacterTokenizer | WordTokenizer, tmp_path: Path) -> None:
    texts = [*(text.encode() for text in ["Don't!", "", "é" * 30 + " b", "a, " * 20, "👩‍👩‍👧 中\0 <S>"]), b"a\xffb"]
    check_saved_packer(Preprocessor(tokenizer, PACKING, sequence_length=9), texts, tmp_path)
