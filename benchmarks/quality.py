"""Results of fine-tuning: presets, the same networks with random weights, and baselines without a network.

    python -m benchmarks.quality --data DATA [--presets NAME ...] [--only sst2 ewt ...] [--weights pre-trained]

Every preset, and the same network with random weights, get the same search: one run for each learning rate, the choice
of the best rate on a held-out tenth of the training examples, and two more seeds at that rate. Scores are reported on
the development set, which is used for nothing else. Runs are stored in `results/quality.json`; a stopped search
continues.
"""

from __future__ import annotations

import argparse
import collections
import csv
import gzip
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from rich.progress import Progress
from scipy import sparse
from scipy.stats import spearmanr
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, matthews_corrcoef
from sklearn.metrics.pairwise import paired_cosine_distances

import lmzoo
from benchmarks.common import RESULTS, SHARED, console, save
from lmzoo.data.readers import read_choices, read_conll, read_squad, read_table
from lmzoo.evaluation import squad_metrics
from lmzoo.text.span_labels import find_marked_spans
from lmzoo.training import AdamW

RATES = (1e-4, 3e-4, 1e-3)
SEEDS = (0, 1, 2)
VALIDATION = 500  # maximum number of examples, and at most a tenth of the training examples
WEIGHTS = {"pre-trained": True, "random weights": False}

Examples = tuple[Any, Any]  # x and y as `fit` takes them
Scores = dict[str, float]


class Dataset(NamedTuple):
    """A dataset, and the training and scores of its task; comparisons use the first score."""

    title: str
    task: str
    read: Callable[[Path], tuple[Examples, Examples]]
    score: Callable[[Any, Any, Any], Scores]  # of a task, x and y
    baseline: Callable[[Examples, Examples], tuple[str, Scores]]
    arguments: dict[str, Any] = {}  # noqa: RUF012 - the task's
    epochs: int = 4
    batch_size: int = 32
    labeled: int | None = None  # number of training examples without validation, or None for all


# === Examples ===


def take(examples: Examples, indices: Sequence[int]) -> Examples:
    """Return the examples with the given indices."""
    x, y = examples
    if isinstance(x, tuple):
        return tuple([part[i] for i in indices] for part in x), [y[i] for i in indices]
    return [x[i] for i in indices], [y[i] for i in indices]


def sample(examples: Examples, count: int | None) -> Examples:
    """Return `count` random examples, the same in every run, or all examples if None."""
    return examples if count is None else take(examples, np.random.default_rng(0).permutation(len(examples[1]))[:count])


def read_rte(folder: Path) -> tuple[Examples, Examples]:
    """Read RTE, whose development file has no header."""
    result = []
    for name, header in (("train.tsv.gz", True), ("val.tsv", False)):
        x, y = read_table(folder / "rte" / name, text=1, pair=2, label=3, header=header)
        result.append((x, [int(label == "entailment") for label in y]))
    return tuple(result)


def read_cosmos(folder: Path) -> tuple[Examples, Examples]:
    """Read Cosmos QA's public part; the questions about every fourth context are for testing."""
    names = {"prompt": ("context", "question"), "start": None, "choices": [f"answer{i}" for i in range(4)]}
    path = folder / "mc_cosmosqa/valid.open.csv.gz"
    examples = read_choices(path, **names)
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        contexts = [row["context"] for row in csv.DictReader(file)]
    number = {context: i for i, context in enumerate(dict.fromkeys(contexts))}
    tests = np.array([number[context] % 4 == 0 for context in contexts])
    return sample(take(examples, np.flatnonzero(~tests)), 600), take(examples, np.flatnonzero(tests))


def read_wikigold(folder: Path) -> tuple[Examples, Examples]:
    """Read Wikigold with B and I labels; its last fifth is for testing."""
    words, tags = read_conll(folder / "ner_wikigold/wikigold.conll.open.txt")
    marked = []
    for of_sentence in tags:
        marked.append(["O"] * len(of_sentence))
        for type_, first, end in find_marked_spans(of_sentence):
            marked[-1][first:end] = [f"B-{type_}", *[f"I-{type_}"] * (end - first - 1)]
    count = len(words) * 4 // 5
    return (words[:count], marked[:count]), (words[count:], marked[count:])


def read_trec(folder: Path) -> tuple[Examples, Examples]:
    """Read TREC with its six classes of questions; a tenth of the training questions is for testing."""
    lines = (folder / "trec/TREC.train").read_text("latin-1").splitlines()
    labels, texts = zip(*(line.split(maxsplit=1) for line in lines), strict=True)
    kinds = [label.partition(":")[0] for label in labels]
    numbers = {kind: i for i, kind in enumerate(sorted(set(kinds)))}
    order = np.random.default_rng(1).permutation(len(texts))
    examples, tests = ([*texts], [numbers[kind] for kind in kinds]), len(texts) // 10
    return take(examples, order[tests:]), take(examples, order[:tests])


def read_clinc(folder: Path) -> tuple[Examples, Examples]:
    """Read CLINC150 without the questions that have no intent."""
    with gzip.open(folder / "clinc150/data_full.train_val.json.gz", "rt", encoding="utf-8") as file:
        parts = json.load(file)
    numbers = {intent: i for i, intent in enumerate(sorted({intent for _, intent in parts["train"]}))}

    def examples(part: str) -> Examples:
        return [text for text, _ in parts[part]], [numbers[intent] for _, intent in parts[part]]

    return sample(examples("train"), 4500), examples("val")


def make_stsb_reader(highest: float) -> Callable[[Path], tuple[Examples, Examples]]:
    """Return a function that reads STS-B's pairs and their similarities, scaled to the range from 0 to `highest`."""
    columns = {"text": 0, "pair": 1, "label": 2, "header": False}
    return make_table_reader(
        "stsb/stsb-en-train.decontam.csv.gz",
        "stsb/stsb-en-dev.decontam.csv",
        4000,
        label_type=lambda score: float(score) * highest / 5,
        **columns,
    )


def make_table_reader(
    train: str, dev: str, count: int | None = None, **arguments: Any
) -> Callable[[Path], tuple[Examples, Examples]]:
    """Return a function that reads two tables with the same columns, and only `count` random rows of the first."""
    return lambda folder: (
        sample(read_table(folder / train, **arguments), count),
        read_table(folder / dev, **arguments),
    )


# === Scores ===


def predict_classes(task: Any, x: Any) -> np.ndarray:
    """Return the most probable class of each example, int (N,)."""
    return task.predict(x, verbose=0).argmax(-1)


def score_accuracy(task: Any, x: Any, y: Any) -> Scores:
    return {"accuracy": float(np.mean(predict_classes(task, x) == np.array(y)))}


def score_matthews(task: Any, x: Any, y: Any) -> Scores:
    predicted = predict_classes(task, x)
    return {"Matthews": float(matthews_corrcoef(y, predicted)), "accuracy": float(np.mean(predicted == np.array(y)))}


def score_accuracy_and_f1(task: Any, x: Any, y: Any) -> Scores:
    predicted = predict_classes(task, x)
    return {"accuracy": float(np.mean(predicted == np.array(y))), "F1": float(f1_score(y, predicted))}


def score_correlations(task: Any, x: Any, y: Any) -> Scores:
    return compute_correlations(task.score(x), y)


def score_cosines(task: Any, x: Any, y: Any) -> Scores:
    return compute_correlations(1 - paired_cosine_distances(*(task.embed(list(texts)) for texts in x)), y)


def compute_correlations(predicted: Sequence[float], y: Any) -> Scores:
    return {"Pearson": float(np.corrcoef(predicted, y)[0, 1]), "Spearman": float(spearmanr(predicted, y).statistic)}


def make_evaluation(*names: str) -> Callable[[Any, Any, Any], Scores]:
    """Return a function that evaluates a task and returns the metrics with the given names."""

    def score(task: Any, x: Any, y: Any) -> Scores:
        metrics = task.evaluate(x, y, verbose=0, return_dict=True)
        return {name: float(metrics[name]) for name in names}

    return score


def score_answers(task: Any, x: Any, y: Any) -> Scores:
    return compute_exact_f1(task.answer(x), y)


def compute_exact_f1(predicted: Sequence[Any], y: Any) -> Scores:
    metrics = squad_metrics(predicted, y)
    return {"F1": metrics["f1"] / 100, "exact": metrics["exact_match"] / 100}


# === Baselines ===


def join_pairs(x: Any) -> list[str]:
    return [" ".join(pair) for pair in zip(*x, strict=True)] if isinstance(x, tuple) else list(x)


def fit_terms(texts: Sequence[str]) -> TfidfVectorizer:
    """Fit a vectorizer to texts: TF-IDF of terms of one and two words."""
    return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit(texts)


def fit_logistic_regression(features: Any, labels: Any, inverse_penalty: float = 10) -> LogisticRegression:
    """Fit a logistic regression."""
    return LogisticRegression(C=inverse_penalty, max_iter=3000).fit(features, labels)


def make_words_baseline(score: Callable[[Any, Any, Any], Scores]) -> Callable[[Examples, Examples], tuple[str, Scores]]:
    """Return a baseline that fits a logistic regression to TF-IDF terms; for pairs, to common terms and differences."""

    def baseline(train: Examples, dev: Examples) -> tuple[str, Scores]:
        vectorizer = fit_terms(join_pairs(train[0]))

        def features(x: Any) -> Any:
            if not isinstance(x, tuple):
                return vectorizer.transform(x)
            first, second = map(vectorizer.transform, x)
            common = first.multiply(second)
            return sparse.hstack([common, abs(first - second), sparse.csr_matrix(common.sum(axis=1))]).tocsr()

        model = fit_logistic_regression(features(train[0]), train[1])
        predicted = model.predict(features(dev[0]))
        task = type("Fixed", (), {"predict": lambda self, x, verbose: np.eye(predicted.max() + 1)[predicted]})()
        return "bag of words, logistic regression", score(task, *dev)

    return baseline


def score_bag_cosines(train: Examples, dev: Examples) -> tuple[str, Scores]:
    """Score the cosines of two texts' TF-IDF vectors as predictions of their similarity."""
    vectorizer = TfidfVectorizer(sublinear_tf=True).fit(join_pairs(train[0]))
    first, second = map(vectorizer.transform, dev[0])
    bag_cosines = np.asarray(first.multiply(second).sum(axis=1)).ravel()
    return "cosine of bags of words", compute_correlations(bag_cosines, dev[1])


def predict_usual_tags(train: Examples, dev: Examples) -> list[list[str]]:
    """Tag each word with its most frequent tag, and unknown words with the most frequent tag overall."""
    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for words, tags in zip(*train, strict=True):
        for word, tag in zip(words, tags, strict=True):
            counts[word][tag] += 1
    usual = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
    default = collections.Counter(tag for tags in train[1] for tag in tags).most_common(1)[0][0]
    return [[usual.get(word, default) for word in words] for words in dev[0]]


def score_usual_tags(train: Examples, dev: Examples) -> tuple[str, Scores]:
    pairs = zip(predict_usual_tags(train, dev), dev[1], strict=True)
    right = [a == b for predicted, tags in pairs for a, b in zip(predicted, tags, strict=True)]
    return "each word's usual tag", {"accuracy": float(np.mean(right))}


def score_usual_spans(train: Examples, dev: Examples) -> tuple[str, Scores]:
    pairs = [
        ({*find_marked_spans(a)}, {*find_marked_spans(b)})
        for a, b in zip(predict_usual_tags(train, dev), dev[1], strict=True)
    ]
    num_right, num_predicted, num_labeled = (
        sum(map(len, sets)) for sets in ([a & b for a, b in pairs], *zip(*pairs, strict=True))
    )
    return "each word's usual tag", {"span_f1": 2 * num_right / (num_predicted + num_labeled)}


def score_nearest_sentence(train: Examples, dev: Examples) -> tuple[str, Scores]:
    """Score a baseline that answers with the sentence of the context that shares most words with the question."""

    def words(text: str) -> set[str]:
        return {word.strip(".,;:?!\"'()") for word in text.lower().split()}

    pairs = zip(*dev[0], strict=True)
    predicted = [max(context.split(". "), key=lambda s: len(words(s) & words(q)), default="") for q, context in pairs]
    return "the sentence most like the question", compute_exact_f1(predicted, dev[1])


def score_words_of_choices(train: Examples, dev: Examples) -> tuple[str, Scores]:
    """Score a logistic regression on the choices without their prompts, which shows how much the wording gives away."""
    texts = [text for _, choices in train[0] for text in choices]
    vectorizer = fit_terms(texts)
    right = [k == i for (_, choices), i in zip(*train, strict=True) for k in range(len(choices))]
    model = fit_logistic_regression(vectorizer.transform(texts), right)
    predicted = [np.argmax(model.decision_function(vectorizer.transform(choices))) for _, choices in dev[0]]
    return "bag of words of the choices alone", {"accuracy": float(np.mean(np.array(predicted) == np.array(dev[1])))}


# === Datasets ===

MEAN = {"pooling": "mean"}  # the nano presets were pre-trained without an objective for the first token
WNUT = Dataset(
    "WNUT-17, emerging entities",
    "TokenClassifier",
    lambda folder: tuple(read_conll(folder / f"ner_wnut17/{name}.conll") for name in ("wnut17train", "emerging.dev")),
    make_evaluation("span_f1"),
    score_usual_spans,
    epochs=5,
)
WNUT_LONG = WNUT._replace(title=f"{WNUT.title}, 15 epochs", epochs=15)
WIKIGOLD = Dataset(
    "Wikigold, entities", "TokenClassifier", read_wikigold, make_evaluation("span_f1"), score_usual_spans, epochs=10
)
# The tagger of ELMo's authors on top of the preset, with and without a conditional random field.
ENCODERS = {
    "": {},
    "-crf": {"crf": True},
    "-bilstm": {"encoder": "bilstm", "encoder_dim": 128},
    "-bilstm-crf": {"encoder": "bilstm", "encoder_dim": 128, "crf": True},
}


SST2 = Dataset(
    "SST-2, sentiment",
    "TextClassifier",
    make_table_reader(
        "sst2/stsa.binary.train", "sst2/stsa.binary.dev", format="labeled", label="label", label_type=int
    ),
    score_accuracy,
    make_words_baseline(score_accuracy),
    {"num_classes": 2, **MEAN},
)
DATASETS = {
    "sst2": SST2,
    **{
        f"sst2-{count}": SST2._replace(
            title=f"SST-2, {count:,} labeled sentences, 10 epochs", epochs=10, batch_size=16, labeled=count
        )
        for count in (100, 300, 1000)
    },
    "trec": Dataset(
        "TREC, six kinds of questions",
        "TextClassifier",
        read_trec,
        score_accuracy,
        make_words_baseline(score_accuracy),
        {"num_classes": 6, **MEAN},
    ),
    "clinc": Dataset(
        "CLINC150, 150 intents, 4,500 questions",
        "TextClassifier",
        read_clinc,
        score_accuracy,
        make_words_baseline(score_accuracy),
        {"num_classes": 150, **MEAN},
        epochs=10,
    ),
    "cola": Dataset(
        "CoLA, acceptability, 4,000 sentences",
        "TextClassifier",
        make_table_reader(
            "cola/in_domain_train.tsv", "cola/in_domain_dev.tsv", 4000, text=3, label=1, label_type=int, header=False
        ),
        score_matthews,
        make_words_baseline(score_matthews),
        {"num_classes": 2, **MEAN},
    ),
    "rte": Dataset(
        "RTE, entailment",
        "TextClassifier",
        read_rte,
        score_accuracy,
        make_words_baseline(score_accuracy),
        {"num_classes": 2, **MEAN},
    ),
    "stsb": Dataset(
        "STS-B, similarity, 4,000 pairs, both texts in one sequence",
        "TextRegressor",
        make_stsb_reader(5),
        score_correlations,
        score_bag_cosines,
        MEAN,
    ),
    "stsb-vectors": Dataset(
        "the same, a vector for each text",
        "TextEmbedder",
        make_stsb_reader(1),
        score_cosines,
        score_bag_cosines,
        {"objective": "cosine", **MEAN},
    ),
    "ewt": Dataset(
        "UD English-EWT, parts of speech, 4,000 sentences",
        "TokenClassifier",
        lambda folder: (
            sample(read_conll(folder / "pos_ewt/en_ewt-ud-train.conllu.gz"), 4000),
            read_conll(folder / "pos_ewt/en_ewt-ud-dev.conllu.gz"),
        ),
        make_evaluation("accuracy"),
        score_usual_tags,
        epochs=3,
    ),
    **{
        f"{name}{suffix}": dataset._replace(
            title=dataset.title + suffix.replace("-bilstm", ", BiLSTM").replace("-crf", ", CRF"), arguments=arguments
        )
        for name, dataset in {"wnut": WNUT, "wnut-long": WNUT_LONG, "wikigold": WIKIGOLD}.items()
        for suffix, arguments in ENCODERS.items()
    },
    "squad": Dataset(
        "SQuAD 1.1, 1,200 questions; 500 of the development set",
        "QuestionAnswerer",
        lambda folder: (
            sample(read_squad(folder / "squad/train-v1.1.first12.json.gz"), 1200),
            sample(read_squad(folder / "squad/dev-v1.1.open.json.gz"), 500),
        ),
        score_answers,
        score_nearest_sentence,
        {"sequence_length": 256},
        epochs=2,
    ),
    "cosmos": Dataset(
        "Cosmos QA, 600 questions of the public part; a quarter of it",
        "MultipleChoice",
        read_cosmos,
        make_evaluation("accuracy"),
        score_words_of_choices,
        {"sequence_length": 128, **MEAN},
        epochs=2,
        batch_size=16,
    ),
}


# === Runs ===


def run(preset: str, pretrained: bool, dataset: Dataset, rate: float, seed: int, parts: list[Examples]) -> dict:
    """Train on the first part, and return the scores on the validation set and the development set."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    train, validation, dev = parts
    arguments = dict(dataset.arguments)
    if dataset.task == "TokenClassifier":
        arguments["labels"] = sorted({tag for _, y in parts for tags in y for tag in tags})
    if dataset.task in ("TextClassifier", "TextRegressor", "MultipleChoice") and "elmo" in preset:
        arguments.pop("pooling", None)  # ELMo always pools by the mean
    task = getattr(lmzoo.models, dataset.task).from_preset(preset, load_weights=pretrained, **arguments)
    task.compile(optimizer=AdamW(rate, global_clipnorm=1.0))
    start = time.perf_counter()
    task.fit(*train, epochs=dataset.epochs, batch_size=dataset.batch_size, seed=seed, verbose=0)
    seconds = time.perf_counter() - start
    validation_scores, scores = (dataset.score(task, *part) for part in (validation, dev))
    return {
        "rate": rate,
        "seed": seed,
        "validation": next(iter(validation_scores.values())),
        **scores,
        "fit seconds": seconds,
    }


def split(examples: Examples) -> list[Examples]:
    """Split examples for training and for validation, which chooses the learning rate."""
    order = np.random.default_rng(0).permutation(len(examples[1]))
    count = min(VALIDATION, len(order) // 10)
    return [take(examples, np.sort(order[count:])), take(examples, np.sort(order[:count]))]


def compare(
    name: str,
    presets: list[str],
    folder: Path,
    rows: dict[str, list[dict]],
    keep: Callable[[], None],
    weights: dict[str, bool] = WEIGHTS,
    rates: Sequence[float] = RATES,
) -> None:
    """Do the missing runs for a dataset, and call `keep` after each, which stores `rows`."""
    dataset = DATASETS[name]
    train, dev = dataset.read(folder)
    parts = [*split(train), dev]
    if dataset.labeled is not None:
        train = parts[0] = sample(parts[0], dataset.labeled)
    if (key := f"{name} baseline") not in rows:
        kind, scores = dataset.baseline(train, dev)
        rows[key] = [{"kind": kind, "examples": len(train[1]), "tested": len(dev[1]), **scores}]
        keep()
    with Progress(console=console, transient=True) as progress:
        for preset in presets:
            for kind, pretrained in weights.items():
                runs = rows.setdefault(f"{name} {preset} {kind}", [])
                bar = progress.add_task(f"{name}, {preset}, {kind}", total=len(rates) + len(SEEDS) - 1)

                def run_once(rate: float, seed: int, runs: list = runs, bar: Any = bar, **arguments: Any) -> None:
                    if not any((row["rate"], row["seed"]) == (rate, seed) for row in runs):
                        runs.append(run(rate=rate, seed=seed, dataset=dataset, parts=parts, **arguments))
                        keep()
                    progress.advance(bar)

                for rate in rates:
                    run_once(rate, SEEDS[0], preset=preset, pretrained=pretrained)
                for seed in SEEDS[1:]:
                    run_once(find_best_rate(runs), seed, preset=preset, pretrained=pretrained)


def find_best_rate(rows: list[dict]) -> float:
    """Return the learning rate whose run with the first seed is best on the validation examples."""
    first = [row for row in rows if row["seed"] == SEEDS[0]]
    return max(first, key=lambda row: np.nan_to_num(row["validation"], nan=-np.inf))["rate"]  # NaN if constant


def make_table(rows: dict[str, list[dict]]) -> str:
    """Return the table for the documentation: mean and deviation of each dataset's first score, in percent."""
    presets = sorted({key.split(" ")[1] for key in rows if not key.endswith("baseline")})  # versions side by side
    names = ["dataset", "examples", "score", "no network", *presets]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for name, dataset in DATASETS.items():
        if f"{name} baseline" not in rows:
            continue
        (base,) = rows[f"{name} baseline"]
        measure = list(base)[3]  # after the kind and the numbers of examples
        cells = [dataset.title, f"{base['examples']:,} / {base['tested']:,}", measure]
        cells.append(f"{100 * base[measure]:.1f} ({base['kind']})")
        for preset in presets:
            spreads = [
                spread(select_best_rate(rows.get(f"{name} {preset} {weights}", [])), measure) for weights in WEIGHTS
            ]
            cells.append(" / ".join(spreads))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def select_best_rate(rows: list[dict]) -> list[dict]:
    """Return the runs with the best learning rate."""
    return [row for row in rows if row["rate"] == find_best_rate(rows)] if rows else []


def spread(rows: list[dict], measure: str) -> str:
    """Format the mean and standard deviation of a score, in percent."""
    values = [100 * row[measure] for row in rows]
    if not values:
        return "–"
    return f"{statistics.mean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def main() -> None:
    """Do the missing runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED / "data", help="parent directory of the datasets")
    parser.add_argument("--presets", nargs="+", default=["bert_nano_en_uncased"])
    parser.add_argument("--only", nargs="+", choices=DATASETS, default=list(DATASETS), metavar="SET")
    parser.add_argument("--weights", nargs="+", choices=WEIGHTS, default=list(WEIGHTS), help="Default: both.")
    parser.add_argument("--rates", nargs="+", type=float, default=RATES, help="learning rates of the first runs")
    args = parser.parse_args()
    path = RESULTS / "quality.json"
    rows = json.loads(path.read_text("utf-8"))["rows"] if path.exists() else {}
    options = {"rates": RATES, "seeds": SEEDS, "backend": keras.backend.backend()}
    for name in args.only:
        weights = {kind: WEIGHTS[kind] for kind in args.weights}
        keep = partial(save, "quality", options, rows=rows)
        compare(name, args.presets, args.data, rows, keep, weights, args.rates)
    print(make_table(rows))


if __name__ == "__main__":
    main()
