"""Errors of `lmzoo fit`, `evaluate` and `predict`: one line each, before the work."""

from __future__ import annotations

import keras
import pytest

from lmzoo import models
from lmzoo.families.bert import FAMILY
from lmzoo.testing.tiny import tiny_task
from tests.cli.commands import error_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write files, models and presets."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "reviews.csv").write_text("review,sentiment\n" + "good film,pos\nbad film,neg\n" * 3)
    (folder / "other.csv").write_text("review,sentiment\ngood,pos\nbad,neutral\n")
    tiny_task(models.TextClassifier, FAMILY, num_classes=None, labels=["neg", "pos"]).save(folder / "classifier.keras")
    tiny_task(models.TextEmbedder, FAMILY).save(folder / "embedder.keras")
    tiny_task(models.TokenClassifier, FAMILY).save(folder / "tagger.keras")
    task = tiny_task(models.MaskedLM, FAMILY)
    task.save(folder / "masked_lm.keras")
    task.save_to_preset(folder / "preset")
    task.backbone.save(folder / "backbone.keras")
    task.backbone.save_to_preset(folder / "backbone")
    return folder


@pytest.mark.slow_cases(
    "options0-There is no task 'clasifier'. Did you mean classifier? Choose one of causal-lm, choice, classifier, ",
    "options1-must end in .keras, got model.h5",
    "options2-classifier.keras exists: pass --overwrite to replace it",
    "options3-has no column 'reviews'. Did you mean 'review'",
)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--task", "clasifier"],
            "There is no task 'clasifier'. Did you mean classifier? Choose one of causal-lm, choice, classifier, ",
        ),
        (["--output", "model.h5"], "must end in .keras, got model.h5"),
        (["--output", "classifier.keras"], "classifier.keras exists: pass --overwrite to replace it"),
        (["--text", "reviews"], "has no column 'reviews'. Did you mean 'review'"),
        (["--validation", "other.csv"], "other.csv, line 3: the label 'neutral' is unknown. There are: 'neg', 'pos'"),
        (["--validation", "other.csv", "--validation-split", "0.5"], "not both"),
        (["--validation-split", "0.01"], "--validation-split 0.01 leaves no examples"),
        (["--preset", "bert_nanno_en_uncased"], "Unknown preset 'bert_nanno_en_uncased'"),
        (["--task", "tagger", "--text", "0", "--label", "0"], "holds the words, not labels"),
        (["--task", "embedder"], "name the column of the second texts (--pair)"),
        (["--task", "regressor"], "line 2: the label 'pos' is not a valid number"),
        (["--task", "regressor", "--scale", "0"], "--scale must be above 0"),
        (["--task", "masked-lm", "--pooling", "mean"], "does not pool"),
        (["--windows", "all"], "--windows must be auto or a positive number, got 'all'"),
        (["--task", "regressor", "--windows", "auto"], "A TextRegressor has no windows to set: leave out --windows"),
        (["--task", "masked-lm", "--window-pooling", "max"], "does not pool windows"),
        (["--stride", "7"], "Long texts are truncated: pass"),
        (["--patience", "2"], "--patience needs validation examples"),
        (["--validation", "."], "--validation names one file, not a directory or a pattern, got ."),
        (["--validation", "*.csv"], "--validation names one file, not a directory or a pattern, got *.csv"),
        (
            ["--class-weight", "neutral=2"],
            "--class-weight takes balanced, or a class and its weight such as neg=2, got",
        ),
        (["--class-weight", "neg=heavy"], "the weight of neg must be a number of at least 0, got 'heavy'"),
        (["--task", "masked-lm", "--class-weight", "pos=2"], "one class for each example, which masked-lm is not"),
        (["--label", "review", "--text", "sentiment", "--encoding", "ascii2"], "There is no encoding 'ascii2'"),
    ],
)
def test_errors_of_fit(folder, monkeypatch, options, message):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(keras.Model, "fit", None)
    command = {"--task": "classifier", "--preset": "preset", "--output": "new.keras", "--text": "review"}
    command |= {"--label": "sentiment", **dict(zip(options[::2], options[1::2], strict=True))}
    assert message in error_of("fit", "reviews.csv", *(word for option in command.items() for word in option))
    assert not (folder / "new.keras").exists()


def test_a_single_label_is_refused(folder):
    path = folder / "single.csv"
    path.write_text("text,label\ngood,x\nbad,x\n")
    message = error_of("fit", path, "--task", "classifier", "--preset", folder / "preset", "--output", "single.keras")
    assert "single.csv has only the label 'x'. Provide at least two labels." in message


@pytest.mark.slow_cases("backbone.keras-holds a BertBackbone, which is not a task")
@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nothing.keras", "There is no file"),
        ("reviews.csv", "cannot be loaded"),
        ("backbone.keras", "holds a BertBackbone, which is not a task"),
        ("backbone", "holds no head of a task, only a backbone"),
        ("nothing", "Unknown preset"),
    ],
)
def test_errors_of_the_model(folder, monkeypatch, model, message):
    monkeypatch.chdir(folder)
    for command in ("evaluate", "predict"):
        assert message in error_of(command, model, "reviews.csv")


def test_presets_of_several_tasks_are_refused(folder, tmp_path):
    task = keras.saving.load_model(folder / "classifier.keras")
    task.backbone.save_to_preset(tmp_path / "several", tasks={"moods": task})
    assert "holds the tasks moods" in error_of("predict", tmp_path / "several", "-", stdin="good\n")


@pytest.mark.slow
def test_errors_of_options_and_files(folder):
    model, data = folder / "classifier.keras", folder / "reviews.csv"
    columns = ["--text", "review", "--label", "sentiment"]
    assert "has no column 'label'" in error_of("evaluate", model, data, "--text", "review")
    assert "pass --overwrite" in error_of("evaluate", model, data, *columns, "--json", data)
    assert f"Error: There is no {folder / 'none.csv'}." in error_of("evaluate", model, folder / "none.csv")
    assert "holds no examples" in error_of("predict", model, "-", stdin="")
    (folder / "words.txt").write_text("EU NNP B-ORG\nrejects VBZ O\n\nNo DT O\n")
    assert "pass --format conll, or txt" in error_of("predict", folder / "tagger.keras", folder / "words.txt")
    masks = "".join(f"good {'' if i == 19 else '[MASK]'}\n" for i in range(21))
    message = error_of("predict", folder / "masked_lm.keras", "-", "--batch-size", 1, stdin=masks)
    assert "`texts[19]` holds no [MASK]" in message
    assert "leave out --top-k" in error_of("predict", folder / "embedder.keras", data, "--text", "review", "--top-k", 2)
    message = error_of("predict", model, data, "--text", "review", "--threshold", 0.7)
    assert message.endswith(" are returned by `top_k`. Option: --threshold.\n")
    message = error_of("evaluate", model, data, *columns, "--encoding", "utf-9")
    assert message.endswith("common ones are utf-8 and latin-1. Option: --encoding.\n")


def test_tags_of_other_spans_than_those_of_training_are_unknown(folder):
    """I-PER is a valid label without training examples, as B-PER has some."""
    (folder / "spans.conll").write_text("Ada B-PER\nsaw O\nFair B-ORG\nIsle I-ORG\n")
    (folder / "dev.conll").write_text("Ada I-PER\nParis B-LOC\n")
    options = ["--task", "tagger", "--preset", folder / "preset", "--output", folder / "tags.keras"]
    message = error_of("fit", folder / "spans.conll", *options, "--validation", folder / "dev.conll")
    assert "dev.conll, line 2: the label 'B-LOC' is unknown" in message


def test_errors_of_missing_files_and_unknown_labels(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "dev.csv").write_text("text,label\nGood.,neg\nBad.,negg\n")
    for arguments, message in (
        (
            ["evaluate", "classifier.keras", "dev.csv"],
            "dev.csv, line 3: the label 'negg' is unknown. Did you mean 'neg'?",
        ),
        (["predict", "classifier.keras", "none.csv"], "There is no none.csv."),
        (["export", "none.keras", "models/1"], "There is no file none.keras."),
        (["convert", "nothing", "there"], "Unknown preset 'nothing'."),
        (["verify", "nothing"], "Unknown preset 'nothing'."),
        (["inspect", "layers", "nothing", "A text."], "Unknown preset 'nothing'."),
    ):
        assert message in error_of(*arguments)
