"""A vocabulary of whole words, and the progress bar of documents."""

from __future__ import annotations

import pytest

from lmzoo.common import progress
from lmzoo.data.corpora import train_words
from lmzoo.text import TextWarning

DOCUMENTS = [["The cat's hat", "the hat"], [["the", "New York", " spaced", "", "<UNK>", "<UNK>"], ["hat", "Zoo"]]]


def test_frequent_words_come_first():
    with pytest.warns(
        TextWarning, match="support 10 words, not the 99 that were requested: all that are frequent"
    ) as caught:
        tokenizer = train_words(DOCUMENTS, 99)
    assert len(caught) == 1
    assert tokenizer.vocabulary == ["<S>", "</S>", "<UNK>", "hat", "the", "'s", "New York", "The", "Zoo", "cat"]
    assert train_words(DOCUMENTS, 6).vocabulary == tokenizer.vocabulary[:6]
    assert train_words(DOCUMENTS, 10).vocabulary == tokenizer.vocabulary
    assert train_words(DOCUMENTS, 5, min_frequency=2).vocabulary == tokenizer.vocabulary[:5]
    with pytest.warns(TextWarning, match="support 5 words, not the 6"):
        train_words(DOCUMENTS, 6, min_frequency=2)
    with pytest.raises(
        ValueError, match="`vocabulary_size` must be an integer above 3, the number of special words, got 3"
    ):
        train_words(DOCUMENTS, 3)
    with pytest.raises(TypeError, match="Expected a list of documents"):
        train_words("a text", 9)


def test_words_of_several_lines_are_left_out(tmp_path):
    """The file of the vocabulary has a word on each line."""
    tokenizer = train_words([[["New\nYork", "New\nYork", "a", "b"]]], 5)
    tokenizer.save_assets(tmp_path)
    loaded = type(tokenizer)()
    loaded.load_assets(tmp_path)
    assert loaded.vocabulary == tokenizer.vocabulary == ["<S>", "</S>", "<UNK>", "a", "b"]


def test_progress_is_shown_unless_switched_off(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(progress, "_DELAY_SECONDS", -1)
    train_words(DOCUMENTS, 6, verbose=False)
    assert capsys.readouterr() == ("", "")
    train_words(DOCUMENTS, 6)
    assert "2 of 2 documents" in capsys.readouterr().err
