"""Accuracy of linear sentiment classifiers on a preset's vectors before fine-tuning, without and with words.

The vectors of SST-2's sentences are the means of the last layer, with pre-trained and with random weights. They are
also combined with the bag of words of `quality`'s baseline: if they add nothing to the words, no recipe can improve on
the words with them.

    python -m benchmarks.quality_probe --data DATA [--presets NAME ...]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import keras
from scipy import sparse
from sklearn.preprocessing import StandardScaler

import lmzoo
from benchmarks.common import SHARED, console, save
from benchmarks.quality import DATASETS, WEIGHTS, fit_logistic_regression, fit_terms

SCALE = 0.03  # factor of the vectors when combined with words, whose vectors have length 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED / "data", help="parent directory of the datasets")
    parser.add_argument("--presets", nargs="+", default=["bert_nano_en_uncased", "roberta_nano_en"])
    args = parser.parse_args()
    (texts, labels), (tests, right) = DATASETS["sst2"].read(args.data)
    vectorizer = fit_terms(texts)
    words = [vectorizer.transform(x) for x in (texts, tests)]

    def accuracy(train: object, test: object, inverse_penalty: float) -> float:
        return fit_logistic_regression(train, labels, inverse_penalty).score(test, right)

    rows = {"words": {"words": accuracy(*words, 10)}}
    for preset in args.presets:
        for weights, pretrained in WEIGHTS.items():
            keras.utils.set_random_seed(0)
            embedder = lmzoo.models.TextEmbedder.from_preset(preset, load_weights=pretrained, normalize=False)
            scaler = StandardScaler().fit(vectors := embedder.embed(texts))  # (n, H)
            scaled = [scaler.transform(vectors), scaler.transform(embedder.embed(tests))]
            combined = [sparse.csr_matrix(sparse.hstack([w, SCALE * v])) for w, v in zip(words, scaled, strict=True)]
            rows[f"{preset} {weights}"] = {"vectors": accuracy(*scaled, 0.1), "and words": accuracy(*combined, 10)}
            console.print(preset, weights, rows[f"{preset} {weights}"])
    save("quality_probe", {"scale": SCALE}, rows=rows)


if __name__ == "__main__":
    main()
