"""A vocabulary of whole words, and progress where documents take long."""

from __future__ import annotations

import time

import pytest

from lmzoo.data.corpora import train_words
from lmzoo.data.corpora.word_vocabulary import with_progress
from lmzoo.text import TextWarning

DOCUMENTS = [["The cat's hat", "the hat"], [["the", "New York", " spaced", "", "<UNK>", "<UNK>"], ["hat", "Zoo"]]]


def test_most_frequent_first():
    with pytest.warns(
        TextWarning, match="support 10 words, not the 99 that were asked for: all that are frequent"
    ) as seen:
        tokenizer = train_words(DOCUMENTS, 99)
    assert len(seen) == 1
    assert tokenizer.vocabulary == ["<S>", "</S>", "<UNK>", "hat", "the", "'s", "New York", "The", "Zoo", "cat"]
    assert train_words(DOCUMENTS, 6).vocabulary == tokenizer.vocabulary[:6]
    assert train_words(DOCUMENTS, 10).vocabulary == tokenizer.vocabulary
    assert train_words(DOCUMENTS, 5, min_frequency=2).vocabulary == tokenizer.vocabulary[:5]
    with pytest.warns(TextWarning, match="support 5 words, not the 6"):
        train_words(DOCUMENTS, 6, min_frequency=2)
    with pytest.raises(ValueError, match="`vocabulary_size` must be above 3"):
        train_words(DOCUMENTS, 3)
    with pytest.raises(TypeError, match="Expected a list of documents"):
        train_words("a text", 9)


def test_progress_after_a_second(monkeypatch, capsys):
    clock = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock) / 2)
    assert list(with_progress(range(7))) == list(range(7))
    assert "7/7" in capsys.readouterr().out
    assert list(with_progress(range(1))) == [0]
    assert list(with_progress(range(7), verbose=False)) == list(range(7))
    assert capsys.readouterr().out == ""
