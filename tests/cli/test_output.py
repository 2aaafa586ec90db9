"""Status lines, rounded numbers, JSON, and durations in the output of commands."""

from __future__ import annotations

import io
import json
import math
import os
import re
import sys
import time

import numpy as np
import pytest

from lmzoo.evaluation.reports import Report
from lmzoo.text import TextWarning
from lmzoo_cli import output
from lmzoo_cli.inspect_commands import _print
from lmzoo_cli.output import announce_keras, check_output, get_texts, round_numbers, show, show_status, to_json
from lmzoo_cli.pretrain_command import _describe_duration
from lmzoo_cli.task_scores import write_report


def test_a_status_is_shown_while_slow_work_runs(monkeypatch, capsys):
    monkeypatch.setattr(output, "_STATUS_DELAY_SECONDS", 0.01)
    with show_status("Loading [x]"):
        time.sleep(0.2)
        assert capsys.readouterr() == ("", "Loading [x]...\n")
    assert capsys.readouterr().err == ""


def test_no_status_for_quick_work_or_once_it_is_dismissed(monkeypatch, capsys):
    monkeypatch.setattr(output, "_STATUS_DELAY_SECONDS", 0.05)
    with show_status("Loading"):
        pass
    with show_status("Compiling") as dismiss:
        dismiss()
        time.sleep(0.2)
    assert capsys.readouterr().err == ""


def test_loading_keras_is_announced_at_once(monkeypatch, capsys):
    announce_keras()
    assert capsys.readouterr().err == ""
    monkeypatch.delitem(sys.modules, "keras")
    announce_keras()
    assert capsys.readouterr().err == "Loading Keras...\n"


def test_lines_of_standard_input_are_read_as_those_of_files(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\ufeffgood film\r\n\r\na\rb".encode())))
    assert get_texts(None) == ["good film", "", "a\rb"]


@pytest.mark.parametrize(
    "arguments", [None, ["caf\udce9", "fine", "\udce2\udc82"]], ids=["standard input", "arguments"]
)
def test_invalid_utf8_in_texts_is_replaced_with_a_warning(monkeypatch, arguments):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\r\nfine\n\xe2\x82")))
    with pytest.warns(TextWarning, match="^2 of 3 texts held invalid UTF-8"):
        assert get_texts(arguments) == ["caf\ufffd", "fine", "\ufffd"]


def test_numbers_are_rounded_to_six_digits(capsys):
    assert round_numbers({"score": np.float32(1 / 3), "n": 1234567, "big": 1234567.8, "word": "0.123456789"}) == {
        "score": 0.333333,
        "n": 1234567,
        "big": 1234570.0,
        "word": "0.123456789",
    }
    assert round_numbers(np.array([[1e-9 / 3, 2]])) == [[3.33333e-10, 2.0]]
    assert round_numbers([(True, None)]) == [[True, None]]
    show(["score", "value"], [["accuracy", 2 / 3], ["count", 3]])
    assert capsys.readouterr().out == "score\tvalue\naccuracy\t0.666667\ncount\t3\n\n"


def test_brackets_are_text_in_tables_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes standard output for a terminal
    show(["label [b]", "count"], [["[other]", 13], ["[/s]", 0.25], ["[url]", 7]])
    lines = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()
    assert [line.split() for line in lines if line] == [
        ["label", "[b]", "count"],
        ["[other]", "13"],
        ["[/s]", "0.2500"],
        ["[url]", "7"],
    ]
    _print([{"word": "[/s]", "surprisal": 1.5}], as_json=False)
    assert "[/s]" in capsys.readouterr().out


def test_nan_is_null_in_json(tmp_path):
    line = to_json({"é": [float("nan"), {"score": np.float32(1 / 3)}], "more": (-math.inf, None, np.array([math.nan]))})
    assert line == '{"é": [null, {"score": 0.333333}], "more": [null, null, [null]]}'
    report = Report({"ece": math.nan}, {"by n": (["n", "score"], [["a", math.nan], ["b", 0.5]])})
    write_report(tmp_path / "report.json", {"model": "é"}, report)
    contents = json.loads((tmp_path / "report.json").read_text("utf-8"), parse_constant=pytest.fail)
    rows = [{"n": "a", "score": None}, {"n": "b", "score": 0.5}]
    assert contents == {"model": "é", "scores": {"ece": None}, "by n": rows}


def test_a_pipe_is_refused_as_output_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError, match="is a device or a pipe: give the path of a file"):
        check_output(tmp_path / "pipe", overwrite=True)


def test_a_path_in_a_file_is_refused(tmp_path):
    (tmp_path / "a.keras").touch()
    with pytest.raises(NotADirectoryError, match=r"a\.keras is not a directory, or lies in a file"):
        check_output(tmp_path / "a.keras" / "b.keras", overwrite=False)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (3, "1 minute"),
        (1500, "25 minutes"),
        (3590, "1 hour"),
        (12_345, "3 hours 30 minutes"),
        (90_000, "1 day 1 hour"),
        (500_000, "5 days 18 hours"),
    ],
)
def test_durations_are_rounded_to_spoken_units(seconds, text):
    assert _describe_duration(seconds) == text
