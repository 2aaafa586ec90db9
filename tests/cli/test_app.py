"""The command line as a user starts it: help without heavy imports, status lines, the list of presets."""

from __future__ import annotations

import io
import json
import os
import re
import runpy
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import keras
import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

import lmzoo
from lmzoo.pretraining.recipe import METHODS
from lmzoo.registry.family import families
from lmzoo_cli import main
from tests.tensorflow_lines import without_tensorflow_lines

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = get_command(main.app).commands


def run(code: str, *arguments: str, code_of_exit: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new process."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("LMZOO_PRESETS", "COLUMNS")}
    process = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**inherited, "NO_COLOR": "1", "KERAS_BACKEND": keras.backend.backend(), **env},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert process.returncode == code_of_exit, process.stderr
    return process


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """Return the output of each help and of the version, in a process that must not import lmzoo or a backend."""
    code = """
import contextlib, io, json, sys
from lmzoo_cli.main import main
outputs = {}
for line in sys.argv[1:]:
    sys.argv = ["lmzoo", *line.split()]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        try:
            main()
        except SystemExit as end:
            assert not end.code
    outputs[line] = output.getvalue()
assert not {"lmzoo", "keras", "tensorflow", "jax", "torch", "numpy"} & set(sys.modules)
print(json.dumps(outputs))
"""
    names = [*COMMANDS, *(f"inspect {name}" for name in COMMANDS["inspect"].commands)]
    process = run(code, "--version", "--help", *(f"{name} --help" for name in names), COLUMNS="300")
    assert process.stderr == ""
    return json.loads(process.stdout)


def test_installed_script_starts_here() -> None:
    (script,) = (script for script in entry_points(group="console_scripts") if script.name == "lmzoo")
    assert script.value == "lmzoo_cli.main:main"


def test_version(pages: dict[str, str]) -> None:
    assert pages["--version"] == f"lmzoo {lmzoo.__version__}\n"


def test_as_a_module(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(sys, "argv", ["lmzoo", "--version"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("lmzoo_cli", run_name="__main__")
    assert not end.value.code
    assert capsys.readouterr().out == f"lmzoo {lmzoo.__version__}\n"


def test_help_lists_all_commands(pages: dict[str, str]) -> None:
    listed = re.findall(r"^\W (\w+) ", pages["--help"], re.MULTILINE)
    assert listed[:3] == ["fit", "evaluate", "predict"]
    assert set(COMMANDS) <= set(listed)


def test_every_command_has_help(pages: dict[str, str]) -> None:
    assert all("Usage: " in page for line, page in pages.items() if line != "--version")


def test_help_names_every_family_that_can_be_pretrained(pages: dict[str, str]) -> None:
    trainable = [
        name
        for name, family in families().items()
        if family.pretrained_head in METHODS and family.backbone.__module__.startswith("lmzoo.")
    ]
    option = pages["pretrain --help"].partition("--family")[2].partition("--")[0]
    assert len(trainable) > 5
    assert set(trainable) <= set(re.findall(r"\w+", option))


def test_modules_of_commands_are_imported_without_lmzoo() -> None:
    """Each module is imported on its own, so none relies on what another has imported."""
    modules = ["main", "messages", "options", "output", "registered"]
    modules += [path.stem for path in sorted(ROOT.glob("lmzoo_cli/*_command*.py"))]
    assert len(modules) > 10
    code = """
import importlib, sys
for name in ("lmzoo", "keras", "tensorflow", "jax", "torch", "numpy"):
    sys.modules[name] = None  # an import raises an error
for name in sys.argv[1:]:
    for imported in [module for module in sys.modules if module.startswith("lmzoo_cli")]:
        del sys.modules[imported]
    importlib.import_module(f"lmzoo_cli.{name}")
"""
    run(code, *modules)


@pytest.mark.parametrize(("level", "expected"), [(None, "3"), ("0", "0")])
def test_tensorflow_logs_only_errors_unless_the_user_sets_a_level(
    monkeypatch: pytest.MonkeyPatch, level: str | None, expected: str
) -> None:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level or "")  # pytest restores it
    if level is None:
        monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    monkeypatch.setattr(main, "app", lambda prog_name: None)
    main.main()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == expected


def test_characters_that_the_encoding_of_the_output_lacks_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, "latin-1"))
    monkeypatch.setattr(main, "app", lambda prog_name: typer.echo("café → a"))
    main.main()
    assert output.getvalue() == b"caf\xe9 ? a\n"


@pytest.mark.slow
def test_a_command_announces_that_it_loads_keras() -> None:
    """Apart from lines that TensorFlow writes before it reads TF_CPP_MIN_LOG_LEVEL, stderr holds nothing else."""
    process = run("from lmzoo_cli.main import main; main()", "presets", TF_CPP_MIN_LOG_LEVEL="3")
    assert without_tensorflow_lines(process.stderr) == "Loading Keras...\n"
    assert process.stdout.startswith("name\tfamily\t")


def presets(monkeypatch: pytest.MonkeyPatch, **env: str) -> str:
    """Return the output of `lmzoo presets` in this process."""
    monkeypatch.delenv("LMZOO_PRESETS", raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(main.app, ["presets"])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_presets_in_a_pipe_are_a_table_of_tabs(monkeypatch: pytest.MonkeyPatch) -> None:
    header, *lines = presets(monkeypatch, COLUMNS="20").splitlines()
    rows = [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]
    assert [row["name"] for row in rows] == sorted(lmzoo.list_presets())
    for row in rows:
        info = lmzoo.list_presets()[row["name"]]
        assert int(row["parameters"]) == info.parameters
        assert int(row["size_bytes"]) == info.size_bytes
        assert row["where"] == ("package" if info.shipped else "download")


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_presets_on_a_terminal_fit_its_width_with_full_names(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    table = re.sub(r"\x1b\[\d*m", "", presets(monkeypatch, COLUMNS=str(columns), FORCE_COLOR="1"))
    assert "params" in table or columns < 80
    shipped = [info.name for info in lmzoo.list_presets().values() if info.shipped]
    assert table.split().count("package") == (len(shipped) if columns >= 80 else 0)
    for name in lmzoo.list_presets():
        assert name in table
    assert max(map(len, table.splitlines())) <= columns


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "message"),
    [("uvicorn", "Serving needs uvicorn: pip install 'lmzoo[serve]'."), ("", "There is no folder /nowhere.")],
)
def test_serving_fails_with_a_message(missing: str, message: str) -> None:
    """TensorFlow is imported first, with the threads of the option and its own default for oneDNN."""
    code = """
import os, sys
class Watch:
    def find_spec(name, path=None, target=None):
        if name == "tensorflow":
            variables = ("TF_NUM_INTRAOP_THREADS", "TF_ENABLE_ONEDNN_OPTS")
            print(*map(os.environ.get, variables), "lmzoo" in sys.modules)
sys.meta_path.insert(0, Watch)
sys.modules[sys.argv.pop()] = None
os.environ.pop("TF_ENABLE_ONEDNN_OPTS", None)
from lmzoo_cli.main import main
main()
"""
    arguments = ["serve", "/nowhere", "--port", "0", "--threads", "3", missing]
    process = run(code, *arguments, code_of_exit=1, TF_CPP_MIN_LOG_LEVEL="3")
    assert process.stdout == "3 None False\n"
    assert without_tensorflow_lines(process.stderr).endswith(f"Error: {message}\n")
