"""Translation from random weights: German to English on Multi30k's 29,000 pairs of captions.

    python -m benchmarks.multi30k --data DATA/mt_multi30k --work FOLDER

The model is small, like the data: an encoder and a decoder of four blocks of width 128, with a joint vocabulary of
8,000 tokens. The scores are sacrebleu's BLEU and chrF on the validation set, which is used for nothing else, with four
beams. A stopped run continues from its last state. The results, and the seconds of each epoch, are stored in
`results/multi30k.json`, and a picture of the decoder's attention in FOLDER.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from pathlib import Path

import keras

from benchmarks.common import SHARED, console, save
from lmzoo.data.corpora import train_joint_tokenizer
from lmzoo.families.marian import FAMILY
from lmzoo.models import MarianBackbone, Seq2SeqLM
from lmzoo.text import MarianTokenizer, Preprocessor
from lmzoo.training import AdamW, ResumableCheckpoint
from lmzoo.training.throughput import Throughput

POSITIONS = 128
SENTENCE = "Auf einer Bank im Park sitzt eine alte Frau und liest ein Buch."


def read(folder: Path, part: str, count: int | None) -> tuple[list[str], list[str]]:
    """Return sentences in German, and their translations into English."""
    files = (folder / f"{part}.{language}.gz" for language in ("de", "en"))
    german, english = (gzip.decompress(file.read_bytes()).decode().splitlines()[:count] for file in files)
    return german, english


def load_or_train_tokenizer(work: Path, sources: list[str], targets: list[str], size: int) -> MarianTokenizer:
    """Return the tokenizer stored in the directory of the run; if there is none, train and store one."""
    folder = work / "tokenizer"
    if folder.exists():
        tokenizer = MarianTokenizer()
        tokenizer.load_assets(folder)
        return tokenizer
    tokenizer = train_joint_tokenizer(sources, targets, size)
    folder.mkdir(parents=True)
    tokenizer.save_assets(folder)
    return tokenizer


def build_model(tokenizer: MarianTokenizer, layers: int, width: int, dropout: float, learning_rate: float) -> Seq2SeqLM:
    """Build and compile a translation model with random weights, whose heads have a width of 32."""
    backbone = MarianBackbone(
        vocabulary_size=tokenizer.vocabulary_size,
        num_layers=layers,
        num_heads=width // 32,
        hidden_dim=width,
        intermediate_dim=2 * width,
        max_sequence_length=POSITIONS,
        dropout=dropout,
        scale_embeddings=True,
        initializer_range=width**-0.5,
    )
    model = Seq2SeqLM(backbone, Preprocessor(tokenizer, FAMILY.packing, POSITIONS))
    model.compile(AdamW(learning_rate, beta_2=0.98, global_clipnorm=1.0, schedule="inverse_square_root"))
    return model


def draw(model: Seq2SeqLM, path: Path, layer: int = -1) -> None:
    """Draw the decoder's attention while it translates a sentence."""
    from matplotlib.figure import Figure  # `pyplot` would start a graphical backend

    (translation,) = model.translate([SENTENCE])
    read, written, attention = model.source_attention(SENTENCE, translation, layer)
    figure = Figure(figsize=(6.4, 5), layout="constrained")
    axes = figure.subplots()
    axes.imshow(attention, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(read)), [token.replace("▁", " ").strip() for token in read], rotation=60, ha="right")
    axes.set_yticks(range(len(written)), [token.replace("▁", " ").strip() for token in written])
    figure.savefig(path, metadata={"Date": None})
    console.print(f"written to {path}", highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED / "data/mt_multi30k", help="directory of the four files")
    parser.add_argument("--work", type=Path, required=True, help="directory for tokenizer, states and preset")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--vocabulary-size", type=int, default=8000)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, help="pairs to train and validate on, for a trial")
    parser.add_argument("--name", default="multi30k", help="name of the result file")
    options = parser.parse_args()
    keras.utils.set_random_seed(options.seed)
    train, validation = (read(options.data, part, options.limit) for part in ("train", "val"))
    tokenizer = load_or_train_tokenizer(options.work, *train, options.vocabulary_size)
    model = build_model(tokenizer, options.layers, options.width, options.dropout, options.learning_rate)
    steps = -(-len(train[0]) // options.batch_size) * options.epochs
    words = sum(len(text.split()) for text in train[1]) / len(train[1])
    throughput = Throughput(options.batch_size * words, steps, True, console.print)
    checkpoint = ResumableCheckpoint(options.work / "states")
    model.fit(
        train,
        batch_size=options.batch_size,
        epochs=options.epochs,
        callbacks=[
            checkpoint,
            throughput,
            keras.callbacks.CSVLogger(log := options.work / "log.csv", append=True),
        ],
        seed=options.seed,
        verbose=0,
    )
    if checkpoint.stopped:
        return
    epochs = list(csv.DictReader(log.read_text("utf-8").splitlines()))
    seconds = sum(steps / options.epochs * throughput.tokens / float(epoch["tokens_per_second"]) for epoch in epochs)
    model.save_to_preset(options.work / "preset", overwrite=True)
    report = model.report(validation, verbose=0)
    console.print(report.scores)
    console.print(list(zip(validation[0], model.translate(validation[0][:5]), validation[1], strict=False))[:5])
    draw(model, options.work / "attention.svg")
    save(options.name, {**vars(options), "data": "multi30k", "work": ""}, scores=report.scores, seconds=seconds)


if __name__ == "__main__":
    main()
