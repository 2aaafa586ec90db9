"""`lmzoo inspect`: pages, tables and JSON lines."""

from __future__ import annotations

import keras
import pytest

from lmzoo import analysis
from lmzoo.families.bert import FAMILY
from lmzoo.families.gpt import FAMILY as GPT
from lmzoo.models import CausalLM, MaskedLM, Pretrainer, QuestionAnswerer, TextClassifier, TokenClassifier
from lmzoo.testing import tiny_task
from lmzoo_cli.inspect_commands import _load
from tests.cli.commands import error_of, json_lines, run

TEXTS = ["the film was good", "a plot , a film"]
EXAMPLES = [("good", "O", "web"), ("bad", "B-PER", "web"), ("fine", "I-PER", "print")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.keras"
    tiny_task(MaskedLM, FAMILY).save(path)
    return path


def inspect(*arguments, **options):
    return run("inspect", *arguments, **options)


@pytest.mark.slow
def test_pages_tables_and_json(model, tmp_path):
    task = keras.saving.load_model(model)
    page = tmp_path / "attention.html"
    assert f"Wrote {page}." in inspect("attention", model, "--output", page, stdin="\n".join(TEXTS)).output
    assert "the film was good" in page.read_text("utf-8")
    inspect("attention", model, TEXTS[0], "--context", TEXTS[1], "--output", tmp_path / "pair.html")
    assert " / ".join(TEXTS) in (tmp_path / "pair.html").read_text("utf-8")
    surprisals = json_lines(inspect("surprisal", model, *TEXTS, "--json"))
    expected = analysis.surprisal(task, TEXTS)
    assert [row["text"] for row in surprisals] == TEXTS
    assert surprisals[1]["words"][1]["word"] == "plot"
    assert surprisals[1]["words"][1]["surprisal"] == pytest.approx(expected[1][1].surprisal, rel=1e-3)
    senses = inspect("senses", model, "film", *TEXTS).output
    assert all(text in senses for text in TEXTS)
    changes = json_lines(inspect("layers", model, *TEXTS, "--json"))
    assert [row["layer"] for row in changes] == [str(i) for i in range(task.backbone.config.num_layers + 1)]
    assert changes[2]["degrees"] == pytest.approx(analysis.layer_changes(task, TEXTS).degrees[1], rel=1e-3)


def test_a_file_may_hold_a_task_that_is_only_pretrained(tmp_path):
    task = tiny_task(Pretrainer, FAMILY)
    task.save(tmp_path / "pretrainer.keras")
    assert isinstance(_load(str(tmp_path / "pretrainer.keras"), TEXTS)[0], Pretrainer)
    task.backbone.save(tmp_path / "backbone.keras")
    with pytest.raises(ValueError, match="holds a BertBackbone, which is not a task"):
        _load(str(tmp_path / "backbone.keras"), TEXTS)


@pytest.mark.slow
def test_words_that_are_not_predicted_are_null(tmp_path):
    tiny_task(CausalLM, GPT).save(tmp_path / "gpt.keras")
    (row,) = json_lines(inspect("surprisal", tmp_path / "gpt.keras", TEXTS[0], "--json"))
    assert row["words"][0]["surprisal"] is None
    assert row["words"][1]["surprisal"] > 0


@pytest.mark.slow
def test_contributions_to_a_class(tmp_path):
    task = tiny_task(TextClassifier, FAMILY)
    task.save(tmp_path / "classifier.keras")
    for options, explain in (([], analysis.leave_out), (["--gradients"], analysis.integrated_gradients)):
        result = inspect("why", tmp_path / "classifier.keras", *TEXTS, "--json", "--target", "B-PER", *options)
        for row, expected in zip(json_lines(result), explain(task, TEXTS, target="B-PER"), strict=True):
            assert [part["part"] for part in row["parts"]] == expected.tokens
            values = [part["contribution"] for part in row["parts"]]
            assert values == pytest.approx(expected.values.tolist(), rel=0.01, abs=1e-5)


@pytest.mark.slow
def test_contributions_to_labels_and_answers(tmp_path):
    tagger = tmp_path / "tagger.keras"
    answerer = tmp_path / "answerer.keras"
    tiny_task(TokenClassifier, FAMILY).save(tagger)
    tiny_task(QuestionAnswerer, FAMILY).save(answerer)
    (row,) = json_lines(inspect("why", tagger, TEXTS[0], "--word", "1", "--json"))
    assert [part["part"] for part in row["parts"]] == ["the", "was", "good"]
    page = tmp_path / "why.html"
    output = inspect("why", answerer, "the plot", "--context", TEXTS[0], "--html", page).output
    assert f"Wrote {page}." in output
    assert all(f">{word}</span>" in page.read_text("utf-8") for word in ("the", "plot"))
    assert "Name the word whose label is to be explained" in error_of("inspect", "why", tagger, TEXTS[0])


@pytest.mark.slow
def test_errors_are_one_line(model):
    for command, name, texts, message in (
        ("senses", model, ["river", *TEXTS], "The word 'river' occurs in none of the 2 texts"),
        ("attention", "bert_nano_en_uncasd", TEXTS, "bert_nano_en_uncased"),
        ("attention", "elmo_nano_en", TEXTS, "ElmoBackbone has no attention"),
        ("why", "bert_nano_en_uncased", TEXTS, "Contributions are to answers of"),
        ("surprisal", "albert_nano_en_uncased", [], "There are no texts"),
    ):
        assert message in error_of("inspect", command, name, *texts, stdin="")


def test_pages_that_cannot_be_written_are_refused_before_the_work(tmp_path):
    for command in (
        ["attention", "nowhere", "a", "-o"],
        ["why", "nowhere", "a", "--html"],
        ["report", "nowhere", "a", "-o"],
    ):
        assert f"Error: {tmp_path} is a directory." in error_of("inspect", *command, tmp_path)


@pytest.mark.slow
def test_reports(tmp_path):
    tiny_task(TextClassifier, FAMILY).save(tmp_path / "classifier.keras")
    rows = [
        "text,label,source,length",
        *(f"the film was {word},{label},{source},4" for word, label, source in EXAMPLES),
    ]
    (tmp_path / "data.csv").write_text("\n".join(rows))
    page = tmp_path / "page.html"
    command = ["inspect", "report", tmp_path / "classifier.keras", tmp_path / "data.csv", "-o", page, "--by"]
    assert f"Wrote {page}." in run(*command, "source").output
    text = page.read_text("utf-8")
    assert all(part in text for part in ("the film was", "By source", "By length", "Calibration", "Worst", "macro_f1"))
    assert "The column 'length' must have another name" in error_of(*command, "length")
    assert "year" in error_of(*command, "year")
