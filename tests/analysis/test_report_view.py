"""Reports as pages, and their tables of errors."""

from __future__ import annotations

import pytest

from lmzoo import evaluation
from lmzoo.analysis import write_report
from lmzoo.evaluation.errors import add_errors, add_learning_curve
from lmzoo.evaluation.reports import Judged, Report
from lmzoo.families.bert import FAMILY
from lmzoo.models import MaskedLM, QuestionAnswerer, TextClassifier, TextRegressor, TokenClassifier
from lmzoo.testing import tiny_examples, tiny_task
from tests.analysis.html_page import Page

HOSTILE = '</td></table><script>alert("1")</script><!-- TITLE BODY'


def test_the_page_holds_the_tables_and_escapes_hostile_text(tmp_path):
    judged = Judged.of_classes(["a", "a", HOSTILE], ["a", HOSTILE, "a"], [0.5, 0.9, 0.8])
    report = add_errors(Report({"accuracy": 1 / 3}, judged=judged), ["fine", HOSTILE, "long " * 1000])
    report = add_learning_curve(report, {"loss": [2.0, float("nan")], "val_loss": [3.0, 2.0], HOSTILE: [1, 1]})
    report.tables["big"] = (["n"], [[i] for i in range(1003)])
    write_report(tmp_path / "page.html", report, title=f"<b>{HOSTILE}")
    text = (tmp_path / "page.html").read_text("utf-8")
    page = Page(text)
    assert page.texts["title"].strip() == f"<b>{HOSTILE}"
    assert "script" not in page.tags
    assert "b" not in page.tags
    assert page.addresses == []
    assert "http" not in text
    cells = [text for tag, text in page.pieces if tag in ("td", "th")]
    assert cells.count(HOSTILE) == 4  # a label, an answer, a text, and a column of the learning curve
    assert "0.3333" in cells
    assert max(map(len, cells)) == 2000
    assert "3 more rows are not shown." in text
    assert page.tags.count("svg") == 3  # loss, the other metric, calibration
    assert page.tags.count("polyline") == 5
    assert page.tags.count("circle") == 6  # finite points have one; the diagonal has none


def test_a_table_without_rows_says_so(tmp_path):
    judged = Judged.of_classes(["a", "b"], ["a", "b"], [0.9, 0.8])
    write_report(tmp_path / "page.html", add_errors(Report({"accuracy": 1.0}, judged=judged), ["one", "two"]))
    assert "<h2>Worst</h2>\n<p>None.</p>" in (tmp_path / "page.html").read_text("utf-8")


@pytest.mark.quick_cases("TextClassifier")
@pytest.mark.parametrize("kind", [TextClassifier, TokenClassifier, QuestionAnswerer])
def test_tasks_report_their_errors(kind, eager, tmp_path):
    task = tiny_task(kind, FAMILY)
    x, y = tiny_examples(task, 7)
    columns = {"half": [i % 2 for i in range(len(x))]}
    report = evaluation.report(task, x, y, verbose=0, columns=columns, history={"loss": [1.0]})
    assert report.tables.keys() >= {"calibration", "worst", "by length", "by half", "learning curve"}
    assert sum(row[1] for row in report.tables["by half"][1]) == len(report.judged.error)
    accuracy = sum(row[1] * row[2] for row in report.tables["by half"][1]) / len(report.judged.error)
    expected = report.scores["exact_match"] / 100 if kind is QuestionAnswerer else report.scores["accuracy"]
    assert accuracy == pytest.approx(expected)
    texts = [" / ".join(text) if isinstance(text, tuple) else text for text in x]
    for example, label, predicted, _, text in report.tables["worst"][1]:
        assert text.replace("[", "").replace("]", "") == texts[example]
        assert label != predicted
    write_report(tmp_path / "page.html", report)


def test_columns_group_the_scores_and_wrong_ones_are_refused(eager):
    task = tiny_task(TextRegressor, FAMILY)
    x, y = tiny_examples(task, 7)
    report = task.report(x, y, verbose=0, columns={"source": list("aabbbbc")})
    assert [row[:2] for row in report.tables["by source"][1]] == [["b", 4], ["a", 2], ["c", 1]]
    assert "worst" not in report.tables
    with pytest.raises(TypeError, match=r"`columns` must be a dict of lists, .* got \['source'\]"):
        task.report(x, y, columns=["source"])
    with pytest.raises(TypeError, match="pass these as they are, not encoded"):
        task.report(task.encode_inputs(x), y, errors=True, verbose=0)
    with pytest.raises(ValueError, match="no answers that are right or wrong"):
        tiny_task(MaskedLM, FAMILY).report(x, errors=True, verbose=0)
    with pytest.raises(TypeError, match="Expected what `report` of a task returns"):
        write_report("page.html", {"accuracy": 1.0})
    with pytest.raises(TypeError, match=r"Expected a task of `lmzoo\.models`, got 'bert"):
        evaluation.report("bert_nano_en_uncased", x, y)
