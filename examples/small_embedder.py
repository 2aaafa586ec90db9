"""How the preset `bert_nano_embedder_en` was trained: a small `TextEmbedder` that imitates a large one.

    python examples/small_embedder.py --teacher real_weights/all-minilm-l6-v2 --data ../shared/data --output student

The student has the first, third and fifth layer of `bert_nano_en_uncased` and a dense layer to the width of the
teacher, all-MiniLM-L6-v2. Both read sentences of open texts, and the student learns to give each the teacher's vector
(`lmzoo.training.distill`). `make minilm` fetches the teacher.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import random
from collections.abc import Iterator
from pathlib import Path

import keras
from rich.console import Console

from lmzoo.data.corpora import read_documents
from lmzoo.models import TextEmbedder
from lmzoo.text.sentences import split_sentences
from lmzoo.training import AdamW, distill, smaller

WORDS = range(3, 41)  # in a sentence
PARAGRAPHS = 0.04  # share of paragraphs that are read whole
# Copies of the sources with short sentences and questions, which are what people compare.
REPEATED = {"tatoeba": 1.0, "commonvoice": 1.0, "dialogues": 0.5, "selfdialogues": 0.8, "stackexchange": 0.8}
SHARE_OF_OTHERS = 0.45


def read_sentences(files: list[Path], rng: random.Random) -> Iterator[str]:
    """Yield sentences of some files, and few whole paragraphs."""
    for file in files:
        share = REPEATED.get(file.name.split("-")[0], SHARE_OF_OTHERS)
        for document in read_documents([str(file)]):
            for paragraph in document:
                if rng.random() < PARAGRAPHS:
                    yield paragraph
                    continue
                yield from (
                    sentence
                    for sentence in split_sentences(paragraph)
                    if len(sentence.split()) in WORDS and rng.random() < share
                )


def read_questions_and_pairs(data: Path) -> Iterator[str]:
    """Yield questions on paragraphs, and the sentences of the SNLI and MNLI corpora."""
    for name in ("train-v1.1.first12", "new_wiki_v1.0", "reddit_v1.0", "amazon_reviews_v1.0"):
        articles = json.loads(gzip.decompress((data / f"squad/{name}.json.gz").read_bytes()))["data"]
        for article in articles:
            for paragraph in article["paragraphs"]:
                yield from (question["question"].strip() for question in paragraph["qas"])
    for name in ("snli_dev", "mnli_dev"):
        table = gzip.decompress((data / f"nli/{name}.open.csv.gz").read_bytes()).decode()
        for row in csv.DictReader(io.StringIO(table)):
            yield from (row[column] for column in row if column.startswith(("premise", "hypothesis", "sentence")))


def read_texts(data: Path, count: int) -> tuple[list[str], list[str]]:
    """Return `count` different texts to learn from, and 1,000 of held-out documents."""
    rng = random.Random(0)
    train = sorted((data / "pretrain_modern").glob("*-train-*.txt.xz"))
    held_out = sorted((data / "pretrain_modern").glob("*-dev.txt.xz"))
    texts = list(dict.fromkeys([*read_questions_and_pairs(data), *read_sentences(train, rng)]))
    tested = list(dict.fromkeys(read_sentences(held_out, rng)))
    rng.shuffle(texts)
    rng.shuffle(tested)
    return texts[:count], tested[:1000]


class Imitation(keras.callbacks.Callback):
    """Callback that measures how near the student is to the teacher, and stores the student.

    Args:
        student, teacher: the embedders.
        texts: held-out texts.
        output: folder of the preset.
        every: number of steps between measurements.
    """

    def __init__(
        self, student: TextEmbedder, teacher: TextEmbedder, texts: list[str], output: Path, every: int
    ) -> None:
        super().__init__()
        self.student, self.texts, self.output, self.every = student, texts, output, every
        self.targets = teacher.embed(texts)

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        if (batch + 1) % self.every == 0:
            cosine = float((self.student.embed(self.texts) * self.targets).sum(axis=-1).mean())
            Console().print(f"step {batch + 1}: loss {logs['loss']:.4f}, cosine on held-out texts {cosine:.4f}")
            self.student.save_to_preset(self.output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", default="real_weights/all-minilm-l6-v2")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=400_000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--dtype", default="float32", help="mixed_bfloat16 is quicker on processors with bfloat16")
    parser.add_argument("--every", type=int, default=500)
    options = parser.parse_args()
    keras.utils.set_random_seed(0)
    teacher = TextEmbedder.from_preset(options.teacher, sequence_length=128, dtype=options.dtype)
    projection = [{"kind": "dense", "units": 384}]
    whole = TextEmbedder.from_preset(
        "bert_nano_en_uncased", projection=projection, sequence_length=128, dtype=options.dtype
    )
    student = smaller(whole, num_layers=3)
    texts, held_out = read_texts(options.data, options.texts)
    Console().print(f"{len(texts)} texts, {sum(len(text.split()) for text in texts) / len(texts):.1f} words each")
    imitation = Imitation(student, teacher, held_out, options.output, options.every)
    optimizer = AdamW(options.learning_rate, global_clipnorm=1.0)
    distill(
        student, teacher, texts, batch_size=options.batch_size, optimizer=optimizer, callbacks=[imitation], verbose=2
    )
    student.save_to_preset(options.output)


if __name__ == "__main__":
    main()
