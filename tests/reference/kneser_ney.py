"""Interpolated modified Kneser-Ney with dictionaries, from Chen and Goodman (1999); it shares no code with lmzoo.

The code follows equations 16, 17 and 26 of the paper. As in KenLM, one `<s>` precedes a sentence; an n-gram that begins
with it keeps its own count in lower orders; and unigrams are interpolated with the uniform distribution.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

Gram = tuple[str, ...]


class KneserNey:
    """A model of sentences, each a list of words; words outside the vocabulary are `<unk>`."""

    def __init__(self, sentences: Iterable[Sequence[str]], vocabulary: Iterable[str], order: int) -> None:
        self.words = {*vocabulary} | {"</s>", "<unk>"}
        self.order = order
        text: Counter[Gram] = Counter()
        for sentence in sentences:
            padded = self.padded(sentence)
            for end in range(2, len(padded) + 1):
                text.update(tuple(padded[end - n : end]) for n in range(1, min(order, end) + 1))
        predecessors = defaultdict(set)
        for gram in text:
            predecessors[gram[1:]].add(gram[0])
        self.counts: dict[Gram, int] = {}
        for gram, count in text.items():
            keeps_count = len(gram) == order or gram[0] == "<s>"
            self.counts[gram] = count if keeps_count else len(predecessors[gram])
        self.after: dict[Gram, list[int]] = defaultdict(list)
        for gram, count in self.counts.items():
            self.after[gram[:-1]].append(count)
        self.discounts = [self.estimate(n) for n in range(1, order + 1)]

    def padded(self, sentence: Sequence[str]) -> list[str]:
        return ["<s>", *(word if word in self.words else "<unk>" for word in sentence), "</s>"]

    def estimate(self, n: int) -> list[float]:
        """Return the discounts D0, D1, D2 and D3+ of an order."""
        counts_of_counts = Counter(count for gram, count in self.counts.items() if len(gram) == n)
        y = counts_of_counts[1] / (counts_of_counts[1] + 2 * counts_of_counts[2])
        return [0.0, *(k - (k + 1) * y * counts_of_counts[k + 1] / counts_of_counts[k] for k in (1, 2, 3))]

    def probability(self, gram: Gram) -> float:
        """Return the probability of the last word of an n-gram, given the words before it."""
        if not gram:
            return 1 / len(self.words)
        lower, continuations = self.probability(gram[1:]), self.after.get(gram[:-1])
        if not continuations:
            return lower
        discounts = self.discounts[len(gram) - 1]
        count = self.counts.get(gram, 0)
        gamma = sum(discounts[min(c, 3)] for c in continuations) / sum(continuations)
        return (count - discounts[min(count, 3)]) / sum(continuations) + gamma * lower

    def log_probabilities(self, sentence: Sequence[str]) -> list[float]:
        """Return the log-probability of each word and of the end of the sentence."""
        padded = self.padded(sentence)
        ends = range(2, len(padded) + 1)
        return [math.log(self.probability(tuple(padded[max(0, end - self.order) : end]))) for end in ends]
