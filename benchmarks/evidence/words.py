"""Vectors of words in all layers of a preset, and linear classifiers on them."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

import lmzoo
from benchmarks.evidence.claim import Setting
from benchmarks.quality import DATASETS, fit_logistic_regression, sample
from lmzoo.data.corpora import read_documents
from lmzoo.text.word_splitting import list_words

# Each pair becomes one pseudo-word with two senses. No word is a name or equals its plural.
PSEUDO_WORDS = (
    ("river", "church"),
    ("film", "war"),
    ("school", "island"),
    ("song", "army"),
    ("game", "village"),
    ("company", "species"),
    ("king", "train"),
    ("book", "road"),
    ("station", "album"),
    ("language", "bridge"),
)
STANDS_FOR = "thing"  # replaces both words of a pair in the models' input


class LabeledVectors(NamedTuple):
    """Vectors and labels of words for training and for testing.

    Attributes:
        train: float32 (n, L, H), vectors of the training words in all layers.
        labels: labels of the training words.
        test: float32 (m, L, H), vectors of the test words in all layers.
        right: labels of the test words.
    """

    train: np.ndarray
    labels: np.ndarray
    test: np.ndarray
    right: np.ndarray

    def accuracy(self, layer: int, columns: slice = slice(None), components: int | None = None) -> float:
        """Return the accuracy of logistic regression on a layer, or on columns or principal components of it."""
        train, test = (vectors[:, layer, columns] for vectors in (self.train, self.test))
        scaler = StandardScaler().fit(train)
        train, test = scaler.transform(train), scaler.transform(test)
        if components is not None:
            reduced = PCA(min(components, *train.shape), random_state=0).fit(train)
            train, test = reduced.transform(train), reduced.transform(test)
        return float(fit_logistic_regression(train, self.labels, 0.1).score(test, self.right))


def load_embedder(preset: str, pretrained: bool = True) -> lmzoo.models.TextEmbedder:
    """Return the embedder of a preset, with random weights unless `pretrained`."""
    return lmzoo.models.TextEmbedder.from_preset(preset, load_weights=pretrained)


def embed_words(embedder: lmzoo.models.TextEmbedder, sentences: list[list[str]]) -> np.ndarray:
    """Return the vectors of all words of some sentences, float32 (n, L, H)."""
    return np.concatenate([sentence.vectors for sentence in embedder.embed(sentences, level="word", layers="all")])


@cache
def embed_parts_of_speech(preset: str, seed: int, setting: Setting) -> LabeledVectors:
    """Return the words of 1,000 random training sentences of EWT and of 500 development sentences, with their tags."""
    (sentences, tags), (tests, right) = DATASETS["ewt"].read(setting.data)
    chosen = np.random.default_rng(seed).permutation(len(sentences))[: setting.size(1000, 30)]
    tests, right = sample((tests, right), setting.size(500, 15))
    embedder, train = load_embedder(preset), [sentences[i] for i in chosen]
    labels = np.concatenate([tags[i] for i in chosen])
    return LabeledVectors(embed_words(embedder, train), labels, embed_words(embedder, tests), np.concatenate(right))


@cache
def embed_pseudo_words(preset: str, seed: int, setting: Setting) -> tuple[LabeledVectors, ...]:
    """Return uses of each pair of `PSEUDO_WORDS`, which the model reads as one word; half of them are for testing.

    (Gale et al., 1992, and Schütze, 1992, evaluated word sense disambiguation in this way.)
    """
    sentences, embedder, rng = find_sentences(setting), load_embedder(preset), np.random.default_rng(seed)
    results = []
    for pair in PSEUDO_WORDS:
        uses = [(words, position, label) for label, word in enumerate(pair) for words, position in sentences[word]]
        embeddings = embedder.embed([words for words, _, _ in uses], level="word", layers="all")
        vectors = np.stack(
            [sentence.vectors[position] for sentence, (_, position, _) in zip(embeddings, uses, strict=True)]
        )
        labels = np.array([label for _, _, label in uses])
        order = rng.permutation(len(uses))
        train, test = order[::2], order[1::2]
        results.append(LabeledVectors(vectors[train], labels[train], vectors[test], labels[test]))
    return tuple(results)


@cache
def find_sentences(setting: Setting) -> dict[str, list[tuple[list[str], int]]]:
    """Return sentences of Wikipedia with each word of `PSEUDO_WORDS`, by word: the words, and the position of the word.

    The word itself is replaced by `STANDS_FOR`.
    """
    partners = {word: partner for pair in PSEUDO_WORDS for word, partner in (pair, pair[::-1])}
    sentences: dict[str, list[Any]] = {word: [] for word in partners}
    pattern, count = re.compile("|".join(partners)), setting.size(200, 10)
    for document in read_documents(str(setting.data / "pretrain_modern/wikipedia-train-03.txt.xz")):
        for sentence in document:
            words = list_words(sentence) if pattern.search(sentence) else []
            for word in partners.keys() & set(words):
                full = len(sentences[word]) == count or not 5 <= len(words) <= 40
                if full or words.count(word) > 1 or partners[word] in words:
                    continue
                position = words.index(word)
                sentences[word].append(([*words[:position], STANDS_FOR, *words[position + 1 :]], position))
        if all(len(uses) == count for uses in sentences.values()):
            break
    return sentences
