"""Random texts to compare tokenizers on: all scripts, broken special tokens, invalid UTF-8, words."""

from __future__ import annotations

import functools
import random
import unicodedata
from collections.abc import Callable, Sequence

import pytest

SCRIPTS = [
    *((0x20, 0x7E), (0x00, 0x20), (0x7F, 0x24F), (0x250, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x590, 0x6FF)),
    *((0x8D0, 0x8FF), (0x900, 0x97F), (0xC00, 0xCFF), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x13A0, 0x13FF)),
    *((0x1B00, 0x1BFF), (0x1C80, 0x1CBF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x218F), (0x2190, 0x2BFF)),
    *((0x3000, 0x30FF), (0x3300, 0x33FF), (0x4DF0, 0x4EFF), (0xA640, 0xA7FF), (0xAB70, 0xAC40), (0xAC00, 0xACFF)),
    *((0xD780, 0xD7FF), (0xE000, 0xE010), (0xF900, 0xFA6F), (0xFB00, 0xFDFF), (0xFE00, 0xFFFF), (0x10100, 0x1018F)),
    *((0x10400, 0x1044F), (0x11100, 0x1115F), (0x11660, 0x116CF), (0x1D15A, 0x1D1C5), (0x1D400, 0x1D7FF)),
    *((0x1E000, 0x1E02F), (0x1E900, 0x1E95F), (0x1F100, 0x1F64F), (0x20000, 0x20010), (0x2A6D0, 0x2A710)),
    *((0x2F800, 0x2F820), (0xE0000, 0xE01FF), (0xF0000, 0xF0010)),
    *[(0, 0x10FFFF)] * 5,
]
SAYINGS = """It's 9 o'clock: “Straße”, naïve café… and U.S.A.! İstanbul'da ΟΔΥΣΣΕΥΣ ΣΟΦΟΣ, Москва́ Ёлка; ЁЖ
Tiếng Việt: Nguyễn Thị Hằng, 한국어를 배웁니다 (서울), 日本語のテキスト・カタカナ、ｶﾅ 東京タワー 2024年 我爱北京天安门。
हिन्दी में लिखा है — क़लम; ภาษาไทยก็ได้ น้ำ; עִבְרִית שָׁלוֹם, العَرَبِيَّةُ لُغَةٌ; ﬁne ﬂow ½ ² ™ Ⅷ ㎏ ﷺ ¨ x² ١٢٣ ४५६
👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇩🇪 ❤️ 1️⃣ e\u0301\u0323 Å Å cafe\u0301 the book was never dull, a fine story; I read it in 2014.
#hashtag @user https://example.org/a?b=c&d=%20 x=y+z; f(x)≤∞ “”‘’«»‹›—–•·†‡ (1999) $12.50 £5–€6""".split()  # noqa: SIM905
INVALID = [bytes.fromhex(b) for b in ("ff", "c3", "e282", "eda080", "f08080af", "f4908080", "c0af", "f888", "e2", "80")]
FIXED = [
    "",
    " ",
    "\n\t",
    "\0",
    "\ufeff",
    "a\0b",
    "\ufffd",
    "ΣΑΣ Σ",
    "\U0010ffff",
    b"",
    b"\xff",
    "\x1c",
    "a\x85b",
    "a\xa0b",
]

SOME = 701  # texts in which every kind occurs many times

Scripts = Sequence[tuple[int, int]]
Kind = Callable[[random.Random], str | bytes]


def sizes(every: int) -> list:
    """Return the parameters of a fixture of texts: some for `make test`, `every` one for `make test-all`."""
    return [pytest.param(SOME, id="some"), pytest.param(every, id="all", marks=pytest.mark.slow)]


def code_points(every: bool) -> list[str]:
    """Return all characters, or those of the first scripts and a sample of the rest."""
    codes = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    return codes if every else [*codes[:0x2000], *sorted(random.Random(1303).sample(codes[0x2000:], 16_000))]


EVERY_CODE_POINT = pytest.mark.parametrize(
    "codes", [pytest.param(False, id="some"), pytest.param(True, id="all", marks=pytest.mark.slow)], indirect=True
)


def symbol(rng: random.Random, scripts: Scripts = SCRIPTS) -> str:
    """Draw any character of a script."""
    code = rng.randint(*rng.choice(scripts))
    return "\ufffe" if 0xD800 <= code < 0xE000 else chr(code)


def letters(rng: random.Random, between: Sequence[str] = ("", "", "", "", " "), scripts: Scripts = SCRIPTS) -> str:
    """Draw characters of one script."""
    script = [rng.choice(scripts)]
    return "".join(symbol(rng, script) + rng.choice(between) for _ in range(rng.randrange(25)))


def invalid(rng: random.Random, words: Sequence[str], scripts: Scripts = SCRIPTS) -> bytes:
    """Draw words, symbols and bytes that are not UTF-8."""
    parts = [*(rng.choice(words).encode() for _ in range(2)), rng.choice(INVALID), symbol(rng, scripts).encode()]
    return b"".join(rng.choices([*parts, rng.randbytes(3)], k=rng.randrange(6)))


def phrase(
    rng: random.Random, words: Sequence[str] = SAYINGS, spaces: Sequence[str] = (" ", "  ", "\u3000", "\t", " \x1f", "")
) -> str:
    """Draw words in any case with anything between them."""
    changes = [str.upper, str.lower, str.title, str.casefold, str, str]
    return rng.choice(spaces).join(rng.choice(changes)(word) for word in rng.choices(words, k=rng.randrange(1, 12)))


def varied_texts(
    count: int,
    seed: int,
    parts: Sequence[str],
    *kinds: Kind,
    words: Sequence[str] = SAYINGS,
    scripts: Scripts = SCRIPTS,
) -> list[str | bytes]:
    """Return fixed texts and `count` random ones.

    Args:
        count: Number of random texts.
        seed: Seed of the random texts.
        parts: Special tokens, whole and broken, and parts to mix them with.
        *kinds: Functions that draw texts peculiar to a tokenizer.
        words: Words of phrases.
        scripts: Ranges of characters.
    """
    rng = random.Random(seed)
    common: list[Kind] = [
        lambda rng: "".join(symbol(rng, scripts) for _ in range(rng.randrange(30))),
        lambda rng: "".join(rng.choices([*parts, *parts, symbol(rng, scripts)], k=rng.randrange(9))),
        functools.partial(letters, scripts=scripts),
        functools.partial(invalid, words=[*words, *parts], scripts=scripts),
        functools.partial(phrase, words=words),
    ]
    return [*FIXED, *(rng.choice([*common, *kinds])(rng) for _ in range(count))]


def varied_strings(count: int, seed: int, parts: Sequence[str], *kinds: Kind) -> list[str]:
    """Return `varied_texts`, with invalid UTF-8 replaced."""
    return decode(varied_texts(count, seed, parts, *kinds))


def decode(texts: Sequence[str | bytes]) -> list[str]:
    """Return texts as strings, with invalid UTF-8 replaced."""
    return [text if isinstance(text, str) else text.decode("utf-8", "replace") for text in texts]


def has_marks_in_order(text: str) -> bool:
    """Return whether decomposition leaves all marks in place, even if control characters are removed."""
    characters = [c for c in text if unicodedata.category(c)[0] != "C"]
    decomposed = "".join(unicodedata.normalize("NFD", c) for c in characters)
    return decomposed == unicodedata.normalize("NFD", "".join(characters))
