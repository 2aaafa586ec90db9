"""A small ALBERT model, trained on the examples' reviews, and varied texts."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from lmzoo.text import SentencePieceTokenizer
from tests.text.trained import assert_equal_or_tied, train_albert
from tests.text.varied import SAYINGS, decode, letters, sizes, varied_texts

SPECIAL = list(SentencePieceTokenizer.special_tokens)
BROKEN = [
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
WORDS = """``quoted'' ▁the ▁ map; 9,200 a1,b 92000, 3,1,4, 12,, ٣,٤ ²,x pages are good; 2012, again. very (by far), and
ending...""".split()  # noqa: SIM905


def digits_and_commas(rng: random.Random) -> str:
    return "".join(rng.choices(["9", "2", "2014", ",", ",", " ", "a", "the ", "٣", "½", "２"], k=rng.randrange(12)))


def words_and_digits(rng: random.Random) -> str:
    return letters(rng, between=["", "", "", " ", "a", "9"])


@pytest.fixture(scope="session", params=sizes(12_000))
def texts(request: pytest.FixtureRequest) -> list[str | bytes]:
    parts = [*SPECIAL, *BROKEN]
    return varied_texts(
        request.param, 1709, parts, digits_and_commas, words_and_digits, words=[*SAYINGS, *WORDS, *WORDS]
    )


@pytest.fixture(scope="session")
def strings(texts: list[str | bytes]) -> list[str]:
    """Return the texts as strings."""
    return decode(texts)


@pytest.fixture(scope="session")
def model(root: Path) -> bytes:
    return train_albert(root)


@pytest.fixture(scope="session")
def tokenizer(model: bytes) -> SentencePieceTokenizer:
    return SentencePieceTokenizer(model)


@pytest.fixture(scope="session")
def german() -> Callable[[], bytes]:
    """Return a function that reads a published model of 30,000 pieces, which is not part of the repository."""

    def read() -> bytes:
        shared = Path(os.environ.get("LMZOO_SHARED", Path(__file__).resolve().parents[4] / "shared"))
        path = shared / "data/tokenizers/albert-style-de-30k/30k-clean.model"
        if not path.exists():
            pytest.skip(f"{path} is not here")
        return path.read_bytes()

    return read


@pytest.fixture(scope="session")
def equal_or_tied() -> Callable[..., int]:
    return assert_equal_or_tied
