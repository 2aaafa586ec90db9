"""The graph path against the Python path: the same ids for every string."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")

from lmzoo.text import Packing, Preprocessor, TextNotice, WordPieceTokenizer  # noqa: E402
from lmzoo.text.graph import graph_packer, graph_tokenizer  # noqa: E402
from lmzoo.text.unicode_map import character_map  # noqa: E402

SPECIAL = list(WordPieceTokenizer.special_tokens)
OPTIONS = [(True, None), (True, False), (False, None), (False, True)]  # lowercase, strip_accents
SCRIPTS = [
    *((0x20, 0x7E), (0x00, 0x1F), (0x7F, 0x24F), (0x250, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x590, 0x5FF)),
    *((0x600, 0x6FF), (0x8D0, 0x8FF), (0x900, 0x97F), (0xC00, 0xCFF), (0xE00, 0xE7F), (0x1100, 0x11FF)),
    *((0x13A0, 0x13FF), (0x1B00, 0x1BFF), (0x1C80, 0x1CBF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x20D0, 0x2BFF)),
    *((0x3000, 0x30FF), (0x4DF0, 0x4E10), (0xA640, 0xA7FF), (0xAB70, 0xAC40), (0xD780, 0xD7FF), (0xE000, 0xE010)),
    *((0xF900, 0xFA6F), (0xFB00, 0xFDFF), (0xFE00, 0xFFFF), (0x10400, 0x1044F), (0x11100, 0x1115F), (0x1D15A, 0x1D1C5)),
    *((0x1E000, 0x1E02F), (0x1E900, 0x1E95F), (0x1F1E0, 0x1F64F), (0x2A6D0, 0x2A710), (0xE0000, 0xE01FF)),
]
SAYINGS = """It's 9 o'clock: “Straße”, naïve café… and U.S.A.! İstanbul'da ΟΔΥΣΣΕΥΣ ΣΟΦΟΣ, Москва́ Ёлка; ЁЖ
Tiếng Việt: Nguyễn Thị Hằng, 한국어를 배웁니다 (서울), 日本語のテキスト・カタカナ、東京タワー 2024年 我爱北京天安门。
हिन्दी में लिखा है — क़लम; ภาษาไทยก็ได้ น้ำ; עִבְרִית שָׁלוֹם, العَرَبِيَّةُ لُغَةٌ; ﬁne ﬂow ½ ² ™ Ⅷ ㎏ 👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇩🇪 e\u0301\u0323 Å Å
#hashtag @user https://example.org/a?b=c&d=%20 x=y+z; f(x)≤∞ “”‘’«»‹›—–•·†‡""".split()
INVALID = [b"\xff", b"\xc3", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x80\x80\xaf", b"\xf4\x90\x80\x80", b"\xc0\xaf", b"\xf8\x88"]


def symbol(rng: random.Random) -> str:
    low, high = rng.choice(SCRIPTS) if rng.random() < 0.9 else (0, 0x10FFFF)
    code = rng.randint(low, high)
    return "\ufffe" if 0xD800 <= code < 0xE000 else chr(code)


def varied_text(rng: random.Random) -> str | bytes:
    kind = rng.randrange(8)
    if kind == 0:
        return "".join(symbol(rng) for _ in range(rng.randrange(30)))
    if kind == 1:
        low, high = rng.choice(SCRIPTS)
        return "".join(chr(rng.randint(low, high)) + " " * (rng.random() < 0.2) for _ in range(rng.randrange(25)))
    if kind == 2:  # special tokens, whole and broken
        parts = [*SPECIAL, "[MASK", "]", "[mask]", "[MA\x01SK]", "\x01", "\x05", "\x06", "[", "[UNK]x", " ", "é", "ok", "\n"]
        return "".join(rng.choices([*parts, symbol(rng)], k=rng.randrange(9)))
    if kind == 3:  # around the longest word, counted in characters after normalisation
        letter = rng.choice(["a", "é", "ß", "İ", "\U00010400", "\u0301", "\u302e", "я", "각", "가", symbol(rng)])
        return "x " * rng.randrange(2) + letter * rng.choice([33, 34, 49, 50, 51, 99, 100, 101, 201]) + rng.choice(["", "!", "b", " y"])
    if kind == 4:  # invalid UTF-8
        parts = [rng.choice(SAYINGS).encode(), rng.choice(INVALID), rng.choice(SPECIAL).encode(), symbol(rng).encode()]
        return b"".join(rng.choices([*parts, rng.randbytes(3)], k=rng.randrange(6)))
    if kind == 5:  # combining marks in any order
        marks = "\u0301\u0323\u0345\u0334\u302e\u302f\u1b44\U0001d165\U0001d16d\u08d4\u0e31\u0f73\u0f71\u200d\x00a\u1fb3\U0001d15e "
        return "".join(rng.choices(marks, k=rng.randrange(12)))
    words = rng.choices(SAYINGS, k=rng.randrange(1, 12))
    changes = [str.upper, str.lower, str.title, str.casefold, str]
    return rng.choice([" ", "  ", "\u3000", "\t"]).join(rng.choice(changes)(word) for word in words)


def char_pieces(tokenizer: WordPieceTokenizer, texts: Iterable[str]) -> list[str]:
    """A vocabulary that shows every character of the texts, but for some that stay unknown."""
    characters = sorted(set(tokenizer.backend.normalizer.normalize_str(" ".join(texts))) | set("".join(SAYINGS)))
    known = [c for i, c in enumerate(characters) if i % 23 and c != " "]
    return [*SPECIAL, *known, *(f"##{c}" for c in known), "straße", "strasse", "##ße", "\x01", "\x06", "[mask]"]


@pytest.fixture(scope="module")
def texts() -> list[str | bytes]:
    rng = random.Random(1301)
    fixed = ["", " ", "\n\t", "\0", "\ufeff", "a\0b", "\ufffd", "ΣΑΣ Σ", "\U0010ffff", b"", b"\xff"]
    return [*fixed, *(varied_text(rng) for _ in range(12_000))]


def words_of(tokenizer: WordPieceTokenizer, text: str) -> list[str]:
    normal = tokenizer.backend.normalizer.normalize_str(text)
    return [word for word, _ in tokenizer.backend.pre_tokenizer.pre_tokenize_str(normal)]


@pytest.mark.parametrize(("lowercase", "strip_accents"), OPTIONS)
@pytest.mark.filterwarnings("ignore::lmzoo.text.TextNotice")
def test_ids_equal_the_python_path(texts: list[str | bytes], lowercase: bool, strip_accents: bool | None) -> None:
    strings = [text if isinstance(text, str) else text.decode("utf-8", "replace") for text in texts]
    bare = WordPieceTokenizer(SPECIAL, lowercase, strip_accents)
    tokenizer = WordPieceTokenizer(char_pieces(bare, strings), lowercase, strip_accents)
    expected = tokenizer.tokenize(texts)
    assert sum(map(len, expected)) > 100_000
    assert 0.02 < np.mean(np.concatenate(expected) == tokenizer.token_to_id("[UNK]")) < 0.5
    ids = graph_tokenizer(tokenizer)(tf.constant(texts))
    assert ids.dtype == tf.int32
    different = [(t, a, b) for t, a, b in zip(texts, expected, ids.to_list(), strict=True) if a != b]
    assert different == []
    assert len(texts) > 10_000


@pytest.mark.parametrize(("lowercase", "strip_accents"), OPTIONS[::2])
def test_every_code_point(lowercase: bool, strip_accents: bool | None) -> None:
    tokenizer = WordPieceTokenizer(SPECIAL, lowercase, strip_accents)
    codes = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    texts = ["a".join(codes[i : i + 64]) for i in range(0, len(codes), 64)]
    found = graph_tokenizer(tokenizer).words(tf.constant(texts)).to_list()
    for text, words in zip(texts, found, strict=True):
        wanted = ["\x02" if len(word) > 100 else word for word in words_of(tokenizer, text)]
        assert [word.decode() for word in words] == wanted, f"in U+{ord(text[0]):04X}..U+{ord(text[-1]):04X}"


def test_order_of_combining_marks() -> None:
    tokenizer = WordPieceTokenizer(SPECIAL)
    table = character_map(True, None)
    marks = [chr(c) for c in range(0x1F000) if unranked(table, c) != c and not 0xD800 <= c < 0xE000]
    assert 50 < len(marks) < 200
    between = ["", "\u0301", "\u0e31", "\u200d", "a", " ", ",", "\u0f73"]
    texts = ["".join(text) for text in itertools.product(marks, between, marks)]
    found = graph_tokenizer(tokenizer).words(tf.constant(texts)).to_list()
    assert sum(len(text) == 2 and words_of(tokenizer, text) != [text] for text in texts) > 500
    for text, words in zip(texts, found, strict=True):
        assert [word.decode() for word in words] == words_of(tokenizer, text), ascii(text)


def unranked(table, code: int) -> int:
    """What the map makes of a combining mark; its own code for anything else."""
    run = table.starts.searchsorted(code, side="right") - 1
    value = int(table.base[run, 0] + table.step[run, 0] * code)
    return value if value > 0x10FFFF else code
