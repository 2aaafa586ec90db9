"""Interpolated modified Kneser-Ney in dictionaries, from Chen and Goodman (1999): no code is shared with the library.

The equations are those of the paper (16, 17 and 26). As in KenLM, one `<s>` precedes a sentence; an n-gram that begins
with it keeps its own count in lower orders; and unigrams are interpolated with the uniform distribution.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

Gram = tuple[str, ...]


class KneserNey:
    """A model of sentences, each a list of words; words outside of the vocabulary are `<unk>`."""

    def __init__(self, sentences: Iterable[Sequence[str]], vocabulary: Iterable[str], order: int) -> None:
        self.words, self.order = {*vocabulary} | {"</s>", "<unk>"}, order
        text: Counter[Gram] = Counter()
        for sentence in sentences:
            padded = self.padded(sentence)
            for end in range(2, len(padded) + 1):
                text.update(tuple(padded[end - n : end]) for n in range(1, min(order, end) + 1))
        before = defaultdict(set)
        for gram in text:
            before[gram[1:]].add(gram[0])
        self.counts: dict[Gram, int] = {}
        for gram, count in text.items():
            keeps = len(gram) == order or gram[0] == "<s>"
            self.counts[gram] = count if keeps else len(before[gram])
        self.after: dict[Gram, list[int]] = defaultdict(list)
        for gram, count in self.counts.items():
            self.after[gram[:-1]].append(count)
        self.discounts = [self.estimate(n) for n in range(1, order + 1)]

    def padded(self, sentence: Sequence[str]) -> list[str]:
        return ["<s>", *(word if word in self.words else "<unk>" for word in sentence), "</s>"]

    def estimate(self, n: int) -> list[float]:
        """D(0), D1, D2 and D3+ of an order."""
        found = Counter(count for gram, count in self.counts.items() if len(gram) == n)
        y = found[1] / (found[1] + 2 * found[2])
        return [0.0, *(k - (k + 1) * y * found[k + 1] / found[k] for k in (1, 2, 3))]

    def probability(self, gram: Gram) -> float:
        """The probability of the last word after the others."""
        if not gram:
            return 1 / len(self.words)
        lower, after = self.probability(gram[1:]), self.after.get(gram[:-1])
        if not after:
            return lower
        discounts = self.discounts[len(gram) - 1]
        count = self.counts.get(gram, 0)
        gamma = sum(discounts[min(c, 3)] for c in after) / sum(after)
        return (count - discounts[min(count, 3)]) / sum(after) + gamma * lower

    def log_probabilities(self, sentence: Sequence[str]) -> list[float]:
        """Of each word and of the end."""
        padded = self.padded(sentence)
        ends = range(2, len(padded) + 1)
        return [math.log(self.probability(tuple(padded[max(0, end - self.order) : end]))) for end in ends]
