"""Alignment of tokens with words."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.text import (
    BytePairTokenizer,
    CharacterTokenizer,
    SentencePieceTokenizer,
    TokenSpan,
    WordPieceTokenizer,
    WordTokenizer,
)
from lmzoo.text.alignment import tokens_of_words
from lmzoo.text.word_splitting import split_words
from tests.text.trained import train_albert, train_byte_pairs
from tests.text.varied import varied_strings


def wordpiece(*tokens):
    return WordPieceTokenizer([*WordPieceTokenizer.special_tokens, *tokens])


def byte_pairs(*words):
    return BytePairTokenizer.of_words(words, 400)


def sentencepiece(*words):
    return SentencePieceTokenizer.of_words(words, 60)


CASES = {
    "a removed accent": (
        wordpiece("un", "caf", "##e", "!"),
        "Un café!",
        {"Un": ["un"], "café": ["caf", "##e"], "!": ["!"]},
    ),
    "a piece over the end of a word": (
        wordpiece("don", "'", "t", "go"),
        "Don't go",
        {"Do": ["don"], "n't": ["'", "t"], "go": ["go"]},
    ),
    "several pieces, one word": (
        wordpiece("x", "-", "ray", "u", ".", "s"),
        "X-ray U.S.",
        {"X-ray": ["x", "-", "ray"], "U.S.": ["u", ".", "s", "."]},
    ),
    "an unknown word": (wordpiece("the"), "the zzz", {"the": ["the"], "zzz": ["[UNK]"]}),
    "parts of one character": (
        wordpiece("\u1112", "##\u1161", "##\u11ab", "x"),
        "한 x",
        {"한": ["\u1112", "##\u1161", "##\u11ab"], "x": ["x"]},
    ),
    "ideographs in a row": (wordpiece("東", "京"), "東京", {"東京": ["東", "京"]}),
    "a word without tokens": (wordpiece("a", "b"), "a \u200b b", {"a": ["a"], "b": ["b"]}),
    "spaces in front": (byte_pairs("the", "film"), "the film", {"the": ["t", "h", "e"], "film": ["Ġfilm"]}),
    "bytes of one character": (
        byte_pairs(),
        "é 😀",
        {"é": ["Ã", "©"], "😀": ["ð", "Ł", "ĺ", "Ģ"]},  # the space is a token of no word
    ),
    "a clitic of both": (byte_pairs("can"), "I can't", {"I": ["I"], "ca": ["Ġcan"], "n't": ["'", "t"]}),
    "a space that is a piece": (sentencepiece("film"), "film x", {"film": ["▁film"], "x": ["<unk>"]}),
    "two words, one piece": (
        sentencepiece("can't", "i"),
        "I can't",
        {"I": ["▁i"], "ca": ["▁can't"], "n't": ["▁can't"]},
    ),
    "words as tokens": (
        CharacterTokenizer(),
        "Don't “go”, Zoë",
        {w: [w] for w in ["Do", "n't", "“", "go", "”", ",", "Zoë"]},
    ),
    "words of a vocabulary": (
        WordTokenizer(["<S>", "</S>", "<UNK>", "go"]),
        "go on!",
        {w: [w] for w in ["go", "on", "!"]},
    ),
}


@pytest.mark.parametrize(("tokenizer", "text", "expected"), CASES.values(), ids=CASES)
def test_tokens_of_words_by_hand(tokenizer, text, expected):
    words, pieces = split_words(text), tokenizer.tokenize_with_offsets([text])[0]
    tokens_by_word: dict[str, list[str]] = {}
    for word, piece in zip(*tokens_of_words(words, pieces), strict=True):
        tokens_by_word.setdefault(words[word][0], []).append(pieces[piece].token)
    assert tokens_by_word == expected


def test_the_first_word_has_a_piece_on_ties_and_the_other_shares_it():
    words = [("ab", 0, 2), ("cd", 2, 4), ("ef", 4, 6)]
    pieces = [TokenSpan(0, "bc", 1, 3), TokenSpan(0, "def", 3, 6), TokenSpan(0, "", 4, 4)]
    pairs = [array.tolist() for array in tokens_of_words(words, pieces)]
    assert pairs == [[0, 1, 1, 2], [0, 0, 1, 1]]


def test_no_words_or_no_tokens():
    for words, pieces in (([], []), ([("a", 0, 1)], []), ([], [TokenSpan(0, "a", 0, 1)])):
        assert [array.tolist() for array in tokens_of_words(words, pieces)] == [[], []]


def align_by_counting(text, words, pieces):
    """Return pairs of words and pieces, from sets of characters."""
    inside = [set(range(start, end)) for _, start, end in words]
    covered = [set(range(piece.start, piece.end)) for piece in pieces]
    counts = np.array([[len(w & p) for p in covered] for w in inside]).reshape(len(words), len(pieces))
    pairs = []
    for w in range(len(words)):
        own = [p for p in range(len(pieces)) if counts[w, p] and counts[:, p].argmax() == w]
        pairs += [(w, p) for p in own or np.flatnonzero(counts[w])]
    return pairs


@pytest.fixture(scope="module")
def texts():
    parts = ["[MASK]", "<mask>", "can't", "don’t", "'tis", "U.S.", "x-ray", "1,000.5", "…", " "]
    return varied_strings(2003, 7, parts)


@pytest.fixture(scope="module", params=["wordpiece", "byte pairs", "sentencepiece", "characters"])
def tokenizer(request, root, texts, tmp_path_factory):
    if request.param == "wordpiece":
        letters = sorted({c for text in texts[::2] for c in text.lower() if not c.isspace()})
        return wordpiece(*[c for c in letters if c.isalnum()], *[f"##{c}" for c in letters if c.isalnum()], "'", ".")
    if request.param == "byte pairs":
        folder, loaded = tmp_path_factory.mktemp("trained"), BytePairTokenizer()
        train_byte_pairs(root, texts).save_model(str(folder))
        (folder / "vocab.json").rename(folder / "vocabulary.json")
        loaded.load_assets(folder)
        return loaded
    return SentencePieceTokenizer(train_albert(root)) if request.param == "sentencepiece" else CharacterTokenizer()


@pytest.mark.quick_cases("wordpiece", "characters")
def test_alignment_equals_counting_characters(texts, tokenizer):
    assert len(texts) > 2000
    rows, with_several_pieces = tokenizer.tokenize_with_offsets(texts), 0
    for text, pieces in zip(texts, rows, strict=True):
        words = split_words(text)
        pairs = [*zip(*(array.tolist() for array in tokens_of_words(words, pieces)), strict=True)]
        assert pairs == align_by_counting(text, words, pieces), (text, words, pieces)
        for word, piece in pairs:
            (_, start, end), token = words[word], pieces[piece]
            assert token.start < end, (text, word, token)
            assert token.end > start, (text, word, token)
        with_several_pieces += len({word for word, _ in pairs}) < len(pairs)
    assert with_several_pieces > 300 or isinstance(tokenizer, CharacterTokenizer)
