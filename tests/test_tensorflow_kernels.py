"""oneDNN's kernels are on unless the user says otherwise, or TensorFlow came first."""

from __future__ import annotations

import os
import platform
import runpy
import subprocess
import sys

import pytest

from lmzoo.common import tensorflow_kernels
from lmzoo.families.bert import FAMILY
from lmzoo.models import TextRegressor
from lmzoo.tasks.base import task as task_module
from lmzoo.testing import tiny_task

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"


@pytest.fixture
def imported(monkeypatch, tmp_path):
    """A function that imports the module again, on an x86 processor with AVX2 alone, where nothing is set."""
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setenv(VARIABLE, "")  # what is set here is undone
    monkeypatch.delenv(VARIABLE)
    (tmp_path / "cpuinfo").write_text("flags : fma avx2")

    def run():
        module = runpy.run_path(tensorflow_kernels.__file__)
        module["_has_vnni"].__globals__["_PROCESSOR"] = tmp_path / "cpuinfo"
        return module

    return run


def messages(caplog):
    return [record.getMessage() for record in caplog.records]


def test_on_unless_set(imported, monkeypatch, caplog):
    module = imported()
    module["turn_on_onednn"]()
    assert os.environ[VARIABLE] == "1"
    monkeypatch.setenv(VARIABLE, "0")
    module["turn_on_onednn"]()
    assert os.environ[VARIABLE] == "0"
    module["warn_if_onednn_is_off"]()
    assert messages(caplog) == []


def test_other_processors_are_left_alone(imported, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    imported()["turn_on_onednn"]()
    assert VARIABLE not in os.environ


def test_too_late(imported, monkeypatch, caplog):
    """TensorFlow has read the variable: a child process is not to do otherwise, and the user is told once."""
    monkeypatch.setitem(sys.modules, "tensorflow", os)
    module = imported()
    module["turn_on_onednn"]()
    assert VARIABLE not in os.environ
    for _ in range(2):
        module["warn_if_onednn_is_off"]()
    fix = "import lmzoo before tensorflow, or set TF_ENABLE_ONEDNN_OPTS=1."
    assert messages(caplog) == [f"Training is slower without oneDNN's kernels: {fix}"]


def test_nothing_is_said_where_tensorflow_turns_them_on(imported, monkeypatch, caplog, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorflow", os)
    module = imported()
    (tmp_path / "cpuinfo").write_text("flags : fma avx2 avx512f avx512_vnni")
    module["warn_if_onednn_is_off"]()
    assert messages(caplog) == []


@pytest.mark.tf_only
def test_fit_warns(monkeypatch, eager):
    calls = []
    monkeypatch.setattr(task_module, "warn_if_onednn_is_off", lambda: calls.append("fit"))
    tiny_task(TextRegressor, FAMILY).fit(["good", "bad"], [0.5, 1.0], verbose=0)
    assert calls == ["fit"]


@pytest.mark.slow
def test_import_sets_one_variable(root):
    code = """
import os, platform, sys
platform.machine = lambda: "x86_64"
before = dict(os.environ)
import lmzoo.common.tensorflow_kernels
ours = {name: value for name, value in os.environ.items() if before.get(name) != value}
print({name: value for name, value in ours.items() if not name.startswith(("TF2_", "TPU_", "KMP_"))})
"""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, check=True)
    assert done.stdout.decode() == "{'TF_ENABLE_ONEDNN_OPTS': '1'}\n"
