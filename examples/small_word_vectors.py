"""Train the preset `word2vec_nano_en`: word vectors from open texts, small enough to ship with the package.

    pip install 'lmzoo[vectors]'
    PYTHONHASHSEED=0 python examples/small_word_vectors.py --data ../shared/data --output word2vec_nano_en

Skip-gram with negative sampling (Mikolov et al., 2013, https://arxiv.org/abs/1310.4546) reads the lowercased paragraphs
five times and keeps the most frequent words. A run with one worker is reproducible; more workers are faster. The script
evaluates the vectors on the similarity judgments and analogies that gensim includes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from gensim.test.utils import datapath
from rich.console import Console

from lmzoo.data.corpora import read_documents
from lmzoo.evaluation import word_analogies, word_similarity
from lmzoo.models import StaticEmbedder


def read_paragraphs(files: list[Path]) -> Iterator[str]:
    """Yield the paragraphs of some files in lowercase."""
    for document in read_documents([str(file) for file in files]):
        yield from (paragraph.lower() for paragraph in document)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory of `pretrain` and `pretrain_modern`")
    parser.add_argument("--output", type=Path, required=True, help="directory of the preset")
    parser.add_argument("--words", type=int, default=25_000)
    parser.add_argument("--hidden-dim", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    files = sorted(options.data.glob("pretrain*/*-train-*.txt.xz"))
    embedder = StaticEmbedder.train(
        read_paragraphs(files),
        hidden_dim=options.hidden_dim,
        epochs=options.epochs,
        workers=options.workers,
        max_final_vocab=options.words,
    )
    embedder.save_to_preset(options.output, weights_dtype="int8")
    embedder = StaticEmbedder.from_preset(options.output)
    for name in ("wordsim353.tsv", "simlex999.txt"):
        scores = word_similarity(embedder, datapath(name)).scores
        Console().print(f"{name}: Spearman {scores['spearman']:.3f}, {scores['left_out']:.0%} left out")
    scores = word_analogies(embedder, datapath("questions-words.txt"), verbose=False).scores
    Console().print(f"analogies: {scores['accuracy']:.3f} of {scores['questions']}, {scores['left_out']} left out")
    for word in ("film", "doctor", "monday"):
        nearest = ", ".join(neighbor["word"] for neighbor in embedder.nearest(word, top_k=5))
        Console().print(f"{word}: {nearest}")


if __name__ == "__main__":
    main()
