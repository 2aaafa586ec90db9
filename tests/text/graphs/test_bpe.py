"""Byte-level BPE as TensorFlow ops: the same ids and offsets as in Python for every string."""

from __future__ import annotations

import itertools
import json
import lzma
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from lmzoo.serving.allowed_ops import list_ops  # noqa: E402
from lmzoo.text import BytePairTokenizer, Packing, Preprocessor  # noqa: E402
from lmzoo.text.graphs.bpe import LETTER, NUMBER, OTHER, WHITESPACE, BytePairGraph, character_kinds  # noqa: E402
from lmzoo.text.tokenizers.bpe import BYTE_TOKENS  # noqa: E402
from tests.text.graph_checks import check_packer, run_saved  # noqa: E402
from tests.text.trained import train_byte_pairs  # noqa: E402
from tests.text.varied import EVERY_CODE_POINT, phrase, sizes, symbol, varied_texts  # noqa: E402
from tests.text.varied import SAYINGS as COMMON  # noqa: E402

SPECIAL = list(BytePairTokenizer.special_tokens)
BASE = [*SPECIAL, *BYTE_TOKENS]
SPACES = [*" \n\t\x0b\x0c\r\x1c\x1f\x85\u00a0\u1680\u2003\u2028\u202f\u200b\u3000\ufeff\0", "  ", "\r\n", " \n "]
SAYINGS = [
    *COMMON,
    *"they'll say; we'd've 'tis DON'T I'm ''s 'ss x's's don't're".split(),  # noqa: SIM905
]
PARTS = "< > <mask mask> <<mask>> <MASK> <s <s>> </s <pad> 's ' é a".split()  # noqa: SIM905


def repetition(rng: random.Random) -> str:
    return rng.choice(["", " ", "x"]) + rng.choice([*"a1!é東 \n", "'s", "ab", symbol(rng)]) * rng.randrange(40)


def whitespace_and_contractions(rng: random.Random) -> str:
    return "".join(rng.choices([*SPACES, "'s", "'ll", "'", "x", "1", "!", symbol(rng)], k=rng.randrange(14)))


def phrases(rng: random.Random) -> str:
    return phrase(rng, SAYINGS, SPACES)


def make_texts(count: int) -> list[str | bytes]:
    parts = [*SPECIAL, *SPECIAL, *PARTS, *SPACES]
    return varied_texts(count, 1301, parts, repetition, whitespace_and_contractions, phrases, words=SAYINGS)


@pytest.fixture(scope="module", params=sizes(14_000))
def texts(request: pytest.FixtureRequest) -> list[str | bytes]:
    return make_texts(request.param)


@pytest.fixture(scope="module")
def tokenizer(root: Path) -> BytePairTokenizer:
    """Return a tokenizer that Hugging Face's trainer trained."""
    trained = train_byte_pairs(root, make_texts(3000))
    return BytePairTokenizer(trained.get_vocab(), json.loads(trained.to_str())["model"]["merges"])


def assert_equals_python(tokenizer: BytePairTokenizer, texts: Iterable[str | bytes]) -> None:
    texts = list(texts)
    ids, spans = BytePairGraph(tokenizer).with_offsets(tf.constant(texts, tf.string))
    assert ids.dtype == spans.dtype == tf.int32
    pairs = zip(texts, tokenizer.tokenize(texts), ids.to_list(), strict=True)
    assert [(text, expected, actual) for text, expected, actual in pairs if expected != actual] == []
    for text, row, offsets in zip(texts, tokenizer.tokenize_with_offsets(texts), spans.to_list(), strict=True):
        assert offsets == [[piece.start, piece.end] for piece in row], ascii(text)


@pytest.mark.filterwarnings("ignore::lmzoo.text.TextWarning")
def test_ids_equal_the_python_path(texts: list[str | bytes], tokenizer: BytePairTokenizer) -> None:
    lengths = np.array([len(ids) for ids in tokenizer.tokenize(texts)])
    size = np.array([len(text.encode() if isinstance(text, str) else text) for text in texts])
    assert 1.5 < size.sum() / lengths.sum() < 8, "merges must be at work, and leave something to do"
    assert_equals_python(tokenizer, texts)


@pytest.mark.parametrize("longest", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_all_short_texts(tokenizer: BytePairTokenizer, longest: int) -> None:
    """The texts have the characters of the splitting rules in every order."""
    for parts in (["'", "s", "l", "e", " ", "\n", "1", "!"], [" ", "\u00a0", "'", "a", "<mask>", "<s>"]):
        texts = ("".join(text) for n in range(longest + 1) for text in itertools.product(parts, repeat=n))
        assert_equals_python(tokenizer, texts)


@pytest.mark.slow_cases("a{0}1{0}!-some")
@EVERY_CODE_POINT
@pytest.mark.parametrize("form", ["a{0}1{0}!", " {0}s' {0}"])
def test_every_code_point(form: str, codes: list[str]) -> None:
    tokenizer = BytePairTokenizer(BASE, [])
    texts = ["".join(map(form.format, codes[i : i + 64])) for i in range(0, len(codes), 64)]
    actual = BytePairGraph(tokenizer).words(texts).values.numpy()
    words = (text[slice(*span)] for text in texts for _, span in tokenizer.backend.pre_tokenizer.pre_tokenize_str(text))
    assert [word.decode() for word in actual] == list(words)


def test_kinds_of_characters() -> None:
    starts, kinds = character_kinds()
    assert (starts[0], np.diff(starts).min() > 0, len(starts) == len(kinds)) == (0, True, True)
    examples = {WHITESPACE: " \n\x85\u3000", LETTER: "aé東\U00010400", NUMBER: "1²Ⅷ٣", OTHER: "!'\0\u0301€👍\U0010ffff"}
    for kind, characters in examples.items():
        actual = kinds[starts.searchsorted([ord(c) for c in characters], side="right") - 1]
        assert actual.tolist() == [kind] * len(characters)


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_every_code_point_before_a_mask(step: int) -> None:
    spaces = [c for c in map(chr, range(0x3100)) if c.isspace()]
    assert len(spaces) > 20
    assert_equals_python(
        BytePairTokenizer(BASE, []), map("x {}<mask>".format, [*spaces, *map(chr, range(0, 0x3100, step))])
    )


@pytest.mark.quick_cases("15")
@pytest.mark.parametrize("lists", [5, pytest.param(15, marks=pytest.mark.slow)])
def test_merges_in_any_order(lists: int) -> None:
    """The merges overlap, come twice, or come before their parts, unlike any trainer's."""
    rng, texts = random.Random(1709), ["a" * n for n in range(1, 70)]
    texts += ["".join(rng.choices("aabc ", k=rng.randrange(60))) for _ in range(20 * lists)]
    for _ in range(lists):
        tokens, merges = [*"abcĠ"], []
        for _ in range(rng.randrange(40)):
            merges.append((rng.choice(tokens), rng.choice(tokens)))
            tokens.append("".join(merges[-1]))
        rng.shuffle(merges)
        assert_equals_python(BytePairTokenizer([*dict.fromkeys([*BASE, *tokens])], merges), texts)


@pytest.mark.parametrize("batch", [[], [""], ["", "", ""], ["a"], ["", "a", ""], ["<mask>"], [" "]], ids=repr)
def test_small_batches(tokenizer: BytePairTokenizer, batch: list[str]) -> None:
    assert_equals_python(tokenizer, batch)
    assert_equals_python(BytePairTokenizer(BASE, []), batch)


@pytest.mark.parametrize("length", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_long_texts(tokenizer: BytePairTokenizer, length: int) -> None:
    rng = random.Random(1301)
    texts = [
        " ".join(rng.choices(SAYINGS, k=length // 5))[:length],
        "a" * length,
        " " * length,
        "<mask>" * (length // 5),
    ]
    assert_equals_python(tokenizer, [*texts, "".join(rng.choices("abcdefgh東é", k=length // 5))])


@pytest.fixture(scope="module")
def published(shared: Callable[[str], Path]) -> BytePairTokenizer:
    folder = shared("data/tokenizers")
    vocabulary = json.loads((folder / "gpt2/encoder.json").read_text("utf-8"))
    merges = (folder / "gpt2/vocab.bpe").read_bytes().decode().split("\n")[1:-1]
    return BytePairTokenizer([*SPECIAL, *sorted(vocabulary, key=vocabulary.__getitem__)], merges)


@pytest.mark.quick_cases("1")
@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_real_lines(published: BytePairTokenizer, shared: Callable[[str], Path], step: int) -> None:
    with lzma.open(shared("data/pretrain/books-dev.txt.xz"), "rt", encoding="utf-8") as file:
        lines = [line for line in file.read().split("\n") if line]
    assert len(lines) > 3000
    assert_equals_python(published, lines[::step])


@pytest.mark.quick_cases("all")
@pytest.mark.filterwarnings("ignore::lmzoo.text.TextWarning")
def test_varied_texts_with_published_merges(texts: list[str | bytes], published: BytePairTokenizer) -> None:
    assert_equals_python(published, texts)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::lmzoo.text.TextWarning")
def test_packing_equals_the_python_path(tokenizer: BytePairTokenizer) -> None:
    packing = Packing(start="<s>", end="</s>", between=("</s>", "</s>"), segments=False)
    preprocessor = Preprocessor(tokenizer, packing, sequence_length=11)
    pytest.importorskip("tensorflow_text")
    from lmzoo.text.graphs import graph_packer

    texts = ["a <mask> film", "", "it's " * 9]
    for inputs in [(texts,), (texts, texts[::-1])]:
        check_packer(graph_packer(preprocessor), preprocessor, *inputs)


def as_function(graph: BytePairGraph) -> tf.types.experimental.PolymorphicFunction:
    return tf.function(graph.__call__, input_signature=[tf.TensorSpec([None], tf.string)])


PRINT_IDS_OF_BATCHES = """
for size in (1, 2, 6):
    print(*(number for i in range(0, len(texts), size) for number in loaded.ids(texts[i : i + size]).values.numpy()))
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::lmzoo.text.TextWarning")
def test_a_saved_graph_needs_only_tensorflow(tokenizer: BytePairTokenizer, tmp_path: Path) -> None:
    module = tf.Module()
    module.graph = BytePairGraph(tokenizer)
    module.ids = as_function(module.graph)
    ops = list_ops(module.ids.get_concrete_function().graph.as_graph_def())
    assert not ops & {"VarHandleOp", "LookupTableInsertV2", "MutableHashTableV2"}
    texts = ["It's a\u3000<mask>!", "", "<s>  naïve 東京 ", "aaaa\0a\n'tis", "\x85 ½<<mask>>", " film"]
    encoded = [*(text.encode() for text in texts[:-1]), texts[-1].encode() + b"\xff"]
    expected = list(itertools.chain(*tokenizer.tokenize(encoded)))
    assert run_saved(module, encoded, PRINT_IDS_OF_BATCHES, tmp_path) == [expected] * 3
