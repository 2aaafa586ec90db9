"""How the preset `bert_nano_embedder_en` was trained: a small `TextEmbedder` that imitates a large one.

    python examples/small_embedder.py --teacher real_weights/all-minilm-l6-v2 --data ../shared/data --output student

The student has the first, third and fifth layer of `bert_nano_en_uncased` and a dense layer to the width of the
teacher, all-MiniLM-L6-v2, which `make minilm` fetches. There are three steps:

1. both read sentences of open texts, and the student learns to give each the vector of the teacher
   (`lmzoo.training.distill`);
2. the same with paragraphs and other sentences;
3. the student learns to match pairs: questions and answers, titles and posts, sentences and what follows from them.

The third step is kept if it finds more partners of held-out pairs.
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
from lmzoo.evaluation import retrieval_metrics
from lmzoo.models import TextEmbedder
from lmzoo.training import AdamW, distill, smaller

WORDS = range(3, 41)  # in a sentence
SENTENCES_OF_PARAGRAPH = 6  # read together
# Shares of the sentences that are read: more of short ones and of questions, which people compare.
SHARES = {"tatoeba": 1.0, "commonvoice": 1.0, "dialogues": 0.5, "selfdialogues": 0.8, "stackexchange": 0.8}
SHARE_OF_OTHERS = 0.45


def read_sentences(files: list[Path], rng: random.Random) -> Iterator[str]:
    """Yield some of the sentences of some files."""
    for file in files:
        share = SHARES.get(file.name.split("-")[0], SHARE_OF_OTHERS)
        for document in read_documents([str(file)]):
            yield from (text for text in document if len(text.split()) in WORDS and rng.random() < share)


def read_paragraphs(files: list[Path]) -> Iterator[str]:
    """Yield the documents of some files in parts of a few sentences."""
    for sentences in read_documents([str(file) for file in files]):
        for begin in range(0, len(sentences), SENTENCES_OF_PARAGRAPH):
            yield " ".join(sentences[begin : begin + SENTENCES_OF_PARAGRAPH])


def read_articles(data: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield paragraphs of articles, posts and reviews, and the questions on each."""
    for name in ("train-v1.1.first12", "new_wiki_v1.0", "reddit_v1.0", "amazon_reviews_v1.0"):
        articles = json.loads(gzip.decompress((data / f"squad/{name}.json.gz").read_bytes()))["data"]
        for paragraph in (paragraph for article in articles for paragraph in article["paragraphs"]):
            yield paragraph["context"], [question["question"].strip() for question in paragraph["qas"]]


def read_inferences(data: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the premises, hypotheses and labels of SNLI and MNLI."""
    for name in ("snli_dev", "mnli_dev"):
        table = gzip.decompress((data / f"nli/{name}.open.csv.gz").read_bytes()).decode()
        for row in csv.DictReader(io.StringIO(table)):
            yield row["premise"], row["hypothesis"], row["label"]


def read_pairs(data: Path) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return pairs of texts that belong together to learn from, and held-out ones of other documents."""
    rng = random.Random(0)
    pairs = [(premise, hypothesis) for premise, hypothesis, label in read_inferences(data) if label == "entailment"]
    pairs += [(rng.choice(questions), paragraph) for paragraph, questions in read_articles(data)]
    held_out: list[tuple[str, str]] = []
    for source in ("healthqa", "stackexchange"):
        for file in sorted((data / "pretrain_modern").glob(f"{source}-*.txt.xz")):
            threads = [document for document in read_documents([str(file)]) if len(document) > 1]
            found = held_out if "-dev" in file.name else pairs
            found += [(title, " ".join(answer[:SENTENCES_OF_PARAGRAPH])) for title, *answer in threads]
    rng.shuffle(pairs)
    return pairs, held_out


def read_texts(data: Path, num_sentences: int, num_paragraphs: int) -> tuple[list[str], list[str], list[str]]:
    """Return the texts of the first and second step, all different, and 1,000 sentences of held-out documents."""
    rng = random.Random(0)
    train = sorted((data / "pretrain_modern").glob("*-train-*.txt.xz"))
    sentences = [sentence for *pair, _ in read_inferences(data) for sentence in pair]
    questions = [question for _, questions in read_articles(data) for question in questions]
    texts = list(dict.fromkeys([*questions, *sentences, *read_sentences(train, rng)]))
    rng.shuffle(texts)
    documents = [file for file in train if file.name.split("-")[0] in ("wikipedia", "healthqa", "stackexchange")]
    paragraphs = [*(paragraph for paragraph, _ in read_articles(data)), *read_paragraphs(documents)]
    rng.shuffle(paragraphs)
    second = [*paragraphs[:num_paragraphs], *texts[num_sentences : num_sentences + 3 * num_paragraphs]]
    held_out = list(read_sentences(sorted((data / "pretrain_modern").glob("*-dev.txt.xz")), rng))
    rng.shuffle(held_out)
    return texts[:num_sentences], second, held_out[:1000]


class Imitation(keras.callbacks.Callback):
    """Callback that measures how near the student is to the teacher, and stores the student.

    Args:
        student, teacher: the embedders.
        texts: held-out texts.
        output: directory of the preset.
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


def found_partners(embedder: TextEmbedder, pairs: list[tuple[str, str]]) -> float:
    """Return MRR@10 of the second text of each pair among all second texts."""
    first, second = map(list, zip(*pairs, strict=True))
    return retrieval_metrics(embedder.search(first, second, top_k=10), [[i] for i in range(len(pairs))])["mrr@10"]


def match_pairs(student: TextEmbedder, data: Path, rate: float, output: Path) -> TextEmbedder:
    """Train on pairs, and return the embedder that finds more partners of held-out pairs, the one before or after."""
    pairs, held_out = read_pairs(data)
    before = found_partners(student, held_out)
    student.save_to_preset(output)
    student.compile(AdamW(rate, global_clipnorm=1.0))
    student.fit(pairs, batch_size=64, epochs=1, verbose=2)
    after = found_partners(student, held_out)
    Console().print(f"partners found, MRR@10: {before:.3f} before and {after:.3f} after the pairs")
    return student if after > before else TextEmbedder.from_preset(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", default="real_weights/all-minilm-l6-v2")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=250_000)
    parser.add_argument("--paragraphs", type=int, default=20_000)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--dtype", default="float32", help="mixed_bfloat16 is quicker on processors with bfloat16")
    parser.add_argument("--every", type=int, default=500, help="steps between measurements")
    options = parser.parse_args()
    keras.utils.set_random_seed(0)
    settings = {"sequence_length": 128, "dtype": options.dtype}
    teacher = TextEmbedder.from_preset(options.teacher, **settings)
    projection = [{"kind": "dense", "units": 384}]
    whole = TextEmbedder.from_preset("bert_nano_en_uncased", projection=projection, **settings)
    student = smaller(whole, num_layers=3)
    *steps, held_out = read_texts(options.data, options.sentences, options.paragraphs)
    imitation = Imitation(student, teacher, held_out, options.output, options.every)
    for texts, rate in zip(steps, (options.learning_rate, options.learning_rate / 2), strict=True):
        optimizer = AdamW(rate, global_clipnorm=1.0)
        distill(student, teacher, texts, batch_size=64, optimizer=optimizer, callbacks=[imitation], verbose=2)
    student = match_pairs(student, options.data, options.learning_rate / 10, options.output)
    student = student.copy_with(dtype="float32", fine_tuning=whole.backbone.fine_tuning)
    student.windows = "auto"
    student.save_to_preset(options.output, weights_dtype="int8")


if __name__ == "__main__":
    main()
