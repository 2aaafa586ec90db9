"""The word splitter: its words and their offsets."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from lmzoo.text.word_splitting import _compile_pattern, character_kinds, list_words, split_words

SPLITS = {
    "": [],
    " \t\u3000\n\x1f": [],
    "The quick, brown fox.": ["The", "quick", ",", "brown", "fox", "."],
    # Clitics
    "I don't, can't, WON'T!": ["I", "do", "n't", ",", "ca", "n't", ",", "WO", "N'T", "!"],
    "it's they're I've I'm we'll he'd": ["it", "'s", "they", "'re", "I", "'ve", "I", "'m", "we", "'ll", "he", "'d"],
    "It’S don’t": ["It", "’S", "do", "n’t"],
    "they'd've shouldn't've": ["they", "'d", "'ve", "should", "n't", "'ve"],
    "do n't it 's": ["do", "n't", "it", "'s"],
    "nn't isn'tx it'sa 'sx": ["n", "n't", "isn'tx", "it'sa", "'", "sx"],
    "the dogs' 'tis 90's 'em": ["the", "dogs", "'", "'", "tis", "90", "'s", "'", "em"],
    "o'clock O’Brien rock'n'roll": ["o'clock", "O’Brien", "rock'n'roll"],
    "mother's-in-law": ["mother", "'s", "-", "in-law"],
    "a''s a'n't a-n't": ["a", "''", "s", "a", "'", "n't", "a", "-", "n't"],
    "it\u017f it'\u017f": ["it\u017f", "it'\u017f"],  # a long s makes no clitic
    # Hyphens, numbers, initials
    "well-known non\u2011stop -- a - b-": ["well-known", "non\u2011stop", "--", "a", "-", "b", "-"],
    "-5 3-4 x-é 1-\u0301": ["-", "5", "3-4", "x-é", "1", "-\u0301"],
    "3.5 1,000.25 ٣.٤ 5. .5 1..2 1,a": ["3.5", "1,000.25", "٣.٤", "5", ".", ".", "5", "1", "..", "2", "1", ",", "a"],
    "$12.50 5% A4 2nd x²": ["$", "12.50", "5", "%", "A4", "2nd", "x²"],
    "the U.S. and e.g., p.m.": ["the", "U.S.", "and", "e.g.", ",", "p.m."],
    "U.S.A U.S... U.S.based I.B.M.'s": ["U.S.A", "U.S", "...", "U.S.", "based", "I.B.M.", "'s"],
    "J. K. a.b, ab.c a.bc": ["J", ".", "K", ".", "a.b", ",", "ab", ".", "c", "a", ".", "bc"],
    # Repetitions, quotes, addresses
    "so... what?! no!!! ``hi''": ["so", "...", "what", "?", "!", "no", "!!!", "``", "hi", "''"],
    "“so…” ‘it’ (a) [b] <S>": ["“", "so", "…", "”", "‘", "it", "’", "(", "a", ")", "[", "b", "]", "<", "S", ">"],
    "https://a.org/?b=c": ["https", ":", "//", "a", ".", "org", "/", "?", "b", "=", "c"],
    "@user #tag a_b __x": ["@", "user", "#", "tag", "a_b", "__x"],
    # Symbols, marks and scripts
    "ok👍👍🏽!": ["ok", "👍", "👍🏽", "!"],
    "👩‍👩‍👧‍👦❤️🏳️‍🌈": ["👩‍👩‍👧‍👦", "❤️", "🏳️‍🌈"],
    "a\u200d👩 -\u200d👩 \u200d👩": ["a\u200d", "👩", "-\u200d", "👩", "\u200d", "👩"],
    "re\u0301sume\u0301 \u0301a !\u0301a": ["re\u0301sume\u0301", "\u0301a", "!\u0301", "a"],
    "co\u00adop می\u200cخواهم हिन्दी": ["co\u00adop", "می\u200cخواهم", "हिन्दी"],
    "我爱北京。東京タワー": ["我爱北京", "。", "東京タワー"],
    "\ufeffa\u200bb\0\0\ufffd": ["\ufeff", "a", "\u200b", "b", "\0", "\0", "\ufffd"],
    "\U0010ffff\ue000\u0378": ["\U0010ffff", "\ue000", "\u0378"],
    "a\x85b\xa0c\u2028d": ["a", "b", "c", "d"],
}
PARTS = [*"nN'’tTsdm.,-‐1a_é \u0301\u200d👩🏽`。\0", "re", "n't", "\u3000", "U.S.", "\ud800"]


@pytest.mark.parametrize(("text", "words"), SPLITS.items(), ids=map(ascii, SPLITS))
def test_words_of_texts(text: str, words: list[str]) -> None:
    assert [word for word, _, _ in split_words(text)] == words
    assert list_words(text) == words


def test_offsets_of_words() -> None:
    assert split_words("Un café, don't 👍🏽!") == [
        *(("Un", 0, 2), ("café", 3, 7), (",", 7, 8), ("do", 9, 11), ("n't", 11, 14), ("👍🏽", 15, 17), ("!", 17, 18))
    ]


def draw_text(rng: random.Random) -> str:
    return "".join(rng.choices(PARTS, k=rng.randrange(14)))


def test_nothing_but_whitespace_is_lost() -> None:
    rng = random.Random(1301)
    characters = [chr(code) for code in (*range(0x3400), *range(0x3400, 0x110000, 17))]
    rng.shuffle(characters)
    texts = ["".join(characters[i : i + 50]) for i in range(0, len(characters), 50)]
    for text in [*texts, *(draw_text(rng) for _ in range(20_000)), *SPLITS]:
        end = 0
        for word, start, stop in split_words(text):
            assert word
            assert text[start:stop] == word
            assert not text[end:start].strip()
            end = stop
        assert not text[end:].strip()
        assert "".join(list_words(text)) == "".join(text.split())


def test_the_pattern_for_ascii_agrees_with_the_full_one() -> None:
    rng = random.Random(1302)
    full = _compile_pattern(0x10FFFF)
    texts = [draw_text(rng) for _ in range(20_000)]
    texts += ["".join(c for c in text if c.isascii()) for text in texts]
    assert sum(map(str.isascii, texts)) > 20_000
    for text in texts:
        assert list_words(text) == [match[0] for match in full.finditer(text)], ascii(text)


@pytest.mark.slow
def test_kinds_of_characters_are_those_of_python() -> None:
    starts, kinds = character_kinds()
    kinds_by_code = kinds[starts.searchsorted(range(0x110000), side="right") - 1].tolist()
    for code, kind in enumerate(kinds_by_code):
        character = chr(code)
        assert (kind == 0) == character.isspace(), hex(code)
        assert (kind in (1, 2)) == (character.isalnum() or character == "_"), hex(code)
        assert (kind == 2) == character.isdecimal(), hex(code)
        assert kind == 3 or unicodedata.category(character)[0] != "M", hex(code)


def test_words_of_published_models_stay_whole(shared: Callable[[str], Path]) -> None:
    # The sentences are already split. Only abbreviations such as "Ms." and the 't of "don 't" are split again.
    lists = json.loads(shared("fixtures/bilm_tf/lm_embeddings_sentences.json").read_text("utf-8"))
    sentences = [sentence for sentences in lists for sentence in sentences]
    assert sum(list_words(sentence) == sentence.split() for sentence in sentences) >= 25
    split_again = {word for sentence in sentences for word in set(sentence.split()) - set(list_words(sentence))}
    assert split_again <= {"Ms.", "Mr.", "Dr.", "'t"}
