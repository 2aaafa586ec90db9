"""Numbers for the card of a shipped preset: scores on held-out text, and the plot of its training loss.

    python -m benchmarks.preset_card presets/bert/bert_nano_en_uncased --data DATA --log RUN/log.csv

Encoders get the loss and accuracy on the masked tokens of 1,024 random sequences of whole sentences, and the
pseudo-perplexity of sentences (Salazar et al., 2020); ELMo gets the perplexity of the whole text in each direction. The
results of fine-tuning come from `quality`. The script writes `results/card_<preset>.json` and, with `--log`, `loss.png`
in the directory of the card.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import lmzoo
from benchmarks.common import RESULTS, console
from lmzoo.data.corpora import pack_sentences, read_documents
from lmzoo.pretraining.card import plot_loss
from lmzoo.pretraining.encoders import sample_sequences
from lmzoo.text import Preprocessor

SEQUENCES, LENGTH = 1024, 128


def score_held_out(preset: Path, files: str, sentences: int) -> dict[str, float]:
    """Return the scores on held-out text."""
    documents = list(read_documents(files))
    if isinstance(lmzoo.models.Backbone.from_preset(preset), lmzoo.models.ElmoBackbone):
        model = lmzoo.models.BidirectionalLM.from_preset(preset)
        return {f"{d} perplexity": model.perplexity(documents, direction=d) for d in ("forward", "backward")}
    model = lmzoo.models.MaskedLM.from_preset(preset)
    preprocessor = Preprocessor(model.preprocessor.tokenizer, model.preprocessor.packing, LENGTH)
    sequences = sample_sequences(pack_sentences(documents, preprocessor), SEQUENCES)
    loss, accuracy = model.evaluate(sequences, batch_size=32, verbose=0)
    lines = [line for document in documents for line in document if 60 <= len(line) <= 200]
    chosen = np.random.default_rng(0).choice(len(lines), sentences, replace=False)
    pseudo_perplexity = model.pseudo_perplexity([lines[i] for i in chosen], batch_size=64)
    return {
        "masked loss": loss,
        "masked accuracy": accuracy,
        "pseudo-perplexity": pseudo_perplexity,
        "sentences": sentences,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="directory with `pretrain/*-dev*`")
    parser.add_argument("--log", type=Path, help="log.csv of the training, for the plot")
    parser.add_argument("--tokens", type=float, default=60e6, help="tokens of the training")
    parser.add_argument("--sentences", type=int, default=200, help="for the pseudo-perplexity")
    args = parser.parse_args()
    if args.log:
        plot_loss(args.log, args.preset / "loss.png", args.tokens, args.preset.name)
    report = score_held_out(args.preset, str(args.data / "pretrain/*-dev*"), args.sentences)
    console.print(report)
    (RESULTS / f"card_{args.preset.name}.json").write_text(json.dumps(report, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
