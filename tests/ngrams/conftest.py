"""Reviews as lists of words, and a trigram model of the training reviews."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from lmzoo.models import NgramLM
from lmzoo.text.word_splitting import list_words

REVIEWS = Path(__file__).resolve().parents[2] / "examples/data/reviews.csv"


@pytest.fixture(scope="session")
def reviews() -> dict[str, list[list[str]]]:
    """Return the words of the reviews of each split: 300 for training, 100 for testing."""
    words_by_split: dict[str, list[list[str]]] = {"train": [], "test": []}
    with REVIEWS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            words_by_split[row["split"]].append(list_words(row["text"]))
    return words_by_split


@pytest.fixture(scope="session")
def trigrams(reviews: dict[str, list[list[str]]]) -> NgramLM:
    model = NgramLM(order=3)
    model.fit([reviews["train"]], verbose=False)
    return model
