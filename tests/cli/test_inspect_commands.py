"""`lmzoo inspect`: pages, tables and lines of JSON."""

from __future__ import annotations

import json

import keras
import pytest
from typer.testing import CliRunner

from lmzoo import analysis
from lmzoo.families.bert import FAMILY
from lmzoo.families.gpt import FAMILY as GPT
from lmzoo.models import CausalLM, MaskedLM, QuestionAnswerer, TextClassifier, TokenClassifier
from lmzoo.testing import tiny_task
from lmzoo_cli.main import app

TEXTS = ["the film was good", "a plot , a film"]
EXAMPLES = [("good", "O", "web"), ("bad", "B-PER", "web"), ("fine", "I-PER", "print")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.keras"
    tiny_task(MaskedLM, FAMILY).save(path)
    return path


def run(*arguments, **options):
    result = CliRunner().invoke(app, ["inspect", *map(str, arguments)], **options)
    return result.exit_code, result.output


@pytest.mark.slow
def test_pages_tables_and_lines(model, tmp_path):
    task = keras.saving.load_model(model)
    code, output = run("attention", model, "--output", tmp_path / "it.html", input="\n".join(TEXTS))
    assert code == 0, output
    assert f"Wrote {tmp_path / 'it.html'}." in output
    assert "the film was good" in (tmp_path / "it.html").read_text("utf-8")
    code, output = run("attention", model, TEXTS[0], "--context", TEXTS[1], "--output", tmp_path / "pair.html")
    assert code == 0, output
    assert " / ".join(TEXTS) in (tmp_path / "pair.html").read_text("utf-8")
    code, output = run("surprisal", model, *TEXTS, "--json")
    assert code == 0, output
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    expected = analysis.surprisal(task, TEXTS)
    assert [row["text"] for row in found] == TEXTS
    assert found[1]["words"][1]["word"] == "plot"
    assert found[1]["words"][1]["surprisal"] == pytest.approx(expected[1][1].surprisal, rel=1e-3)
    code, output = run("senses", model, "film", *TEXTS)
    assert code == 0, output
    assert all(text in output for text in TEXTS)
    code, output = run("layers", model, *TEXTS, "--json")
    assert code == 0, output
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert [row["layer"] for row in rows] == [str(i) for i in range(task.backbone.config.num_layers + 1)]
    assert rows[2]["degrees"] == pytest.approx(analysis.layer_changes(task, TEXTS).degrees[1], rel=1e-3)


@pytest.mark.slow
def test_words_that_are_not_predicted_are_null(tmp_path):
    tiny_task(CausalLM, GPT).save(tmp_path / "it.keras")
    code, output = run("surprisal", tmp_path / "it.keras", TEXTS[0], "--json")
    assert code == 0, output
    (row,) = (json.loads(line, parse_constant=pytest.fail) for line in output.splitlines() if line.startswith("{"))
    assert row["words"][0]["surprisal"] is None
    assert row["words"][1]["surprisal"] > 0


@pytest.mark.slow
def test_reasons(tmp_path):
    task = tiny_task(TextClassifier, FAMILY)
    task.save(tmp_path / "it.keras")
    for options, explain in (([], analysis.leave_out), (["--gradients"], analysis.integrated_gradients)):
        code, output = run("why", tmp_path / "it.keras", *TEXTS, "--json", "--target", "B-PER", *options)
        assert code == 0, output
        found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        for row, expected in zip(found, explain(task, TEXTS, target="B-PER"), strict=True):
            assert [part["part"] for part in row["parts"]] == expected.tokens
            values = [part["contribution"] for part in row["parts"]]
            assert values == pytest.approx(expected.values.tolist(), rel=0.01, abs=1e-5)


@pytest.mark.slow
def test_reasons_for_labels_and_answers(tmp_path):
    tagger, answerer = tiny_task(TokenClassifier, FAMILY), tiny_task(QuestionAnswerer, FAMILY)
    tagger.save(tmp_path / "tagger.keras")
    answerer.save(tmp_path / "answerer.keras")
    code, output = run("why", tmp_path / "tagger.keras", TEXTS[0], "--word", "1", "--json")
    assert code == 0, output
    (row,) = (json.loads(line) for line in output.splitlines() if line.startswith("{"))
    assert [part["part"] for part in row["parts"]] == ["the", "was", "good"]
    page = tmp_path / "why.html"
    code, output = run("why", tmp_path / "answerer.keras", "the plot", "--context", TEXTS[0], "--html", page)
    assert code == 0, output
    assert f"Wrote {page}." in output
    assert all(f">{word}</span>" in page.read_text("utf-8") for word in ("the", "plot"))
    code, output = run("why", tmp_path / "tagger.keras", TEXTS[0])
    assert code == 1
    assert "Name the word whose label is to be explained" in output


@pytest.mark.slow
def test_errors_in_one_line(model):
    code, output = run("senses", model, "river", *TEXTS)
    assert code == 1
    assert "The word 'river' occurs in none of the 2 texts" in output
    code, output = run("attention", "bert_nano_en_uncasd", *TEXTS)
    assert code == 1
    assert "bert_nano_en_uncased" in output
    for command, name, message in (
        ("attention", "elmo_nano_en", "ElmoBackbone has no attention"),
        ("why", "bert_nano_en_uncased", "Contributions are to answers of"),
        ("surprisal", "albert_nano_en_uncased", ""),
    ):
        code, output = run(command, name, *TEXTS) if message else run(command, name, input="")
        assert code == 1, output
        assert (message or "There are no texts") in output
        assert output.count("Error: ") == 1


@pytest.mark.slow
def test_reports(tmp_path):
    task = tiny_task(TextClassifier, FAMILY)
    task.save(tmp_path / "it.keras")
    rows = [
        "text,label,source,length",
        *(f"the film was {word},{label},{source},4" for word, label, source in EXAMPLES),
    ]
    (tmp_path / "data.csv").write_text("\n".join(rows))
    page = tmp_path / "page.html"
    code, output = run("report", tmp_path / "it.keras", tmp_path / "data.csv", "--by", "source", "-o", page)
    assert code == 0, output
    assert f"Wrote {page}." in output
    text = page.read_text("utf-8")
    code, output = run("report", tmp_path / "it.keras", tmp_path / "data.csv", "--by", "length", "-o", page)
    assert code == 1
    assert "The column 'length' must have another name" in output
    assert all(part in text for part in ("the film was", "By source", "By length", "Calibration", "Worst", "macro_f1"))
    code, output = run("report", tmp_path / "it.keras", tmp_path / "data.csv", "--by", "year", "-o", page)
    assert code == 1
    assert "year" in output
