"""Long runs of one character: the work of `tokenize_with_offsets` is linear in the text's length."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import lmzoo
from lmzoo.text import (
    BytePairTokenizer,
    CharacterTokenizer,
    SentencePieceTokenizer,
    WordPieceTokenizer,
    WordTokenizer,
    split_sentences,
)
from lmzoo.text.tokenizers.tokenizer import Tokenizer
from tests.text.trained import train_albert

PACKAGE = str(Path(lmzoo.__file__).parent)
RUNS = ["ﷺ", "😀", ".", "a", " ", "``", "9,", "e\u0301", "日", "½", "n't", "👩\u200d", "a wörld, ﬁ ", "x[MASK]"]
TOKENIZERS: dict[str, Callable[[Path], Tokenizer]] = {
    "WordPiece": lambda root: WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "a", ".", "日"]),
    "BPE": lambda root: BytePairTokenizer.of_words(["good", "film"], size=270),
    "SentencePiece": lambda root: SentencePieceTokenizer(train_albert(root)),
    "words": lambda root: WordTokenizer(["<S>", "</S>", "<UNK>", "a"]),
    "characters": lambda root: CharacterTokenizer(),
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest, root: Path) -> Tokenizer:
    return TOKENIZERS[request.param](root)


def count_steps(tokenizer: Tokenizer, text: str) -> int:
    """Count the lines of lmzoo's Python that run for a text, also each iteration of a loop on one line."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        tokenizer.tokenize_with_offsets([text])
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("run", RUNS)
def test_steps_are_linear_in_the_length(tokenizer: Tokenizer, run: str) -> None:
    tokenizer.tokenize_with_offsets([run])  # fills caches
    short, long = (count_steps(tokenizer, run * (length // len(run))) for length in (1000, 4000))
    assert long <= 5 * short
    assert long <= 8 * 4000


@pytest.mark.parametrize("run", ["ﷺ", "😀", "."])
def test_the_garbage_collector_runs_seldom(tokenizer: Tokenizer, run: str) -> None:
    generations = []
    gc.callbacks.append(lambda phase, info: generations.append(info["generation"]) if phase == "stop" else None)
    try:
        spans = tokenizer.tokenize_with_offsets([run * 20_000])
    finally:
        gc.callbacks.pop()
    assert len(generations) <= 3
    assert gc.isenabled()
    assert spans[0]


def test_the_garbage_collector_is_left_as_it_was(tokenizer: Tokenizer) -> None:
    with pytest.raises(TypeError):
        tokenizer.tokenize_with_offsets([None])
    assert gc.isenabled()
    threads = [threading.Thread(target=tokenizer.tokenize_with_offsets, args=(["a . " * 3000],)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gc.isenabled()
    gc.disable()
    try:
        tokenizer.tokenize_with_offsets(["a"])
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.slow_cases("SentencePiece-\\ufdfa")
@pytest.mark.parametrize("run", ["ﷺ", "😀", "."])
def test_time_is_less_than_quadratic_in_the_length(tokenizer: Tokenizer, run: str) -> None:
    """Sixteen times the text takes far less than 256 times the time, also in the libraries."""

    def seconds(length: int) -> float:
        before = time.process_time()
        tokenizer.tokenize_with_offsets([run * length])
        return time.process_time() - before

    seconds(1000)
    short = min(seconds(2000) for _ in range(5))
    assert min(seconds(32_000) for _ in range(2)) <= 80 * max(short, 1e-4)


@pytest.mark.parametrize("run", [".", "!?…", ". ", ".)", "。"])
def test_sentences_are_found_in_linear_time(run: str) -> None:
    def seconds(count: int) -> float:
        before = time.process_time()
        split_sentences(run * count + "x")
        return time.process_time() - before

    short = min(seconds(1000) for _ in range(5))
    assert min(seconds(16_000) for _ in range(2)) <= 80 * max(short, 1e-4)
