"""Train the preset `bert_nano_embedder_en`: a small `TextEmbedder` that imitates a large one.

    python examples/small_embedder.py --teacher real_weights/all-minilm-l6-v2 --data ../shared/data --output student

The student has the first, third and fifth layer of `bert_nano_en_uncased`, and a dense layer to the width of the
teacher, all-MiniLM-L6-v2, which `make minilm` downloads. There are three steps:

1. The student learns to give each sentence of open texts the same embedding as the teacher (`lmzoo.training.distill`).
2. It learns the same from paragraphs and more sentences.
3. It learns to match pairs: questions and answers, titles and posts, sentences and what follows from them.

The result of the third step is used only if it improves retrieval on held-out pairs.
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

WORDS = range(3, 41)  # lengths of sentences
SENTENCES_OF_PARAGRAPH = 6
# Fraction of the sentences of each source: more of short sentences and questions, which are what people compare.
FRACTIONS = {"tatoeba": 1.0, "commonvoice": 1.0, "dialogues": 0.5, "selfdialogues": 0.8, "stackexchange": 0.8}
DEFAULT_FRACTION = 0.45


def read_sentences(files: list[Path], rng: random.Random) -> Iterator[str]:
    """Yield a random sample of the sentences in some files."""
    for file in files:
        fraction = FRACTIONS.get(file.name.split("-")[0], DEFAULT_FRACTION)
        for document in read_documents([str(file)]):
            yield from (text for text in document if len(text.split()) in WORDS and rng.random() < fraction)


def read_paragraphs(files: list[Path]) -> Iterator[str]:
    """Yield the documents of some files in paragraphs of a few sentences."""
    for sentences in read_documents([str(file) for file in files]):
        for start in range(0, len(sentences), SENTENCES_OF_PARAGRAPH):
            yield " ".join(sentences[start : start + SENTENCES_OF_PARAGRAPH])


def read_articles(data: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield paragraphs of articles, posts and reviews, each with the questions about it."""
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
    """Return training pairs of texts that belong together, and held-out pairs of other documents."""
    rng = random.Random(0)
    pairs = [(premise, hypothesis) for premise, hypothesis, label in read_inferences(data) if label == "entailment"]
    pairs += [(rng.choice(questions), paragraph) for paragraph, questions in read_articles(data)]
    held_out: list[tuple[str, str]] = []
    for source in ("healthqa", "stackexchange"):
        for file in sorted((data / "pretrain_modern").glob(f"{source}-*.txt.xz")):
            threads = [document for document in read_documents([str(file)]) if len(document) > 1]
            target = held_out if "-dev" in file.name else pairs
            target += [(title, " ".join(answer[:SENTENCES_OF_PARAGRAPH])) for title, *answer in threads]
    rng.shuffle(pairs)
    return pairs, held_out


def read_texts(data: Path, num_sentences: int, num_paragraphs: int) -> tuple[list[str], list[str], list[str]]:
    """Return the texts of the first and the second step, all distinct, and 1,000 held-out sentences."""
    rng = random.Random(0)
    train = sorted((data / "pretrain_modern").glob("*-train-*.txt.xz"))
    sentences = [sentence for *pair, _ in read_inferences(data) for sentence in pair]
    questions = [question for _, questions in read_articles(data) for question in questions]
    texts = list(dict.fromkeys([*questions, *sentences, *read_sentences(train, rng)]))
    rng.shuffle(texts)
    documents = [file for file in train if file.name.split("-")[0] in ("wikipedia", "healthqa", "stackexchange")]
    paragraphs = [*(paragraph for paragraph, _ in read_articles(data)), *read_paragraphs(documents)]
    rng.shuffle(paragraphs)
    texts_of_second_step = [*paragraphs[:num_paragraphs], *texts[num_sentences : num_sentences + 3 * num_paragraphs]]
    held_out = list(read_sentences(sorted((data / "pretrain_modern").glob("*-dev.txt.xz")), rng))
    rng.shuffle(held_out)
    return texts[:num_sentences], texts_of_second_step, held_out[:1000]


class Imitation(keras.callbacks.Callback):
    """Callback that measures how close the student is to the teacher, and saves the student.

    Args:
        student: Embedder that is trained.
        teacher: Embedder that the student imitates.
        texts: Held-out texts.
        output: Directory of the preset.
        every: Number of steps between measurements.
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


def measure_retrieval(embedder: TextEmbedder, pairs: list[tuple[str, str]]) -> float:
    """Return the MRR@10 of searching for the second text of each pair among all second texts."""
    first, second = map(list, zip(*pairs, strict=True))
    return retrieval_metrics(embedder.search(first, second, top_k=10), [[i] for i in range(len(pairs))])["mrr@10"]


def match_pairs(student: TextEmbedder, data: Path, learning_rate: float, output: Path) -> TextEmbedder:
    """Train on pairs; return the embedder from before or after training, whichever is better on held-out pairs."""
    pairs, held_out = read_pairs(data)
    score_before = measure_retrieval(student, held_out)
    student.save_to_preset(output)
    student.compile(AdamW(learning_rate, global_clipnorm=1.0))
    student.fit(pairs, batch_size=64, epochs=1, verbose=2)
    score_after = measure_retrieval(student, held_out)
    Console().print(f"partners found, MRR@10: {score_before:.3f} before and {score_after:.3f} after the pairs")
    return student if score_after > score_before else TextEmbedder.from_preset(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", default="real_weights/all-minilm-l6-v2")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=900_000)
    parser.add_argument("--paragraphs", type=int, default=7_000)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--dtype", default="float32", help="mixed_bfloat16 is quicker on processors with bfloat16")
    parser.add_argument("--every", type=int, default=500, help="steps between measurements")
    options = parser.parse_args()
    keras.utils.set_random_seed(0)
    shared_options = {"sequence_length": 128, "dtype": options.dtype}
    teacher = TextEmbedder.from_preset(options.teacher, **shared_options)
    projection = [{"kind": "dense", "units": 384}]
    full_student = TextEmbedder.from_preset("bert_nano_en_uncased", projection=projection, **shared_options)
    student = smaller(full_student, num_layers=3)
    *steps, held_out = read_texts(options.data, options.sentences, options.paragraphs)
    imitation = Imitation(student, teacher, held_out, options.output, options.every)
    for texts, learning_rate in zip(steps, (options.learning_rate, options.learning_rate / 2), strict=True):
        optimizer = AdamW(learning_rate, global_clipnorm=1.0)
        distill(student, teacher, texts, batch_size=64, optimizer=optimizer, callbacks=[imitation], verbose=2)
    student = match_pairs(student, options.data, options.learning_rate / 10, options.output)
    student = student.copy_with(dtype="float32", fine_tuning=full_student.backbone.fine_tuning)
    student.windows = "auto"
    student.save_to_preset(options.output, weights_dtype="int8")


if __name__ == "__main__":
    main()
