"""Perplexity of an n-gram model with interpolated modified Kneser-Ney smoothing, `lmzoo.models.NgramLM`.

This is a baseline for language models that are trained on the same documents. The vocabulary is closed, like the
softmax of `BidirectionalLM`: other words are `<UNK>`. As in the forward direction of `BidirectionalLM.perplexity`,
every word and every end of a sentence counts. Each sentence is predicted alone, while the LSTMs also see the sentences
before it.

Files, or patterns of files, hold one sentence or paragraph per line, and an empty line between documents:

    python -m benchmarks.kneser_ney "pretrain/*-train-*" "pretrain/*-dev*" --vocabulary-size 20000
"""

from __future__ import annotations

import argparse

from benchmarks.common import console
from lmzoo.data.corpora import read_documents, train_words
from lmzoo.models import NgramLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("heldout")
    parser.add_argument("--vocabulary-size", type=int, default=20_000)
    parser.add_argument("--order", type=int, default=3)
    options = parser.parse_args()
    words = train_words(read_documents(options.train), options.vocabulary_size)
    model = NgramLM(options.order, words)
    model.fit(read_documents(options.train))
    perplexity = model.perplexity(read_documents(options.heldout))
    console.print(f"{len(model.vocabulary):,} words, order {options.order}: perplexity {perplexity:.1f}")


if __name__ == "__main__":
    main()
