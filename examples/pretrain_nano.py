"""Pre-trains the shipped `bert_nano_en_uncased` from a folder of text files.

    python examples/pretrain_nano.py CORPUS --work runs/bert_nano --output presets/bert/bert_nano_en_uncased

CORPUS holds `*-train-*` and `*-dev*` files, `.txt` or `.txt.xz`: one paragraph a line, a blank line between documents.
A run that was stopped goes on from its last checkpoint in `--work` when it is started again.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np

import lmzoo
from lmzoo.models.family import families
from lmzoo.presets.loading import save_preset
from lmzoo.text import EncodedTexts, Preprocessor, WordPieceTokenizer
from lmzoo.training import AdamW, pack_documents, read_documents, train_wordpiece

VOCABULARY_SIZE = 8000
POSITIONS = 512
# The initialiser's range keeps attention scores as wide as in a model of width 768, where it is 0.02.
ARCHITECTURE = {
    "num_layers": 4,
    "num_heads": 2,
    "hidden_dim": 128,
    "intermediate_dim": 512,
    "max_sequence_length": POSITIONS,
    "initializer_range": 0.05,
}
SHORT = 128  # most rows are this long, as in BERT's own recipe; a tenth of the tokens trains the later positions


def documents(corpus: Path, pattern: str) -> Iterator[list[str]]:
    """The documents of all matching files, each a list of paragraphs."""
    return read_documents(sorted(corpus.glob(pattern)), split=False)


def load_tokenizer(corpus: Path, work: Path) -> WordPieceTokenizer:
    """Learns the vocabulary, or reads it from an earlier start of the run."""
    tokenizer = WordPieceTokenizer()
    if not (work / "vocabulary.txt").exists():
        lines = (line for document in documents(corpus, "*-train-*") for line in document)
        train_wordpiece(lines, VOCABULARY_SIZE).save_assets(work)
    tokenizer.load_assets(work)
    return tokenizer


def rows(texts: list[list[str]], tokenizer: WordPieceTokenizer) -> EncodedTexts:
    """Packs nine tenths of the documents into short rows and the rest into rows of full length."""
    packing = families()["bert"].packing
    parts = [
        pack_documents((t for i, t in enumerate(texts) if (i % 10 == 0) == long), Preprocessor(tokenizer, packing, n))
        for n, long in ((SHORT, False), (POSITIONS, True))
    ]
    splits = np.concatenate([[0], np.cumsum(np.concatenate([p.lengths for p in parts]))])
    return EncodedTexts(np.concatenate([p.token_ids for p in parts]), splits, np.concatenate([p.second for p in parts]))


def sinusoids(positions: int, config: lmzoo.models.bert.BertConfig) -> np.ndarray:
    """Start of the position table: the sines of Vaswani et al. (2017), of the other tables' size.

    From random positions a small model stays a bag of words for millions of tokens before it learns to look at
    neighbours; from these it need not.
    """
    rate = 10_000.0 ** (-2 * np.arange(config.hidden_dim // 2) / config.hidden_dim)
    angle = np.arange(positions)[:, None] * rate  # (T, H / 2)
    return np.sqrt(2) * config.initializer_range * np.concatenate([np.sin(angle), np.cos(angle)], axis=1)


def write_preset(model: lmzoo.models.MaskedLM, output: Path, tokens: float) -> None:
    """Saves the model as the preset, with the dropout that fine-tuning wants."""
    config = {**model.backbone.get_config(), "dropout": 0.1}
    task = lmzoo.models.MaskedLM(lmzoo.models.BertBackbone(**config), model.preprocessor)
    task.set_weights(model.get_weights())
    save_preset(
        task,
        output,
        preprocessor=task.preprocessor,
        languages=["en"],
        licence="Apache-2.0",
        description=f"{ARCHITECTURE['num_layers']}-layer BERT of width {ARCHITECTURE['hidden_dim']} for trying things "
        f"out: {tokens / 1e6:.0f}M tokens of English books and textbooks.",
    )


def main() -> None:
    """Runs or resumes the training and writes the preset."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="folder for the vocabulary, checkpoint and log")
    parser.add_argument("--output", type=Path, required=True, help="preset to write at the end")
    parser.add_argument("--rounds", type=int, default=140, help="rounds of --steps steps")
    parser.add_argument("--steps", type=int, default=100, help="steps of a round")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    checkpoint, log = args.work / "checkpoint.keras", args.work / "log.csv"

    tokenizer = load_tokenizer(args.corpus, args.work)
    train = rows(list(documents(args.corpus, "*-train-*")), tokenizer)
    heldout = rows(list(documents(args.corpus, "*-dev*")), tokenizer)[:1024]
    print(f"{len(train)} rows, {len(train.token_ids) / 1e6:.1f}M tokens; held out: {len(heldout)} rows", flush=True)

    if checkpoint.exists():
        model = keras.saving.load_model(checkpoint)
        done = int(model.optimizer.iterations) // args.steps
        print(f"resuming after round {done}", flush=True)
    else:
        done = 0
        # No dropout: each token is seen about twice, so there is nothing to keep from overfitting.
        backbone = lmzoo.models.BertBackbone(vocabulary_size=tokenizer.vocabulary_size, dropout=0.0, **ARCHITECTURE)
        backbone.embeddings.position_embedding.embeddings.assign(sinusoids(POSITIONS, backbone.config))
        preprocessor = Preprocessor(tokenizer, families()["bert"].packing, POSITIONS)
        model = lmzoo.models.MaskedLM(backbone, preprocessor)
        model.compile(optimizer=AdamW(args.learning_rate, global_clipnorm=1.0), jit_compile=True)
    model.fit(
        train,
        batch_size=args.batch_size,
        steps_per_epoch=args.steps,
        initial_epoch=done,
        epochs=args.rounds,
        seed=done,
        validation_data=(heldout, None),
        validation_freq=10,
        verbose=2,
        callbacks=[
            keras.callbacks.CSVLogger(log, append=True),
            keras.callbacks.ModelCheckpoint(checkpoint),
        ],
    )
    seen = args.rounds * args.steps * args.batch_size * len(train.token_ids) / len(train)
    write_preset(model, args.output, seen)
    with open(log, newline="") as file:
        print(json.dumps(list(csv.DictReader(file))[-1]))


if __name__ == "__main__":
    main()
