"""`lmzoo env`: its report, which holds no secrets, also of a broken installation."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
import tomllib
from pathlib import Path

import keras
import pytest

import lmzoo
from lmzoo_cli import env_command
from tests.cli.commands import run

X86 = "model name\t: A Processor\nflags\t\t: fpu fma avx2 avx avx512f_like\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd i8mm\n"


def report() -> dict[str, str]:
    """Run `lmzoo env` in a pipe and return its lines as `{name: value}`."""
    return dict(line.split("\t") for line in run("env").stdout.splitlines())


def test_versions_and_backend(root: Path) -> None:
    entries = report()
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    required = [re.match(r"[\w.-]+", requirement)[0] for requirement in project["dependencies"]]
    assert len(required) > 20
    normalized = {re.sub("[-_]", "-", name): value for name, value in entries.items()}
    for name in required:
        assert normalized[re.sub("[-_]", "-", name)] == importlib.metadata.version(name)
    assert f"pytest {pytest.__version__}" in entries["extras"].split(", ")
    assert entries.keys().isdisjoint(extra.split()[0] for extra in entries["extras"].split(", "))
    devices = ", ".join(keras.distribution.list_devices())
    assert entries["backend"] == f"{keras.backend.backend()} on {devices}"
    assert entries["threads"]
    assert list(entries)[-1] == "settings"


def test_shipped_local_and_published_presets_are_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LMZOO_PRESETS", str(tmp_path))
    model = lmzoo.models.Backbone.from_preset("bert_nano_en_uncased", load_weights=False)
    model.save_to_preset(tmp_path / "bert/my_bert")
    presets = lmzoo.list_presets().values()
    shipped, local, published = report()["presets"].split("; ")
    assert shipped.split() == [info.name for info in presets if info.shipped]
    assert local == "local: my_bert"
    assert published == f"to download: {len(presets) - len(shipped.split()) - 1}"


def test_settings_hold_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    for name in ("HF_TOKEN", "KAGGLE_KEY", "TF_VAR_password", "LMZOO_SECRET"):
        monkeypatch.setenv(name, "hidden")
    entries = report()
    assert "OMP_NUM_THREADS=5" in entries["settings"].split(" ")
    assert "hidden" not in str(entries)


def test_settings_are_those_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that `import lmzoo` sets, such as TF_ENABLE_ONEDNN_OPTS, are not reported."""
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "")  # pytest restores it
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS")

    def load_backend() -> dict[str, str]:
        os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"
        return {"backend": "a backend"}

    monkeypatch.setattr(env_command, "_load_backend", load_backend)
    entries = report()
    assert entries["backend"] == "a backend"
    assert "TF_ENABLE_ONEDNN_OPTS" not in entries["settings"]


def test_a_broken_installation_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmzoo", None)  # an import raises an error
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["keras>=3", "no-such-package", 'x; extra == "y"'])
    entries = report()
    assert entries["backend"].startswith("cannot be imported: ModuleNotFoundError: import of lmzoo halted")
    assert entries["keras"] == keras.__version__
    assert entries["no-such-package"] == "not installed"
    assert entries["extras"] == "none"
    assert "settings" in entries


@pytest.mark.parametrize(
    ("text", "name", "instructions"),
    [(X86, "A Processor", "avx avx2 fma"), (ARM, "", "asimd i8mm"), (None, "", "unknown")],
    ids=["x86", "ARM", "not Linux"],
)
def test_processor_cores_and_instructions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, name: str, instructions: str
) -> None:
    monkeypatch.setattr(env_command, "_CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(os, "cpu_count", lambda: 11)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {2, 3, 7}, raising=False)
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text, "utf-8")
    entries = report()
    assert entries["instructions"] == instructions
    assert entries["cores"] == "3 of 11"
    assert entries["processor"]
    assert not name or entries["processor"] == name
