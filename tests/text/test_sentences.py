"""Splitting of texts into sentences."""

from __future__ import annotations

import pytest

from lmzoo.text import split_sentences

PARAGRAPHS = [
    ["It rained.", "We stayed in!", "Did you?", "Well…", "No."],
    ['"Stay, Dr. Hale!" she said.', '"Why?"', "He left at 5 p.m. and never came back."],
    ["He left (at last).", '("Good," we thought.)', "It was 7.5 degrees.", "42 came."],
    ["J. R. Smith met Mrs. Poe vs. the rest, e.g. Ann.", "Then they left."],
    ["Was it fig. 3?", "¿Quién sabe?", "«Nein.»", "Ёлка."],
    ["He waited... and waited.", "Why?!", "Because."],
    ["no end at all"],
]


@pytest.mark.parametrize("sentences", PARAGRAPHS, ids=lambda sentences: sentences[0])
def test_sentences_of_paragraphs(sentences):
    assert split_sentences(f" {'  '.join(sentences)}\t") == sentences


def test_sentences_without_spaces():
    sentences = ["今日は雨。", "「はい！」", "と言った。"]
    assert split_sentences("".join(sentences)) == sentences


@pytest.mark.parametrize("space", ["\n", "\t", "\u00a0", " \n"])
def test_abbreviations_after_any_white_space(space):
    sentences = [f"We saw{space}Mr. Hale and{space}J. Poe.", f"Then{space}Dr. Ito left."]
    assert split_sentences(f"{space}".join(sentences)) == sentences


def test_an_abbreviation_at_the_beginning_of_a_sentence():
    assert split_sentences("今日は雨。Mr. Hale left.") == ["今日は雨。", "Mr. Hale left."]


def test_nothing_is_lost_but_white_space():
    text = ' "A b." C!  D. d? (E) F... G etc. H\u3000。I '
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())
    assert split_sentences("") == split_sentences(" \t") == []
