"""Reviews as lists of words, and a trigram model of those for training."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from lmzoo.models import NgramLM
from lmzoo.text.word_splitting import list_words

REVIEWS = Path(__file__).resolve().parents[2] / "examples/data/reviews.csv"


@pytest.fixture(scope="session")
def reviews() -> dict[str, list[list[str]]]:
    """The reviews of each split: 300 to train on, 100 to test with."""
    found: dict[str, list[list[str]]] = {"train": [], "test": []}
    with REVIEWS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found[row["split"]].append(list_words(row["text"]))
    return found


@pytest.fixture(scope="session")
def trigrams(reviews: dict[str, list[list[str]]]) -> NgramLM:
    model = NgramLM(order=3)
    model.fit([reviews["train"]], verbose=False)
    return model
