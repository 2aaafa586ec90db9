"""Perplexity of language models from n-grams to the Transformer, on one text, with equally many parameters.

All models read the tokens of one byte-level BPE tokenizer, which is trained on the training text, and are compared by
their perplexity on the tokens of the held-out documents; ends of texts do not count. The width of each neural model is
chosen to give about `--parameters` weights; the n-gram model has as many n-grams as the text. The biLM has half of its
LSTMs in each direction, and its perplexity is that of the forward direction. Each model is trained with its default
optimizer, the Transformer with the learning rate of `lmzoo.pretraining` for its width.

Stored rows are not computed again: another run adds what is missing. A training takes eight to twenty minutes on one
core that other programs use as well.

    python -m benchmarks.language_models "pretrain_modern/wiki*-train-00*" "pretrain_modern/wiki*-dev*"
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
from rich.table import Table

import benchmarks.common as common
import lmzoo
from lmzoo.data.corpora import read_documents, train_byte_pairs
from lmzoo.families import Backbone
from lmzoo.models import BidirectionalLM, CausalLM, NgramLM
from lmzoo.registry.family import families, get_family
from lmzoo.text import Preprocessor, WordTokenizer
from lmzoo.training import AdamW

PROMPT, NEW = "The", 30
HEADS = 4


def make_recurrent_builder(cell: str) -> Callable[[int, int], Backbone]:
    """Return a function that builds a model of two recurrent layers, given the vocabulary size and the width."""
    return lambda size, width: lmzoo.models.LstmLmBackbone(
        vocabulary_size=size, num_layers=2, hidden_dim=width, cell=cell
    )


def build_feed_forward(size: int, width: int) -> Backbone:
    """Build the model of Bengio et al. (2003) with direct connections."""
    return lmzoo.models.FfnnLmBackbone(
        vocabulary_size=size, window=5, hidden_dim=width, intermediate_dim=2 * width, direct=True
    )


def build_transformer(size: int, width: int) -> Backbone:
    """Build a GPT-2 with four blocks."""
    return lmzoo.models.Gpt2Backbone(
        vocabulary_size=size, num_layers=4, num_heads=HEADS, hidden_dim=width, max_sequence_length=512
    )


CAUSAL = {
    "feed-forward": build_feed_forward,
    "RNN": make_recurrent_builder("rnn"),
    "GRU": make_recurrent_builder("gru"),
    "LSTM": make_recurrent_builder("lstm"),
    "Transformer": build_transformer,
}
MODELS = ("n-gram", *CAUSAL, "biLM")


class Texts:
    """The texts and the vocabulary that all models share."""

    def __init__(self, train: str, held_out: str, characters: int, vocabulary_size: int, length: int) -> None:
        self.train, self.held_out = (
            _sample_documents(files, n) for files, n in ((train, characters), (held_out, characters))
        )
        special = families()["lstm_lm"].special_tokens
        self.tokenizer = train_byte_pairs(self.train, vocabulary_size, verbose=False, **special)
        self.length = length
        self.counts = [sum(map(len, self.tokenizer.tokenize(texts))) for texts in (self.train, self.held_out)]

    def as_words(self, texts: list[str]) -> list[list[list[str]]]:
        """Return documents of one sentence each, whose words are the tokens."""
        names = self.tokenizer.vocabulary
        return [[[names[token] for token in ids]] for ids in self.tokenizer.tokenize(texts)]


def _sample_documents(files: str, characters: int) -> list[str]:
    """Return random documents from all files, each as one text, with about `characters` characters in total."""
    texts = [" ".join(document) for document in read_documents(files)]
    order, documents, count = np.random.default_rng(0).permutation(len(texts)), [], 0
    for i in order.tolist():
        if count >= characters:
            break
        documents.append(texts[i])
        count += len(texts[i])
    return documents


def find_width(parameters: int, count: Callable[[int], int]) -> int:
    """Return the width, a multiple of the number of heads, with the nearest number of parameters."""
    low, high = 1, 2
    while count(HEADS * high) < parameters:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(HEADS * middle) < parameters else (low, middle)
    return HEADS * min((low, high), key=lambda w: abs(count(HEADS * w) - parameters))


def make_parameter_counter(build: Callable[[int], keras.Model]) -> Callable[[int], int]:
    """Return a function that counts the parameters of the model with a given width, without allocating them."""

    @cache
    def count(width: int) -> int:
        with keras.StatelessScope(initialize_variables=False):
            parameters = int(build(width).count_params())
        keras.utils.clear_session()
        return parameters

    return count


def run_ngrams(texts: Texts, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train and evaluate the n-gram model; the seed draws its sample."""
    model = NgramLM(options.order, texts.tokenizer)
    start = time.perf_counter()
    model.fit([[text] for text in texts.train], verbose=False)
    seconds = time.perf_counter() - start
    scores = [score["log_probability"] for word_scores in model.score(texts.held_out) for score in word_scores[:-1]]
    (sample,) = model.generate([PROMPT], NEW, "top_p", seed=seed)
    return make_row(-statistics.fmean(scores), sum(model.num_ngrams), seconds, sample)


def run_causal(name: str, texts: Texts, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train and evaluate a neural left-to-right model."""
    build, size = CAUSAL[name], texts.tokenizer.vocabulary_size
    width = find_width(options.parameters, make_parameter_counter(lambda width: build(size, width)))
    keras.utils.set_random_seed(seed)
    backbone = build(size, width)
    model = CausalLM(backbone, Preprocessor(texts.tokenizer, get_family(backbone).packing, texts.length))
    if name == "Transformer":
        model.compile(AdamW(1e-3 * math.sqrt(128 / width), global_clipnorm=1.0))
    start = time.perf_counter()
    model.fit(texts.train, batch_size=options.batch_size, epochs=options.epochs, verbose=options.verbose)
    seconds = time.perf_counter() - start
    (sample,) = model.generate([PROMPT], NEW, "top_p", seed=seed)
    return make_row(math.log(model.perplexity(texts.held_out)), model.count_params(), seconds, sample)


def run_bilm(texts: Texts, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train and evaluate ELMo's language model, which reads the same tokens as words."""
    words = WordTokenizer([*WordTokenizer.special_tokens, *texts.tokenizer.vocabulary])
    packing = families()["elmo"].packing

    def build(width: int) -> BidirectionalLM:
        backbone = lmzoo.models.ElmoBackbone(
            lstm_dim=2 * width, projection_dim=width, vocabulary_size=words.vocabulary_size, dropout=0.1
        )
        return BidirectionalLM(backbone, Preprocessor(words, packing), words, num_sampled=len(words.vocabulary))

    width = find_width(options.parameters, make_parameter_counter(build))
    keras.utils.set_random_seed(seed)
    model, documents = build(width), texts.as_words(texts.train)
    start = time.perf_counter()
    model.fit(documents, batch_size=options.batch_size, epochs=options.epochs, verbose=options.verbose)
    seconds = time.perf_counter() - start
    held_out, total = texts.as_words(texts.held_out), 0.0
    for document, predictions in zip(held_out, model.predict(held_out, verbose=0), strict=True):
        total += float(predictions[: len(document[0]), 0].sum(dtype="float64"))  # forward direction, without the end
    return make_row(-total / texts.counts[1], model.count_params(), seconds, None)


def make_row(nats: float, parameters: int, seconds: float, sample: str | None) -> dict[str, Any]:
    """Return a row of the results, given the mean loss in nats."""
    sample = None if sample is None else PROMPT + sample
    return {"perplexity": math.exp(nats), "parameters": parameters, "seconds": seconds, "sample": sample}


def run(name: str, texts: Texts, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train a model and evaluate it."""
    if name in CAUSAL:
        return run_causal(name, texts, options, seed)
    return (run_ngrams if name == "n-gram" else run_bilm)(texts, options, seed)


def group_by_model(rows: dict[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each model, in the order of `MODELS`."""
    return {name: model_rows for name in MODELS if (model_rows := [r for r in rows.values() if r["model"] == name])}


def show(rows: dict[str, dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("model", "perplexity", "parameters", "seconds", "sample")
    for name, model_rows in group_by_model(rows).items():
        values = [r["perplexity"] for r in model_rows]
        spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
        seconds = statistics.median(r["seconds"] for r in model_rows)
        first = model_rows[0]
        table.add_row(
            name,
            f"{statistics.fmean(values):.1f}{spread}",
            f"{first['parameters']:,}",
            f"{seconds:.0f}",
            first["sample"] or "–",
        )
    common.console.print(table)


def draw(rows: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw the perplexities of all seeds, with a row for each model."""
    from matplotlib.figure import Figure  # `pyplot` would start a graphical backend

    models = group_by_model(rows)
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    for y, model_rows in enumerate(models.values()):
        values = [r["perplexity"] for r in model_rows]
        axes.barh(y, statistics.fmean(values), color="tab:blue", alpha=0.4)
        axes.plot(values, [y] * len(values), "k.")
    axes.set_yticks(range(len(models)), [*models])
    axes.invert_yaxis()
    axes.set_xlabel("perplexity on held-out text")
    figure.savefig(path)
    common.console.print(f"drawn in {path}", highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", help="files, or a pattern; relative to the data in LMZOO_SHARED")
    parser.add_argument("held_out")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--characters", type=int, default=4_000_000, help="of the training text, and at most held out")
    parser.add_argument("--vocabulary-size", type=int, default=4000)
    parser.add_argument("--length", type=int, default=64, help="tokens of a sequence")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--order", type=int, default=5, help="of the n-grams")
    parser.add_argument("--verbose", type=int, default=1)
    parser.add_argument("--results", type=Path, default=common.RESULTS)
    options = parser.parse_args()
    common.RESULTS = options.results
    file = options.results / "language_models.json"
    # Settings that all rows share: rows with other settings do not belong in the same table.
    settings = {k: v for k, v in vars(options).items() if k not in ("models", "seeds", "verbose", "results")}
    stored = json.loads(file.read_text("utf-8")) if file.exists() else {"options": settings, "rows": {}}
    if stored["options"] != settings:
        parser.error(f"{file} holds rows with other settings, {stored['options']}: move it, or use another --results")
    rows, data = stored["rows"], common.SHARED / "data"
    missing = [(name, seed) for seed in options.seeds for name in options.models if f"{name}, {seed}" not in rows]
    if missing:
        patterns = str(data / options.train), str(data / options.held_out)
        texts = Texts(*patterns, options.characters, options.vocabulary_size, options.length)
        common.console.print(f"{texts.counts[0]:,} tokens to train on, {texts.counts[1]:,} held out")
    for name, seed in missing:
        common.console.rule(f"{name}, seed {seed}")
        rows[f"{name}, {seed}"] = {"model": name, "seed": seed, **run(name, texts, options, seed)}
        common.save("language_models", settings, rows=rows)
    show(rows)
    draw(rows, options.results / "language_models.svg")


if __name__ == "__main__":
    main()
