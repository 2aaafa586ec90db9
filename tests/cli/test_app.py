"""The command line as a user starts it: in a process of its own."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import lmzoo
from lmzoo.pretraining.recipe import METHODS
from lmzoo.registry.family import families

ROOT = Path(__file__).resolve().parents[2]


def run(code: str, *arguments: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**{k: v for k, v in os.environ.items() if k != "LMZOO_PRESETS"}, "NO_COLOR": "1", **env},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def command(*arguments: str, **env: str) -> str:
    """The output of `lmzoo`, which must not have imported Keras or a backend."""
    code = """
import atexit, sys, lmzoo_script
heavy = {"keras", "tensorflow", "jax", "torch"}
atexit.register(lambda: print("imported:", *sorted(heavy & set(sys.modules))))
lmzoo_script.main()
"""
    output, _, imported = run(code, *arguments, **env).rpartition("imported:")
    assert imported.strip() == ""
    return output


def test_installed_script_starts_here() -> None:
    (script,) = (script for script in entry_points(group="console_scripts") if script.name == "lmzoo")
    assert script.value == "lmzoo_script:main"


def test_version() -> None:
    assert command("--version") == f"lmzoo {lmzoo.__version__}\n"


def test_as_a_module(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(sys, "argv", ["lmzoo", "--version"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("lmzoo", run_name="__main__")
    assert not end.value.code
    assert capsys.readouterr().out == f"lmzoo {lmzoo.__version__}\n"


def test_help() -> None:
    shown = command("--help")
    assert re.findall(r"^\W (\w+) ", shown, re.MULTILINE)[:3] == ["fit", "evaluate", "predict"]
    assert {"presets", "pretrain", "serve"} < set(re.findall(r"^\W (\w+) ", shown, re.MULTILINE))


def test_help_names_every_family_that_can_be_pretrained() -> None:
    trainable = [
        name
        for name, family in families().items()
        if family.pretrained_head in METHODS and family.backbone.__module__.startswith("lmzoo.")
    ]
    shown = set(
        re.findall(r"\w+", command("pretrain", "--help", COLUMNS="300").partition("--family")[2].partition("--")[0])
    )
    assert len(trainable) > 5
    assert set(trainable) <= shown


def test_presets_in_a_pipe() -> None:
    header, *lines = command("presets", COLUMNS="20").splitlines()
    rows = [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]
    assert [row["name"] for row in rows] == sorted(lmzoo.list_presets())
    for row in rows:
        info = lmzoo.list_presets()[row["name"]]
        assert int(row["parameters"]) == info.parameters
        assert int(row["size_bytes"]) == info.size_bytes


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_presets_on_a_terminal_keep_their_names(columns: int) -> None:
    table = re.sub(r"\x1b\[\d*m", "", command("presets", COLUMNS=str(columns), FORCE_COLOR="1"))
    assert "params" in table or columns < 80
    for name in lmzoo.list_presets():
        assert name in table
    assert max(map(len, table.splitlines())) <= columns


@pytest.mark.parametrize(
    ("missing", "message", "threads"),
    [("uvicorn", "Serving needs uvicorn: pip install 'lmzoo[serve]'.", None), ("", "There is no folder /nowhere.", 3)],
)
def test_serving_fails_before_tensorflow_is_loaded(missing: str, message: str, threads: int | None) -> None:
    code = """
import os, sys, lmzoo_script
sys.modules[sys.argv.pop()] = None
try:
    lmzoo_script.main()
except SystemExit as end:
    print(end.code, {"keras", "tensorflow"} & sys.modules.keys(), os.environ.get("TF_NUM_INTRAOP_THREADS"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "serve", "/nowhere", "--port", "0", "--threads", "3", missing],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "TF_NUM_INTRAOP_THREADS"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"1 set() {threads}\n"  # the threads are set before TensorFlow is loaded
    assert done.stderr.endswith(f"Error: {message}\n")


def test_missing_models_and_unknown_labels_are_errors_before_keras_is_loaded(tmp_path: Path) -> None:
    data, model = tmp_path / "reviews.csv", tmp_path / "reviews.keras"
    data.write_text("text,label\nGood.,pos\nBad.,neg\n")
    (tmp_path / "dev.csv").write_text("text,label\nGood.,new\n")
    (tmp_path / "ner.conll").write_text("Ada B-PER\nsaw O\nFair B-ORG\nIsle I-ORG\n")
    (tmp_path / "dev.conll").write_text("Ada I-PER\nParis B-LOC\n")
    config = {"registered_name": "lmzoo>TextClassifier", "config": {"labels": ["neg", "pos"], "multi_label": False}}
    with zipfile.ZipFile(model, "w") as file:
        file.writestr("config.json", json.dumps(config))
    new, shipped = ["--output", "new.keras"], ["--preset", "bert_nano_en_uncased"]
    cases = [
        (["fit", data, "--task", "TextClassifier", "--preset", "nothing", *new], "Unknown preset 'nothing'."),
        (
            ["fit", data, "--task", "classifier", "--validation", "dev.csv", *shipped, *new],
            "the label 'new' is unknown",
        ),
        (
            ["fit", "ner.conll", "--task", "tagger", "--validation", "dev.conll", *shipped, *new],
            "dev.conll, line 2: the label 'B-LOC' is unknown",  # but I-PER is one
        ),
        (["fit", data, "--task", "classifier", "--class-weight", "new=2", *shipped, *new], "got 'new=2'."),
        (["evaluate", model, "dev.csv"], "dev.csv, line 2: the label 'new' is unknown. Did you mean 'neg'?"),
        (["predict", model, "none.csv"], "There is no none.csv."),
        (["predict", "none.keras", data], "There is no file none.keras."),
        (["evaluate", "nothing", data], "Unknown preset 'nothing'."),
        (["export", "none.keras", "models/1"], "There is no file none.keras."),
        (["convert", "nothing", "there"], "Unknown preset 'nothing'."),
        (["verify", "nothing"], "Unknown preset 'nothing'."),
    ]
    code = """
import json, sys, lmzoo_script
lmzoo_script.postpone()
from lmzoo_cli.main import app
for command in json.loads(sys.argv[1]):
    try:
        app(command)
    except SystemExit as end:
        print(end.code, *sorted({"keras", "tensorflow", "jax", "numpy"} & sys.modules.keys()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps([[str(part) for part in command] for command, _ in cases])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    for line, (_, message) in zip(done.stderr.splitlines(), cases, strict=True):
        assert line.startswith("Error: ")
        assert message in line
    assert done.stdout.splitlines() == ["1"] * len(cases)


@pytest.mark.slow
def test_the_whole_package_is_there_when_asked_for() -> None:
    """Commands that need the models get all of `lmzoo`."""
    code = """
import sys, lmzoo_script
lmzoo_script.postpone()
from lmzoo.presets.catalog import list_presets
assert "keras" not in sys.modules
import lmzoo
assert lmzoo.list_presets is list_presets
assert lmzoo.models.TextClassifier and lmzoo.__version__ and type(lmzoo) is type(sys)
assert lmzoo.presets.catalog.list_presets is list_presets
import keras
assert keras.saving.get_registered_object("lmzoo>TextClassifier") is lmzoo.models.TextClassifier
"""
    run(code, KERAS_BACKEND="jax")  # whose import is silent
