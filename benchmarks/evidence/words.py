"""Vectors of words in every layer of a preset, and what a linear classifier makes of them."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

import lmzoo
from benchmarks.evidence.claim import Setting
from benchmarks.quality import DATASETS, linear, some
from lmzoo.data.corpora import read_documents
from lmzoo.text.word_splitting import list_words

# Each pair is one made-up word of two senses. None is a name or has a plural of the same form.
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
STANDS_FOR = "thing"  # what the models read instead of both words


class Labeled(NamedTuple):
    """Words to learn from and to test on: vectors, float32 (n, L, H), and a label for each."""

    train: np.ndarray
    labels: np.ndarray
    test: np.ndarray
    right: np.ndarray

    def accuracy(self, layer: int, columns: slice = slice(None), components: int | None = None) -> float:
        """Return the accuracy of logistic regression on a layer, or on some columns or principal components of it."""
        train, test = (vectors[:, layer, columns] for vectors in (self.train, self.test))
        scaler = StandardScaler().fit(train)
        train, test = scaler.transform(train), scaler.transform(test)
        if components is not None:
            reduced = PCA(min(components, *train.shape), random_state=0).fit(train)
            train, test = reduced.transform(train), reduced.transform(test)
        return float(linear(train, self.labels, 0.1).score(test, self.right))


def embedder_of(preset: str, pretrained: bool = True) -> lmzoo.models.TextEmbedder:
    """Return the model whose layers are looked at; without pre-training, its weights are those of the random seed."""
    return lmzoo.models.TextEmbedder.from_preset(preset, load_weights=pretrained)


def vectors_of(embedder: lmzoo.models.TextEmbedder, sentences: list[list[str]]) -> np.ndarray:
    """Return the vectors of all words of some sentences, float32 (n, L, H)."""
    return np.concatenate([found.vectors for found in embedder.embed(sentences, level="word", layers="all")])


@cache
def parts_of_speech(preset: str, seed: int, setting: Setting) -> Labeled:
    """Return the words of 1,000 sentences of EWT, drawn by the seed, and of 500 of its development set."""
    (sentences, tags), (tests, right) = DATASETS["ewt"].read(setting.data)
    chosen = np.random.default_rng(seed).permutation(len(sentences))[: setting.size(1000, 30)]
    tests, right = some((tests, right), setting.size(500, 15))
    embedder, train = embedder_of(preset), [sentences[i] for i in chosen]
    labels = np.concatenate([tags[i] for i in chosen])
    return Labeled(vectors_of(embedder, train), labels, vectors_of(embedder, tests), np.concatenate(right))


@cache
def pseudo_words(preset: str, seed: int, setting: Setting) -> tuple[Labeled, ...]:
    """For each pair of `PSEUDO_WORDS` uses of both, which the model reads as one word; half of them are for testing.

    (Gale et al., 1992, and Schütze, 1992, evaluated word sense disambiguation in this way.)
    """
    sentences, embedder, rng = sentences_with(setting), embedder_of(preset), np.random.default_rng(seed)
    results = []
    for pair in PSEUDO_WORDS:
        uses = [(words, place, label) for label, word in enumerate(pair) for words, place in sentences[word]]
        found = embedder.embed([words for words, _, _ in uses], level="word", layers="all")
        vectors = np.stack([one.vectors[place] for one, (_, place, _) in zip(found, uses, strict=True)])
        labels = np.array([label for _, _, label in uses])
        order = rng.permutation(len(uses))
        train, test = order[::2], order[1::2]
        results.append(Labeled(vectors[train], labels[train], vectors[test], labels[test]))
    return tuple(results)


@cache
def sentences_with(setting: Setting) -> dict[str, list[tuple[list[str], int]]]:
    """For each word of `PSEUDO_WORDS` sentences of Wikipedia in which it was, with its place: it is replaced there."""
    wanted = {word: other for pair in PSEUDO_WORDS for word, other in (pair, pair[::-1])}
    found: dict[str, list[Any]] = {word: [] for word in wanted}
    pattern, count = re.compile("|".join(wanted)), setting.size(200, 10)
    for document in read_documents(str(setting.data / "pretrain_modern/wikipedia-train-03.txt.xz")):
        for sentence in document:
            words = list_words(sentence) if pattern.search(sentence) else []
            for word in wanted.keys() & set(words):
                full = len(found[word]) == count or not 5 <= len(words) <= 40
                if full or words.count(word) > 1 or wanted[word] in words:
                    continue
                place = words.index(word)
                found[word].append(([*words[:place], STANDS_FOR, *words[place + 1 :]], place))
        if all(len(uses) == count for uses in found.values()):
            break
    return found
