"""Perplexity of an interpolated Kneser-Ney trigram model (Kneser and Ney, 1995; Chen and Goodman, 1998, section 2.7).

This is a baseline for language models that are trained on the same documents. The vocabulary is closed, as that of
`BidirectionalLM`'s softmax: other words are `<UNK>`. The same tokens are predicted and counted as in the forward
direction of `BidirectionalLM.perplexity`: every word and every end of a sentence. Each sentence is predicted by itself,
while the LSTMs also see the sentences before it.

Let c(h, w) be how often w follows the words h, N(h) how many different words follow h, and D a discount for each order:

    p(w | h) = max(c(h, w) - D, 0) / c(h) + D N(h) / c(h) p(w | h without its first word)

Below the highest order c(h, w) is the number of different words that were seen before h, w, unless h begins with the
beginning of a sentence, before which there is no word. The order below single words is the uniform distribution. D is
n1 / (n1 + 2 n2), where n1 and n2 are the numbers of n-grams that were counted once and twice; it is 1/2 if n1 is 0.

Files hold one sentence per line, and an empty line between documents:

    python -m benchmarks.kneser_ney train.txt heldout.txt --vocabulary-size 20000
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from benchmarks.common import console
from lmzoo.data.corpora import train_words
from lmzoo.data.corpora.word_vocabulary import Document, sentences_of
from lmzoo.text.tokenizers.word_level import SENTENCE_END, SENTENCE_START, UNKNOWN

Gram = tuple[str, ...]


class KneserNey:
    """An n-gram model.

    Args:
        documents: documents to count, each a list of sentences.
        vocabulary: the known words; `<S>`, which never follows a word, may be missing.
        order: n.
    """

    def __init__(self, documents: Iterable[Document], vocabulary: Iterable[str], order: int = 3) -> None:
        self.vocabulary = {*vocabulary, SENTENCE_END, UNKNOWN} - {SENTENCE_START}
        self.order = order
        # By the length of the n-gram minus one.
        counts: list[Counter[Gram]] = [Counter() for _ in range(order)]
        for sentence in sentences_of(documents):
            counts[-1].update(self._grams(sentence))
        for n in range(order - 1, 0, -1):
            for gram, count in counts[n].items():
                counts[n - 1][gram[1:]] += count if gram[1] == SENTENCE_START else 1
        self.counts = counts
        self.totals: list[Counter[Gram]] = [Counter() for _ in range(order)]
        self.followers: list[Counter[Gram]] = [Counter() for _ in range(order)]
        self.discounts = []
        for grams, total, followers in zip(counts, self.totals, self.followers, strict=True):
            for gram, count in grams.items():
                total[gram[:-1]] += count
                followers[gram[:-1]] += 1
            of_count = Counter(grams.values())
            self.discounts.append(of_count[1] / (of_count[1] + 2 * of_count[2]) if of_count[1] else 0.5)

    def _grams(self, sentence: Iterable[str]) -> list[Gram]:
        words = [word if word in self.vocabulary else UNKNOWN for word in sentence]
        padded = [SENTENCE_START] * (self.order - 1) + [*words, SENTENCE_END]
        return [tuple(padded[i : i + self.order]) for i in range(len(words) + 1)]

    def probability(self, gram: Gram) -> float:
        """The probability of the last word after the others."""
        n, before = len(gram) - 1, gram[:-1]
        lower = self.probability(gram[1:]) if n else 1 / len(self.vocabulary)
        if not (total := self.totals[n][before]):
            return lower
        discount = self.discounts[n]
        return (max(self.counts[n][gram] - discount, 0) + discount * self.followers[n][before] * lower) / total

    def perplexity(self, documents: Iterable[Document]) -> float:
        """The exponential of the mean negative log-likelihood of all words and ends of sentences."""
        logs = [math.log(self.probability(gram)) for s in sentences_of(documents) for gram in self._grams(s)]
        return math.exp(-math.fsum(logs) / len(logs))


def read(path: Path) -> list[list[str]]:
    """The documents of a file."""
    return [block.split("\n") for block in path.read_text("utf-8").split("\n\n")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("heldout", type=Path)
    parser.add_argument("--vocabulary-size", type=int, default=20_000)
    parser.add_argument("--order", type=int, default=3)
    options = parser.parse_args()
    train, heldout = read(options.train), read(options.heldout)
    vocabulary = train_words(train, options.vocabulary_size).vocabulary
    model = KneserNey(train, vocabulary, options.order)
    console.print(f"{len(vocabulary):,} words, order {options.order}: perplexity {model.perplexity(heldout):.1f}")


if __name__ == "__main__":
    main()
