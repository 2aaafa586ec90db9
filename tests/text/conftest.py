"""Texts and tokenizers that the tests of this folder share."""

from __future__ import annotations

import os
import random
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from lmzoo.text import Packing, Preprocessor, WordPieceTokenizer
from tests.text.varied import code_points, phrase, sizes, symbol
from tests.text.varied import varied_texts as generate

SPECIAL = list(WordPieceTokenizer.special_tokens)
COUNT = 11_003
WORDS = """the film's a well-made, naïve café story (1999) costing $12.50 İstanbul ISTANBUL ıslak Straße STRASSE
ﬁne ofﬁce ΟΔΟΣ Ёлка москва́ Thị Hằng nguyễn résumé re\u0301sume\u0301 한국어 서울 \u1112\u1161\u11ab
東京タワー 我爱北京 ｶﾅ हिन्दी ภาษาไทย שָׁלוֹם العَرَبِيَّة 👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇩🇪 ❤️ ½ ² ™ Ⅷ ㎏ x² e-mail a\u200db
co\u00adop\u200b #tag @user https://a.org/?b=c “so…” ‘it’ —""".split()  # noqa: SIM905
BLOCKS = [
    *((0x20, 0x7E), (0x00, 0x20), (0x7F, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x590, 0x6FF)),
    *((0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2190, 0x2BFF)),
    *((0x3000, 0x30FF), (0x4E00, 0x4E40), (0x9FE0, 0x9FFF), (0xAC00, 0xAC80), (0xF900, 0xFA6F), (0xFB00, 0xFB4F)),
    *((0xFE00, 0xFFFD), (0x10400, 0x1044F), (0x1F1E0, 0x1F64F), (0x20000, 0x20010), (0x2F800, 0x2F810)),
]


def is_settled(text: str) -> bool:
    """Return whether every implementation knows the category of every character."""
    # U+061D became punctuation in Unicode 14, which the tables of `tokenizers` do not know yet.
    return all(c != "\u061d" and unicodedata.category(c) not in {"Cn", "Cs"} for c in text)


def two_scripts(rng: random.Random) -> str:
    pair = rng.choices(BLOCKS, k=2)
    return "".join(symbol(rng, pair) for _ in range(rng.randrange(24)))


def around_the_longest_word(rng: random.Random) -> str:
    letter = rng.choice(["a", "é", "e\u0301", "ß", "İ", "я", "한"])
    return "x " + letter * rng.choice([33, 34, 99, 100, 101]) + rng.choice(["", "!", "b", " y"])


def words_in_any_form(rng: random.Random) -> str:
    text = phrase(rng, WORDS, [" ", "  ", "\t", "\u3000", "\u2028", ""])
    return unicodedata.normalize(rng.choice(["NFC", "NFD"]), text)


@pytest.fixture(scope="session")
def codes(request: pytest.FixtureRequest) -> list[str]:
    """Return the characters that the mark `EVERY_CODE_POINT` asks for."""
    return code_points(request.param)


def settled_texts(count: int) -> list[str]:
    """Return strings on whose characters every implementation agrees."""
    parts = [*SPECIAL, "[MASK", "]", "[mask]", "[ MASK ]", " ", "é", "ok", "\n", "東"]
    kinds = [two_scripts, around_the_longest_word, words_in_any_form]
    texts = generate(2 * count, 1301, parts, *kinds, words=WORDS, scripts=BLOCKS)
    texts = [text for text in texts if isinstance(text, str) and is_settled(text)][:count]
    assert len(texts) == count
    return texts


@pytest.fixture(scope="session", params=sizes(COUNT))
def varied_texts(request: pytest.FixtureRequest) -> list[str]:
    return settled_texts(request.param)


@pytest.fixture(scope="session")
def training_texts() -> list[str]:
    """Return the first texts, the same for tests that read some and tests that read all."""
    return settled_texts(3000)


@pytest.fixture(scope="session")
def vocabulary(varied_texts: list[str], root: Path) -> list[str]:
    """Return BERT's published vocabulary if it is available, and pieces for most other characters of the texts."""
    # The fixture `shared` would skip tests, but they also work with the small vocabulary.
    path = Path(os.environ.get("LMZOO_SHARED", root.parent / "shared")) / "data/tokenizers/bert-base-uncased/vocab.txt"
    words = path.read_text("utf-8").split("\n")[:-1] if path.exists() else [*SPECIAL, "film", "##s", "the", "cafe"]
    text = "".join(varied_texts) + "".join(WORDS)
    normal = {c for form in ("NFC", "NFD") for c in unicodedata.normalize(form, text + text.lower())}
    characters = [c for i, c in enumerate(sorted(normal)) if i % 17 and c.strip() and unicodedata.category(c)[0] != "C"]
    existing = set(words)
    return words + [piece for c in characters for piece in (c, f"##{c}") if piece not in existing]


@pytest.fixture
def tokenizer() -> WordPieceTokenizer:
    return WordPieceTokenizer([*SPECIAL, "a", "##a", "b", "##b", "##c", ","])


@pytest.fixture
def make_preprocessor(tokenizer: WordPieceTokenizer) -> Callable[..., Preprocessor]:
    def make(sequence_length: int = 11, between: tuple[str, ...] = ("[SEP]",), segments: bool = True) -> Preprocessor:
        packing = Packing(start="[CLS]", end="[SEP]", between=between, segments=segments)
        return Preprocessor(tokenizer, packing, sequence_length)

    return make
