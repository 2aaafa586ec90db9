"""The cache of words' ids: each word is tokenized once, and texts have the same ids as without it."""

from __future__ import annotations

import copy
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from lmzoo.text import BytePairTokenizer, CharacterPairTokenizer, WordPieceTokenizer
from lmzoo.text.tokenizers import word_ids
from lmzoo.text.tokenizers.word_ids import WordIds

WORDS = ["good", "film", "never"]
SIZES = {BytePairTokenizer: 283, CharacterPairTokenizer: 41, WordPieceTokenizer: 13}
# All kinds of spaces side by side, special tokens beside words, accents and control characters beside spaces.
TEXTS = [
    "good film",
    " good  film ",
    "good \n film\tnever\u00a0good \x1cfilm\x1c good",
    "good \0 film",
    "never   <mask>good <mask> film<mask>",
    "a \u0301 e\u0301 \u200d good\u200d \u200dfilm",
    "",
    "  ",
]


@pytest.mark.parametrize("cls", SIZES)
def test_ids_equal_those_without_the_cache(cls):
    tokenizer = cls.of_words(WORDS, SIZES[cls])
    expected = [encoding.ids for encoding in tokenizer.backend.encode_batch(TEXTS, add_special_tokens=False)]
    assert tokenizer.tokenize(TEXTS) == expected  # fills the cache
    assert tokenizer.tokenize(TEXTS) == expected  # reads the cache
    assert len({*map(tuple, expected)}) > 4


@pytest.mark.parametrize("cls", SIZES)
def test_special_tokens_that_hold_spaces(cls):
    tokenizer = cls.of_words(WORDS, SIZES[cls], other_tokens=["<good film>"])
    special = tokenizer.token_to_id("<good film>")
    assert [ids.count(special) for ids in tokenizer.tokenize(["a <good film>", "<good film", "film><good film>"])] == [
        1,
        0,
        1,
    ]


def test_each_word_is_encoded_once():
    encoded: list[str] = []

    def encode(words: list[str]) -> list[list[int]]:
        encoded.extend(words)
        return [[len(word)] * 2 for word in words]

    ids = WordIds(encode)
    assert ids.of([["a", "film"], [], ["film", "a", "a"]]) == [[1, 1, 4, 4], [], [4, 4, 1, 1, 1, 1]]
    first = ids.of([["good", "a"]])[0]
    first.append(17)  # a change of the caller's list
    assert ids.of([["good", "a"]]) == [[4, 4, 1, 1]]
    assert sorted(encoded) == ["a", "film", "good"]


def test_a_new_vocabulary_empties_the_cache(tmp_path):
    tokenizer = WordPieceTokenizer.of_words(WORDS, 13)
    WordPieceTokenizer.of_words(WORDS[::-1], 13).save_assets(tmp_path)
    before = tokenizer.tokenize(["good film"])
    tokenizer.load_assets(tmp_path)
    assert tokenizer.tokenize(["good film"]) == [[before[0][0] + 2, before[0][1]]]


def test_a_full_cache_is_emptied(monkeypatch):
    monkeypatch.setattr(word_ids, "_MAX_SIZE", 97)
    encoded: list[str] = []

    def encode(words: list[str]) -> list[list[int]]:
        encoded.extend(words)
        return [[int(word)] for word in words]

    ids = WordIds(encode)
    for first in [*range(0, 30, 5)] * 2:
        words = [str(first + i) for i in range(5)]
        assert ids.of([words]) == [[*range(first, first + 5)]]
        assert 19 * len(ids._cache) <= 97
    assert sorted(encoded) == sorted([str(i) for i in range(30)] * 2)


def test_threads_share_words(monkeypatch):
    monkeypatch.setattr(word_ids, "_MAX_SIZE", 97)
    ids = WordIds(lambda words: [[int(word)] for word in words])
    texts = [[str(7 * i % 61 + j) for j in range(11)] for i in range(101)]
    with ThreadPoolExecutor(4) as pool:
        ids_of_texts = list(pool.map(lambda text: ids.of([text]), texts * 5))
    assert ids_of_texts == [[[int(word) for word in text]] for text in texts] * 5


@pytest.mark.parametrize("cls", SIZES)
def test_copies_have_an_empty_cache(cls):
    tokenizer = cls.of_words(WORDS, SIZES[cls])
    expected = tokenizer.tokenize(TEXTS)
    assert len(tokenizer._word_ids._cache) > 10
    for copied in (copy.deepcopy(tokenizer), pickle.loads(pickle.dumps(tokenizer))):
        assert not copied._word_ids._cache
        assert copied.tokenize(TEXTS) == expected


def test_long_texts_are_looked_up_only_with_few_threads(monkeypatch):
    tokenizer = WordPieceTokenizer.of_words(WORDS, 13)
    expected = tokenizer.tokenize(TEXTS)
    monkeypatch.setattr(tokenizer._word_ids, "_cache", {})
    monkeypatch.setattr("lmzoo.text.tokenizers.rust_tokenizer._LONG_TEXTS_CHARACTERS", 40)
    for variable, looked_up in (("4", True), ("5", False), ("0", os.cpu_count() <= 4), ("", os.cpu_count() <= 4)):
        monkeypatch.setenv("RAYON_NUM_THREADS", variable)
        assert tokenizer.tokenize(TEXTS) == expected
        assert bool(tokenizer._word_ids._cache) == looked_up
        tokenizer._word_ids._cache.clear()
    assert tokenizer.tokenize(TEXTS[:1]) == expected[:1]
    assert tokenizer._word_ids._cache, "a short text"
