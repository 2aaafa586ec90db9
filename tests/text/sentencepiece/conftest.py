"""A small ALBERT model, trained on the examples' reviews, and texts of every kind."""

from __future__ import annotations

import csv
import io
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lmzoo.text import SentencePieceTokenizer

SPECIAL = list(SentencePieceTokenizer.special_tokens)
SCRIPTS = [
    *((0x20, 0x7E), (0x00, 0x20), (0x7F, 0x24F), (0x250, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x590, 0x6FF)),
    *((0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x1C80, 0x1CBF), (0x1E00, 0x1FFF), (0x2000, 0x206F)),
    *((0x2070, 0x218F), (0x2190, 0x2BFF), (0x3000, 0x30FF), (0x3300, 0x33FF), (0xA640, 0xA7FF), (0xAC00, 0xAC40)),
    *((0xD780, 0xD7FF), (0xE000, 0xE010), (0xF900, 0xFA6F), (0xFB00, 0xFDFF), (0xFE00, 0xFFFF), (0x10400, 0x1044F)),
    *((0x11100, 0x1115F), (0x1D15A, 0x1D1C5), (0x1D400, 0x1D7FF), (0x1F100, 0x1F64F), (0x2F800, 0x2F820)),
    *((0xE0000, 0xE01FF), (0xF0000, 0xF0010)),
]
SAYINGS = """It's 9 o'clock: “Straße”, naïve café… ``quoted'' and U.S.A.! İstanbul'da ΟΔΥΣΣΕΥΣ Москва́ Tiếng Việt
한국어를 (서울), 日本語テキスト・ｶﾅ、東京 2024年 हिन्दी ภาษาไทย น้ำ שָׁלוֹם العَرَبِيَّةُ ﬁne ﬂow ½ ² ™ Ⅷ ㎏ ﷺ ¨ e\u0301\u0323 Å
▁the ▁ 👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇩🇪 ❤️ 1️⃣ the book was never dull, a fine story and a map; £5–€6 9,200 a1,b 92000, 3,1,4, 12,, ٣,٤
²,x the pages are good; I read it in 2014, and 2012, again. It's a very good book (by far), and the ending...""".split()  # noqa: SIM905
BROKEN = [
    *SPECIAL,
    "[MASK",
    "]",
    "[mask]",
    "[ CLS ]",
    "[MA\x01SK]",
    "<",
    "pad>",
    "［ＣＬＳ］",
    " ",
    "é",
    "ok",
    "\n",
    "'",
    "`",
    "9,",
]
INVALID = [bytes.fromhex(b) for b in ("ff", "c3", "e282", "eda080", "f08080af", "f4908080", "c0af", "f888", "e2")]


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
        letters = (chr(rng.randint(low, high)) for _ in range(rng.randrange(25)))
        return "".join(rng.choice(["", "", "", " ", "a", "9"]) + letter for letter in letters).replace("\ud800", "")
    if kind == 2:  # special tokens, whole and broken
        return "".join(rng.choices([*BROKEN, symbol(rng)], k=rng.randrange(9)))
    if kind == 3:  # digits and commas
        return "".join(rng.choices(["9", "2", "2014", ",", ",", " ", "a", "the ", "٣", "½", "２"], k=rng.randrange(12)))
    if kind == 4:  # invalid UTF-8
        parts = [rng.choice(SAYINGS).encode(), rng.choice(INVALID), rng.choice(SPECIAL).encode(), symbol(rng).encode()]
        return b"".join(rng.choices([*parts, rng.randbytes(3)], k=rng.randrange(6)))
    words = rng.choices(SAYINGS, k=rng.randrange(1, 12))
    changes = [str.upper, str.lower, str.title, str.casefold, str]
    return rng.choice([" ", "  ", "\u3000", "\t", " \x1f", ""]).join(rng.choice(changes)(word) for word in words)


@pytest.fixture(scope="session")
def texts() -> list[str | bytes]:
    rng = random.Random(1709)
    fixed = ["", " ", "\n\t", "\0", "\ufeff", "a\0b", "\ufffd", "ΣΑΣ Σ", "\U0010ffff", b"", b"\xff", "\x1c", "a\x85b"]
    return [*fixed, *(varied_text(rng) for _ in range(12_000))]


@pytest.fixture(scope="session")
def strings(texts: list[str | bytes]) -> list[str]:
    """The same, decoded."""
    return [text if isinstance(text, str) else text.decode("utf-8", "replace") for text in texts]


@pytest.fixture(scope="session")
def model(root: Path) -> bytes:
    """Special tokens and symbols as in ALBERT's own model; a few pieces that end in a digit and a comma."""
    from sentencepiece import SentencePieceTrainer, sentencepiece_model_pb2

    with (root / "examples/data/reviews.csv").open(encoding="utf-8", newline="") as file:
        lines = [row["text"].lower() for row in csv.DictReader(file)]
    lines += [f"in {year}, we read {year // 7} and x{year % 10} or éa{year % 10} and 42" for year in range(2000, 2020)]
    written = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=written,
        model_type="unigram",
        character_coverage=1.0,
        vocab_size=700,
        hard_vocab_limit=False,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        user_defined_symbols=list('()"-.–£€'),
        num_threads=1,
        minloglevel=2,
    )
    proto = sentencepiece_model_pb2.ModelProto.FromString(written.getvalue())
    for piece, score in (("▁2014,", -5), ("9,", -3), ("▁2,", -3), ("a1,", -4), ("12,", -4), ("▁x9,", -5), ("3,1,", -5)):
        proto.pieces.add(piece=piece, score=score)
    return proto.SerializeToString()


@pytest.fixture(scope="session")
def tokenizer(model: bytes) -> SentencePieceTokenizer:
    return SentencePieceTokenizer(model)


@pytest.fixture(scope="session")
def german() -> Callable[[], bytes]:
    """A real model of 30,000 pieces with ALBERT's special tokens, which is not part of the repository."""

    def read() -> bytes:
        shared = Path(os.environ.get("LMZOO_SHARED", Path(__file__).resolve().parents[4] / "shared"))
        path = shared / "data/tokenizers/albert-style-de-30k/30k-clean.model"
        if not path.exists():
            pytest.skip(f"{path} is not here")
        return path.read_bytes()

    return read


def assert_equal_or_tied(
    tokenizer: SentencePieceTokenizer, texts: list, found: list[list[int]], expected: list[list[int]]
) -> int:
    """That ids are equal or, in under 1% of the texts, other segmentations of equal score; returns their number.

    A score is a sum of floats, and libraries add in different orders.
    """
    ties = 0
    for text, ids, others in zip(texts, found, expected, strict=True):
        if ids != others:
            score, other = (sum(map(tokenizer.backend.get_score, row)) for row in (ids, others))
            assert abs(score - other) < 1e-4 + np.spacing(np.float32(abs(score))), (text, ids, others)
            ties += 1
    assert ties < 0.01 * len(texts)
    print(f"{ties} ties in {len(texts)} texts")
    return ties


@pytest.fixture(scope="session")
def equal_or_tied() -> Callable[..., int]:
    return assert_equal_or_tied
