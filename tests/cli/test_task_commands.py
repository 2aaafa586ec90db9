"""`lmzoo fit`, `evaluate` and `predict` for every kind of task, on tiny models and files written here."""

from __future__ import annotations

import csv
import datetime
import io
import json
import math
import os
import re
import signal
import sys
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import pyarrow
import pytest
import typer
from pyarrow import parquet

from lmzoo import models
from lmzoo.families.bert import FAMILY
from lmzoo.families.gpt2 import FAMILY as GPT2
from lmzoo.families.marian import FAMILY as MARIAN
from lmzoo.families.t5 import FAMILY as T5
from lmzoo.testing.tiny import public_tasks, tiny_backbone, tiny_preprocessor, tiny_task, tiny_texts
from lmzoo.text import Preprocessor, T5Tokenizer, TextWarning
from lmzoo_cli import examples, fine_tuning
from lmzoo_cli.answers import open_output, write_csv
from lmzoo_cli.examples import Columns, read_label_sets, read_numbers, read_questions, read_texts, read_words
from lmzoo_cli.fine_tuning import class_weights
from lmzoo_cli.predicting import Prediction
from lmzoo_cli.task_kinds import KINDS, get_kind
from lmzoo_cli.task_scores import score
from tests.cli.commands import EAGERLY, error_of, json_lines, run, run_line

pytestmark = EAGERLY

TEXTS = tiny_texts(13)
SENTIMENT = ["pos" if "good" in text or "fine" in text else "neg" for text in TEXTS]
TOPICS = [[name for name in ("film", "good", "dull") if name in text] for text in TEXTS]


def scores_of(output):
    """Return the scores of the first table with the titles "score" and "value"."""
    lines = output.split("score\tvalue\n")[1].split("\n\n")[0].splitlines()
    return {name: float(value) for name, value in (line.split("\t") for line in lines)}


# === A file and its options for each kind of task ===


class Case(NamedTuple):
    """A file, the options for its columns, the keys of an answer, the names of the scores."""

    name: str
    text: str
    options: list[str]
    answer: set[str]
    scores: set[str]


def _csv(*columns):
    return "".join(",".join(map(str, row)) + "\n" for row in zip(*columns, strict=True))


def _squad():
    rows = [(text.split()[1], len(text.split()[0]) + 1, text) for text in TEXTS]
    paragraphs = [
        {
            "context": text,
            "qas": [{"question": "the film", "answers": [{"text": word, "answer_start": start}] * (i % 4 > 0)}],
        }
        for i, (word, start, text) in enumerate(rows)
    ]
    return json.dumps({"data": [{"paragraphs": paragraphs}]})


SPANS = ["O", "B-X", "I-X", "B-Y"]
CONLL = "\n".join("".join(f"{w} {SPANS[len(w) % 4]}\n" for w in text.split()) for text in TEXTS)
SWAG = "sent1,sent2,ending0,ending1,ending2,ending3,label\n" + _csv(
    TEXTS, TEXTS[::-1], *[[word] * 13 for word in ("good", "bad", "dull", "fine")], [i % 4 for i in range(13)]
)
LOSS, ANSWERABLE = {"loss"}, {"answerable_exact_match", "answerable_f1", "unanswerable_accuracy"}
CASES = {
    "classifier": Case(
        "reviews.csv",
        "review,sentiment\n" + _csv(TEXTS, SENTIMENT),
        ["--text", "review", "--label", "sentiment"],
        {"label", "score"},
        LOSS | {"accuracy", "macro_f1", "mcc"},
    ),
    "multi-label": Case(
        "topics.jsonl",
        "".join(json.dumps({"text": text, "label": row}) + "\n" for text, row in zip(TEXTS, TOPICS, strict=True)),
        [],
        {"label", "score"},
        LOSS | {"micro_f1", "macro_f1", "exact"},
    ),
    "regressor": Case(
        "stsb.csv",
        _csv(TEXTS, TEXTS[::-1], map(len, TEXTS)),
        ["--no-header", "--text", "0", "--pair", "1", "--label", "-1", "--scale", "10"],
        set(),
        LOSS | {"pearson", "spearman"},
    ),
    "tagger": Case(
        "ner.conll",
        CONLL,
        [],
        {"text", "label", "score", "start", "end"},
        LOSS | {"accuracy", "span_precision", "span_recall", "span_f1", "macro_f1"},
    ),
    "qa": Case(
        "squad.json",
        _squad(),
        [],
        {"text", "start", "end", "score"},
        LOSS | {"span_accuracy", "exact_match", "f1", *ANSWERABLE},
    ),
    "choice": Case("swag.csv", SWAG, [], {"index", "choice", "score"}, LOSS | {"accuracy"}),
    "masked-lm": Case("texts.txt", "\n".join(TEXTS), [], {"token", "score", "text"}, LOSS | {"accuracy", "perplexity"}),
    "causal-lm": Case("prompts.txt", "\n".join(TEXTS), [], set(), LOSS | {"accuracy", "perplexity"}),
    "translation": Case(
        "translations.tsv",
        "de\ten\n" + _csv(TEXTS, TEXTS[::-1]).replace(",", "\t"),
        ["--text", "de", "--pair", "en"],
        set(),
        LOSS | {"accuracy", "bleu", "chrf"},
    ),
    "embedder": Case(
        "pairs.tsv",
        "one\ttwo\tscore\n" + _csv(TEXTS, TEXTS[::-1], [len(text) % 6 for text in TEXTS]).replace(",", "\t"),
        ["--text", "one", "--pair", "two", "--label", "score", "--scale", "5"],
        set(),
        LOSS | {"pearson", "spearman"},
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write the files of all cases and a preset for each kind of model, and return their directory."""
    folder = tmp_path_factory.mktemp("cli")
    for case in CASES.values():
        (folder / case.name).write_text(case.text, "utf-8")
    tiny_task(models.MaskedLM, FAMILY).save_to_preset(folder / "preset")
    tiny_task(models.CausalLM, GPT2).save_to_preset(folder / "causal-lm")
    tiny_task(models.Seq2SeqLM, MARIAN).save_to_preset(folder / "translation")
    return folder


@pytest.fixture(scope="module")
def fitted(folder):
    """Return a function that trains a kind of task once, and returns its file and the command's result."""
    fits = {}

    def fit(kind):
        if kind not in fits:
            case, output = CASES[kind], folder / f"{kind}.keras"
            preset = folder / (kind if kind in ("causal-lm", "translation") else "preset")
            arguments = [folder / case.name, "--preset", preset, "--output", output, *case.options]
            result = run("fit", *arguments, "--task", kind, "--epochs", 1, "--validation-split", 0.3, "--seed", 5)
            fits[kind] = (output, result)
        return fits[kind]

    return fit


# === Tests for each task ===


def some_kinds(*names):
    """Return all kinds, those without a name here marked slow. `test_fit` evaluates a model of each."""
    slow = [pytest.mark.slow]
    return [pytest.param(kind, id=kind.name, marks=slow * (kind.name not in names)) for kind in KINDS]


def test_every_task_with_predictions_has_a_kind():
    # Tasks that only pretrain give no answers and learn from documents: `lmzoo pretrain` trains them.
    names = {task.__name__ for task in public_tasks() if task.answers is not models.Task.answers}
    assert {kind.task_class.__name__ for kind in KINDS} == names
    for kind in KINDS:
        assert get_kind(kind.name) is kind
        for name in (kind.task_class.__name__, kind.task_class.head_kind):
            assert get_kind(name).task_class is kind.task_class
    assert get_kind("TextClassifier").name == "classifier"
    assert {kind.name for kind in KINDS} == CASES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_fit(fitted, kind):
    output, result = fitted(kind.name)
    assert isinstance(keras.saving.load_model(output), kind.task_class)
    assert scores_of(result.stdout).keys() == CASES[kind.name].scores
    assert all(math.isfinite(score) for score in scores_of(result.stdout).values())
    assert f"Wrote {output}." in " ".join(result.stderr.split("\n"))
    assert "loss:" in result.stdout


@pytest.mark.slow_cases("masked-lm", "tagger")
@pytest.mark.parametrize("kind", some_kinds("classifier", "tagger", "masked-lm"))
def test_evaluate(folder, fitted, kind):
    case, (model, _) = CASES[kind.name], fitted(kind.name)
    path = folder / f"{kind.name}.json"
    result = run("evaluate", model, folder / case.name, *case.options, "--json", path, "--batch-size", 3)
    report = json.loads(path.read_text("utf-8"))
    assert report["scores"] == scores_of(result.stdout)
    assert report["scores"].keys() == case.scores
    assert report["examples"] == len(TEXTS)
    if kind.name == "masked-lm":
        # The perplexity is that of the loss before rounding: six digits of the loss are too few for it.
        x, _ = kind.reading.read(folder / case.name, _columns(case.options), False, None)
        task = keras.saving.load_model(model)
        task.compile()
        loss = task.report([*x], batch_size=3, verbose=0).scores["loss"]
        assert report["scores"]["loss"] == float(f"{loss:.6g}")
        assert report["scores"]["perplexity"] == float(f"{math.exp(loss):.6g}")


def test_a_model_of_dropped_spans_is_evaluated_on_texts_alone(folder, tmp_path):
    tokenizer = T5Tokenizer.of_words(["the", "film", "good"], T5.tiny.vocabulary_size, num_sentinels=20)
    preprocessor = Preprocessor(tokenizer, T5.packing, 31)
    models.Seq2SeqLM(tiny_backbone(T5), preprocessor, span_corruption={}).save_to_preset(tmp_path / "t5")
    scores = scores_of(run("evaluate", tmp_path / "t5", folder / "texts.txt").stdout)
    assert scores.keys() == {"loss", "accuracy", "perplexity"}
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]), rel=1e-3)
    message = error_of("evaluate", tmp_path / "t5", folder / "pairs.tsv", "--text", "one", "--pair", "two")
    assert "With `span_corruption` a Seq2SeqLM learns from documents" in message


@pytest.mark.slow_cases("embedder", "multi-label", "qa")
@pytest.mark.parametrize("kind", some_kinds("multi-label", "qa", "embedder"))
def test_predict(folder, fitted, kind):
    case, (model, _) = CASES[kind.name], fitted(kind.name)
    data, options = folder / case.name, case.options
    if kind.name == "masked-lm":
        data = folder / "masked.txt"
        data.write_text("".join(f"{text} [MASK]\n" for text in TEXTS))
    if "--label" in options:
        options = options[: options.index("--label")]
    result = run("predict", model, data, *options, "--batch-size", 1)
    answers = [_answer(kind, row) for row in map(json.loads, result.stdout.splitlines())]
    assert len(answers) == len(TEXTS)
    task = keras.saving.load_model(model)
    x, _ = kind.reading.read(data, _columns(options), False, None)
    expected = json.loads(json.dumps(task.answers(x), default=np.ndarray.tolist))
    for answer, expected_answer in zip(answers, expected, strict=True):
        actual, reference = map(_best, (answer, expected_answer))
        if case.answer and answer:
            assert actual.keys() == case.answer
            score, reference_score = actual.pop("score"), reference.pop("score")
            assert actual == reference
            actual, reference = score, reference_score
        if kind.name in ("causal-lm", "translation"):
            assert actual == reference
            continue
        np.testing.assert_allclose(actual, reference, rtol=1e-4, atol=1e-5)
    assert result.stderr == ""


def _best(answer):
    """Return the first of several answers, or the only answer."""
    return answer[0] if isinstance(answer, list) and answer and isinstance(answer[0], dict) else answer


def _answer(kind, row):
    """Return what the task's method returned, without the fields of the example."""
    fields = {name: value for name, value in row.items() if name not in (*kind.task_class.input_names, "actual")}
    assert len(row) > len(fields)
    return next(iter(fields.values())) if fields.keys() in ({"answer"}, {"answers"}, {"score"}, {"vector"}) else fields


def _columns(options):
    values = dict(pairwise(options))
    return Columns(values.get("--text"), values.get("--pair"), header="--no-header" not in options)


# === Input and output ===


def test_fit_prints_the_counts_of_labels(fitted):
    table = fitted("classifier")[1].stdout.split("\n\n")[0].splitlines()
    assert table[0] == "label\ttraining\tvalidation"
    rows = [line.split("\t") for line in table[1:]]
    totals = {label: int(training) + int(validation) for label, training, validation in rows}
    assert list(totals.items()) == [(label, SENTIMENT.count(label)) for label in ("neg", "pos")]
    assert sum(int(validation) for *_, validation in rows) == round(0.3 * len(TEXTS))


@pytest.mark.slow
def test_several_labels_in_a_cell(folder, fitted):
    model, data = fitted("multi-label")[0], folder / "topics.csv"
    data.write_text("text,label\n" + _csv(TEXTS, ["|".join(row) for row in TOPICS]))
    results = [run("evaluate", model, path) for path in (data, folder / "topics.jsonl")]
    assert scores_of(results[0].stdout) == scores_of(results[1].stdout)
    table = results[0].stdout.split("class\tprecision\trecall\tf1\tcount\n")[1].split("\n\n")[0].splitlines()
    counts = {line.split("\t")[0]: int(line.split("\t")[-1]) for line in table}
    assert counts == {name: sum(name in row for row in TOPICS) for name in ("dull", "film", "good")}
    for threshold, count in ((0, 3), (1, 0)):
        rows = json_lines(run("predict", model, data, "--threshold", threshold))
        assert [len(row["answers"]) for row in rows] == [count] * len(TEXTS)
    data.write_text("text,label\n" + _csv(TEXTS[:2], ["film", "film | war"]))
    assert "topics.csv, line 3: the label 'war' is unknown" in error_of("evaluate", model, data)
    data.write_text("text,label\n" + _csv(TEXTS[:2], ["", ""]))
    arguments = [data, "--task", "multi-label", "--preset", folder / "preset", "--output", folder / "no.keras"]
    assert "No example of" in error_of("fit", *arguments)


@pytest.mark.slow
def test_numeric_labels_are_in_numeric_order(folder, fitted):
    path = folder / "stars.csv"
    path.write_text("text,label\n" + _csv(TEXTS[:4], [10, 9, 2, 10]))
    common = ["fit", path, "--task", "TextClassifier", "--preset", folder / "preset", "--epochs", 1]
    common += ["--sequence-length", 31, "--learning-rate", 0.125, "--pooling", "mean"]
    common += ["--windows", 3, "--stride", 11, "--window-pooling", "max"]
    result = run(*common, "--output", folder / "stars.keras")
    assert [line.split("\t")[0] for line in result.stdout.splitlines()[:4]] == ["label", "2", "9", "10"]
    task = keras.saving.load_model(folder / "stars.keras")
    assert task.labels == ("2", "9", "10")
    assert task.preprocessor.sequence_length == 31
    assert float(task.optimizer.learning_rate) == 0.125
    assert task.pooling == "mean"
    assert (task.windows, task.stride, task.window_pooling) == (3, 11, "max")
    lines = run("predict", folder / "stars.keras", path, "--windows", "auto").stdout.splitlines()
    assert len(lines) == 4
    message = error_of("evaluate", fitted("regressor")[0], path, "--windows", "auto")
    assert "A TextRegressor has no windows to set" in message


@pytest.mark.slow
def test_the_seed_decides_the_weights(folder, fitted):
    case = CASES["classifier"]
    common = ["fit", folder / case.name, *case.options, "--task", "classifier", "--preset", folder / "preset"]
    common += ["--epochs", 1, "--validation-split", 0.3]
    paths = [fitted("classifier")[0], folder / "same.keras", folder / "other.keras"]
    run(*common, "--output", paths[1], "--seed", 5)
    run(*common, "--output", paths[2], "--seed", 4)
    weights = [keras.saving.load_model(path).head.get_weights()[0] for path in paths]
    np.testing.assert_array_equal(weights[1], weights[0])
    assert np.abs(weights[2] - weights[0]).max() > 1e-3


def test_arguments_of_the_model_depend_on_the_labels():
    answer = [{"text": "a", "answer_start": 0}]
    for no_answer in ([], None, {"text": [], "answer_start": []}):
        assert models.QuestionAnswerer.arguments_for([answer, no_answer]) == {"null_score_threshold": 0.0}
    assert models.QuestionAnswerer.arguments_for([answer, answer]) == {}
    assert models.TextEmbedder.arguments_for(None) == {"objective": "contrastive"}
    assert models.TextEmbedder.arguments_for([0.5]) == {"objective": "cosine"}
    assert models.TextClassifier.arguments_for(["a", "b"]) == {}


def test_scores_are_divided_by_the_scale(folder):
    columns = Columns("0", label="2", header=False, scale=10)
    assert read_numbers(folder / "stsb.csv", columns, labeled=True)[1] == [len(text) / 10 for text in TEXTS]


@pytest.mark.slow
def test_fit_tunes_the_null_threshold_on_validation_examples(fitted):
    task = keras.saving.load_model(fitted("qa")[0])
    assert task.null_score_threshold not in (None, 0.0)


@pytest.mark.slow
def test_pairs_without_labels_are_trained_contrastively(folder):
    model, data = folder / "contrastive.keras", folder / "pairs.tsv"
    common = ["--task", "embedder", "--preset", folder / "preset", "--output", model, "--validation", data]
    result = run("fit", data, *common, "--text", "one", "--pair", "two", "--epochs", 1)
    assert scores_of(result.stdout).keys() == {"loss", "accuracy"}
    result = run("evaluate", model, data, "--text", "one", "--pair", "two", "--label", "score")
    assert scores_of(result.stdout).keys() == {"loss", "accuracy", "pearson", "spearman"}


def test_predict_reads_standard_input(fitted):
    model, _ = fitted("classifier")
    rows = json_lines(run("predict", model, "-", "--top-k", 2, stdin="good film\n\nbad plot\n"))
    assert [{answer["label"] for answer in row["answers"]} for row in rows] == [{"neg", "pos"}] * 3
    assert [row["text"] for row in rows] == ["good film", "", "bad plot"]
    examples = "".join(json.dumps({"a": text}) + "\n" for text in TEXTS)
    result = run("predict", model, "-", "--format", "jsonl", "--text", "a", stdin=examples)
    assert len(result.stdout.splitlines()) == len(TEXTS)


@pytest.mark.slow
def test_a_tagger_reads_lines_of_text(fitted):
    (row,) = json_lines(run("predict", fitted("tagger")[0], "-", stdin="the film was good.\n"))
    for span in row["answers"]:
        assert "the film was good."[span["start"] : span["end"]] == span["text"]


@pytest.mark.slow
def test_predictions_replace_a_file_only_with_overwrite(folder, fitted):
    path = folder / "new" / "answers.jsonl"
    command = ["predict", fitted("classifier")[0], folder / CASES["classifier"].name, "--text", "review", "-o", path]
    assert run(*command).stdout == ""
    answers = path.read_bytes()
    assert len(answers.splitlines()) == len(TEXTS)
    assert "pass --overwrite" in error_of(*command)
    run(*command, "--overwrite", "--top-k", 2)
    assert path.read_bytes() != answers


def read_csv(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_answers_in_csv(folder, fitted):
    """Each example has a row with its text or id and its label."""
    model, data, path = fitted("classifier")[0], folder / "with_ids.csv", folder / "answers.csv"
    texts = ['good, "fine" film', "bad\nplot", "Gœd"]
    with open(data, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("key", "text", "label"), *zip("abc", texts, ["pos", "", "other"], strict=True)])
    run("predict", model, data, "--output", path, "--batch-size", 1)
    rows = read_csv(path)
    assert [list(row) for row in rows] == [["text", "actual", "label", "score"]] * 3
    assert [row["text"] for row in rows] == texts
    assert [row["actual"] for row in rows] == ["pos", "", "other"]  # unchecked
    expected = keras.saving.load_model(model).classify(texts)
    assert [row["label"] for row in rows] == [answer["label"] for answer in expected]
    for row, answer in zip(rows, expected, strict=True):
        assert float(row["score"]) == pytest.approx(answer["score"], rel=1e-4)
        assert len(row["score"].strip("0.")) <= 6
    with_ids = run("predict", model, data, "--id", "key", "--label", "label", "--format", "csv").stdout
    assert with_ids.splitlines()[0] == "id,actual,label,score"
    assert [line[:2] for line in with_ids.splitlines()[1:]] == ["a,", "b,", "c,"]
    lines = run("predict", model, data, "--id", "key", "--output", folder / "answers.txt")
    assert lines.stdout == ""
    assert [json.loads(line)["id"] for line in (folder / "answers.txt").read_text().splitlines()] == ["a", "b", "c"]
    message = error_of("predict", fitted("tagger")[0], folder / "ner.conll", "--id", "0")
    assert "--id and --label name columns of tables" in message
    assert "has no column 'keys'" in error_of("predict", model, data, "--id", "keys")


def csv_of(answers):
    file = io.BytesIO()
    write_csv(file, answers)
    return file.getvalue().decode()


def test_any_number_of_answers_in_csv():
    """Examples without answers also have a row, even before the columns are known."""
    answer = {"text": "b", "score": np.float32(1 / 3), "ends": [1, 2]}
    text = csv_of([({"text": "one"}, []), ({"text": "two"}, [answer, [answer]]), ({"text": "three"}, [])])
    assert text.splitlines() == [
        "text,answer_text,score,ends",
        "one,,,",
        'two,b,0.333333,"[1, 2]"',
        'two,b,0.333333,"[1, 2]"',
        "three,,,",
    ]
    assert csv_of([({"id": 1}, [])]) == "id\n1\n"
    vectors = np.array([[0.5, 1 / 3], [1, 2]], "float32")
    text = csv_of(zip([{"id": 1}, {"id": 2}], vectors, strict=True))
    assert text == 'id,vector\n1,"[0.5, 0.333333]"\n2,"[1.0, 2.0]"\n'
    # Values of the examples are not rounded.
    text = csv_of([({"id": 12345678.0, "actual": 0.123456789}, {"score": 0.123456789})])
    assert text == "id,actual,score\n12345678.0,0.123456789,0.123457\n"


@pytest.mark.slow
@pytest.mark.filterwarnings("default:Stopped by SIGTERM")
def test_options_reach_fit_and_a_stopped_run_continues(folder, monkeypatch):
    """--schedule, --class-weight, --patience and --checkpoint are passed to `fit`."""
    settings, fit = [], models.Task.fit

    def record_settings(self, *args, **kwargs):
        settings.append((self.optimizer.schedule, kwargs["sample_weight"]))
        return fit(self, *args, **kwargs)

    monkeypatch.setattr(models.Task, "fit", record_settings)
    data, model, states = folder / "uneven.csv", folder / "options.keras", folder / "states"
    data.write_text("text,label\n" + _csv(TEXTS[:9], ["pos", "neg", "neg"] * 3))
    command = ["fit", data, "--task", "classifier", "--preset", folder / "preset", "--validation", data, "-o", model]
    command += ["--patience", 1, "--learning-rate", 0, "--batch-size", 9, "--epochs", 5, "--schedule", "cosine"]
    command += ["--class-weight", "balanced", "--checkpoint", states]
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):

        @contextmanager
        def kill_self(work, number=number):
            yield lambda: os.kill(os.getpid(), number)

        with monkeypatch.context() as patch:
            patch.setattr(fine_tuning, "show_status", kill_self)
            stopped = run(*command, code=code)
        assert re.search("he same (command|`fit`) continues from (there|.*states)[.]\n", stopped.stderr)
        assert not model.exists()
    result = run(*command)
    assert settings == [("cosine", [1.5, 0.75, 0.75] * 3)] * 3
    assert keras.saving.load_model(model).optimizer.schedule == "cosine"
    # Each stopped run trained for an epoch. At learning rate 0, the third run's patience ends after two epochs.
    assert re.findall("Epoch ([0-9])/5", result.stdout) == ["3", "4"]
    assert class_weights(["neg=2.5"], {"neg": 3, "pos": 1}) == {"neg": 2.5, "pos": 1.0}


def test_a_closed_pipe_ends_the_command_without_an_error(monkeypatch):
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(typer.Exit), open_output(None) as file:
            file.write(b"{}\n" * 9)
    # Leaving the block closes the pipe, which flushes what is left and must not fail.


def test_texts_that_end_like_a_label_are_texts(tmp_path):
    path = tmp_path / "types.txt"
    for lines in (["My blood is of type O"], ["It is type O", "Mine is O"]):
        path.write_text("\n".join(lines), "utf-8")
        assert read_words(path, Columns(), labeled=False)[0] == lines


def test_questions_are_read_in_the_given_encoding(tmp_path):
    questions = [{"id": "1", "question": "Qué?"}]
    data = {"data": [{"paragraphs": [{"context": "Ada met Bob.", "qas": questions}]}]}
    (tmp_path / "dev.json").write_text(json.dumps(data, ensure_ascii=False), "latin-1")
    x, _ = read_questions(tmp_path / "dev.json", Columns(encoding="latin-1"), labeled=False)
    assert x == (["Qué?"], ["Ada met Bob."])


@pytest.mark.slow
@pytest.mark.filterwarnings("default::lmzoo.text.TextWarning")
def test_answers_are_written_in_utf8(folder, fitted):
    path = folder / "foreign.jsonl"
    path.write_text(json.dumps({"text": "Gœd élan \ud83d [MASK]"}) + "\n")
    result = run("predict", fitted("masked-lm")[0], path)
    assert "Gœd élan \ufffd ".encode() in result.stdout_bytes
    assert result.stderr == "Warning: 1 of 1 texts held invalid UTF-8; it was read as U+FFFD.\n"


@pytest.mark.slow
def test_presets_and_uncompiled_models_are_evaluated_alike(folder, fitted):
    model, _ = fitted("classifier")
    keras.saving.load_model(model).save_to_preset(folder / "classifier")
    case = CASES["classifier"]
    keras.saving.load_model(model, compile=False).save(folder / "uncompiled.keras")
    sources = [model, folder / "classifier", folder / "uncompiled.keras"]
    expected, *all_scores = [scores_of(run("evaluate", m, folder / case.name, *case.options).stdout) for m in sources]
    for scores in all_scores:
        assert scores == pytest.approx(expected)


@pytest.mark.slow
def test_the_masked_lm_of_a_pretrainer(folder, fitted):
    case = CASES["masked-lm"]
    tiny_task(models.Pretrainer, FAMILY).save_to_preset(folder / "pretrained")
    models.MaskedLM.from_preset(folder / "pretrained").save_to_preset(folder / "masked")
    sources = (folder / name for name in ("pretrained", "masked"))
    actual, expected = (scores_of(run("evaluate", source, folder / case.name).stdout) for source in sources)
    assert actual == pytest.approx(expected)


@pytest.mark.slow
def test_classes_without_names(folder):
    path = folder / "numbers.keras"
    tiny_task(models.TextClassifier, FAMILY, num_classes=3).save(path)
    data = folder / "numbers.csv"
    data.write_text("text,label\n" + _csv(TEXTS, [i % 3 for i in range(13)]))
    result = run("evaluate", path, data)
    table = result.stdout.split("actual \\ predicted\t0\t1\t2\n")[1].splitlines()[:3]
    assert [sum(map(int, line.split("\t")[1:])) for line in table] == [5, 4, 4]
    data.write_text("text,label\n" + _csv(TEXTS, [i % 4 for i in range(13)]))
    assert "numbers.csv, line 5: the label '3' is unknown" in error_of("evaluate", path, data)


def test_scores_are_those_of_training_without_validation_examples(folder):
    data, output = folder / "all.csv", folder / "all.keras"
    data.write_text("text,label\n" + _csv(TEXTS, [i % 3 for i in range(13)]))
    result = run("fit", data, "--task", "classifier", "--preset", folder / "preset", "--output", output, "--epochs", 1)
    assert scores_of(result.stdout).keys() == {"training loss", "training accuracy"}


@pytest.mark.slow
def test_tables_on_a_terminal(folder, fitted, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    case = CASES["classifier"]
    result = run("evaluate", fitted("classifier")[0], folder / case.name, *case.options)
    assert "\t" not in result.stdout
    assert "macro_f1" in result.stdout
    assert "actual \\ predicted" in result.stdout


# === Documentation ===


@pytest.mark.parametrize(
    ("header", "row", "columns", "expected"),
    [
        ("sentence\tlabel", 'a "fine film\t1', Columns("sentence"), (['a "fine film'], ["1"])),
        (
            "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
            "sentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label",
            "0\t3\t3c\ttravel\t( It )\t( No )\t(S)\t(S)\tIt rained.\tIt was dry.\tneutral\tcontradiction",
            Columns("sentence1", "sentence2", "gold_label"),
            ((["It rained."], ["It was dry."]), ["contradiction"]),
        ),
    ],
    ids=["SST-2", "MNLI"],
)
def test_options_for_files_of_glue(tmp_path, header, row, columns, expected):
    file = tmp_path / "train.tsv"
    file.write_text(f"{header}\n{row}\n", "utf-8")
    assert read_texts(file, columns, labeled=True) == expected


@pytest.mark.slow
def test_commands_of_the_guide_run(root, tmp_path, monkeypatch):
    """Commands on files that only the reader has are left out."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(root / "examples", target_is_directory=True)
    (tmp_path / "more_reviews.csv").symlink_to(root / "examples/data/reviews.csv")
    page = (root / "docs/guides/command_line.md").read_text("utf-8").replace("\\\n", "")
    readers = ("reviews/", "books/", "s3://", "prompts.txt")
    commands = [c for c in re.findall(r"^\$ (.*)$", page, re.MULTILINE) if not any(name in c for name in readers)]
    assert len(commands) == 6
    *_, (_, prediction), (_, generation) = [run_line(command) for command in commands]
    assert json.loads(prediction.stdout).keys() == {"text", "label", "score"}
    assert generation.stdout.startswith("The ship left")
    assert len((tmp_path / "answers.jsonl").read_text("utf-8").splitlines()) == 400
    assert {row["actual"] for row in read_csv(tmp_path / "answers.csv")} == {"negative", "positive"}


# === Several files ===


STREAMED = [
    "classifier",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("multi-label", "regressor", "masked-lm", "embedder")),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMED)
def test_several_files_train_and_score_as_one_file(folder, name, tmp_path):
    case, parts = CASES[name], tmp_path / "parts"
    lines = case.text.splitlines(keepends=True)
    head = lines[:1] if name in ("classifier", "embedder") else []
    parts.mkdir()
    for i in range(2):
        part = lines[len(head) :][7 * i : 7 * i + 7]
        (parts / f"{i}{Path(case.name).suffix}").write_text("".join([*head, *part]))
    options = ["--task", name, "--preset", folder / "preset", "--epochs", 1, "--batch-size", 4, *case.options]
    scores = []
    for i, data in enumerate((folder / case.name, parts, f"{parts}/*")):
        model = tmp_path / f"{i}.keras"
        trained = scores_of(run("fit", data, *options, "--output", model).stdout)
        scores.append((trained, scores_of(run("evaluate", model, data, *case.options).stdout)))
    assert scores[1] == scores[2]
    assert scores[1][0] == scores[0][0]
    assert "loss" in scores[1][1]
    assert scores[1][1].items() <= scores[0][1].items()


def test_an_uncompiled_model_is_evaluated_on_several_files(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\ngood,O\nbad,B-PER\n")
    task = tiny_task(models.TextClassifier, FAMILY)
    task.compiled = False  # as after `load_model(..., compile=False)`
    x, y = read_texts(tmp_path, Columns(), True)
    assert score(get_kind("classifier"), task, x, y, 2).scores.keys() == {"loss", "accuracy"}


def test_classes_without_names_are_evaluated_on_several_files(tmp_path):
    (tmp_path / "0.csv").write_text("text,label\ngood,2\nbad,0\n")
    (tmp_path / "1.csv").write_text("text,label\nfine,1\n")
    kind = get_kind("classifier")
    task = models.TextClassifier(tiny_backbone(FAMILY), tiny_preprocessor(FAMILY), num_classes=3)
    x, y = kind.read_labeled(tmp_path, Columns(), task)
    expected = task.evaluate(["good", "bad", "fine"], [2, 0, 1], verbose=0, return_dict=True)
    assert score(kind, task, x, y, 5).scores["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    _, label_sets = read_label_sets(tmp_path, Columns(), True, task.class_names)
    assert [*label_sets] == [[2], [0], [1]]
    (tmp_path / "1.csv").write_text("text,label\nfine,3\n")
    x, y = kind.read_labeled(tmp_path, Columns(), task)
    with pytest.raises(ValueError, match=r"Label 3 .* is outside \[0, 3\)"):
        score(kind, task, x, y, 5)


def text_warnings_in(caught):
    return [str(warning.message) for warning in caught if warning.category is TextWarning]


def test_a_warning_about_several_parts_of_the_examples_is_shown_once(monkeypatch):
    monkeypatch.setattr(examples, "_BATCHES_PER_PART", 1)
    task = tiny_task(models.TextClassifier, FAMILY)
    texts = ["good", "bad \ud800", "\ud800", "film", "\ud800 plot", "dull", "\ud800"]
    labels = [task.class_names[i % 3] for i in range(7)]
    with pytest.warns(TextWarning) as caught:
        score(get_kind("classifier"), task, texts, labels, 3)
    assert text_warnings_in(caught) == ["4 of 7 texts held invalid UTF-8; it was read as U+FFFD."]
    prediction = Prediction("a.keras", Columns(), None, {}, "jsonl", 3)
    with pytest.warns(TextWarning) as caught:
        prediction.write(task, texts, [{}] * 7, io.BytesIO(), lambda: None, False)
    assert text_warnings_in(caught) == ["2 of 3 texts held invalid UTF-8; it was read as U+FFFD."]


def test_classes_with_numerals_as_names_are_evaluated_by_name():
    """The number 0 would be ambiguous, since another class is called "0"."""
    task = tiny_task(models.TextClassifier, FAMILY, labels=["1", "0"])
    texts, labels = ["good", "bad", "film"], ["0", "0", "1"]
    expected = task.evaluate(texts, labels, verbose=0, return_dict=True)
    report = score(get_kind("classifier"), task, texts, labels, 2)
    assert report.scores["loss"] == pytest.approx(expected["loss"], rel=1e-5)


def test_labels_in_several_files_are_checked_by_the_task(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\ngood,O\nbad,mixed\n")
    kind, task = get_kind("classifier"), tiny_task(models.TextClassifier, FAMILY)
    x, y = kind.read_labeled(tmp_path, Columns(), task)
    with pytest.raises(ValueError, match=r"a\.csv, line 3: Label 'mixed' .* is not one of \['O'"):
        score(kind, task, x, y, 2)


def test_labels_in_several_parquet_files_are_converted_to_strings(tmp_path):
    for i, label in enumerate([b"good", datetime.date(2026, 11, 30), 1.5]):
        parquet.write_table(pyarrow.table({"text": ["fine"], "label": [label]}), tmp_path / f"{i}.parquet")
    _, labels = read_texts(tmp_path, Columns(), True)
    assert [*labels] == ["good", "2026-11-30", "1.5"]


def test_errors_of_several_files(tmp_path):
    for i, label in enumerate(["a", ""]):
        (tmp_path / f"{i}.csv").write_text(f"text,label\ngood,b\nbad,{label}\n")
    fit = ["fit", "--preset", "bert_nano_en_uncased", "--output", tmp_path / "a.keras", tmp_path]
    for options, message in [
        (["--task", "classifier"], "1.csv, line 3: 'label' is '', which is not a valid label"),
        (["--task", "classifier", "--validation-split", 0.5], "are for examples in one file"),
        (["--task", "classifier", "--class-weight", "balanced"], "are for examples in one file"),
        (["--task", "classifier", "--label", "stars"], "0.csv, line 2 has no column 'stars'"),
        (["--task", "classifier", "--label", 2], "2 columns, numbered from 0, and no column 2"),
    ]:
        assert message in error_of(*fit, *options)
    assert "read files and write into a directory" in error_of("predict", "bert_nano_en_uncased", tmp_path)


@pytest.mark.parametrize("label", ['"art|war|"', '["art", null]', '["art", ["war"]]'])
def test_missing_labels_in_sets_of_several_files_are_errors(label, tmp_path):
    (tmp_path / "a.jsonl").write_text(f'{{"text": "good", "label": "art|war"}}\n{{"text": "bad", "label": {label}}}\n')
    _, labels = read_label_sets(tmp_path, Columns(), True)
    assert next(labels) == ["art", "war"]
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2: 'label' is .*, which is not a valid label"):
        next(labels)
