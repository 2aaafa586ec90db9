"""lmzoo turns oneDNN's kernels on, unless the user has set the variable or TensorFlow was imported first."""

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
from lmzoo.testing import tiny_task
from lmzoo.training import training_run

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"


@pytest.fixture
def run_module_anew(monkeypatch, tmp_path):
    """Return a function that runs the module anew, as on an x86 processor with only AVX2 and the variable not set."""
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setenv(VARIABLE, "")  # so that monkeypatch also undoes what the module sets
    monkeypatch.delenv(VARIABLE)
    (tmp_path / "cpuinfo").write_text("flags : fma avx2")

    def run_module():
        module = runpy.run_path(tensorflow_kernels.__file__)
        module["_has_vnni"].__globals__["_PROCESSOR"] = tmp_path / "cpuinfo"
        return module

    return run_module


def messages(caplog):
    return [record.getMessage() for record in caplog.records]


def test_the_variable_is_set_unless_the_user_has_set_it(run_module_anew, monkeypatch, caplog):
    module = run_module_anew()
    module["turn_on_onednn"]()
    assert os.environ[VARIABLE] == "1"
    monkeypatch.setenv(VARIABLE, "0")
    module["turn_on_onednn"]()
    assert os.environ[VARIABLE] == "0"
    module["warn_if_onednn_is_off"]()
    assert messages(caplog) == []


def test_the_variable_is_not_set_on_other_processors(run_module_anew, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    run_module_anew()["turn_on_onednn"]()
    assert VARIABLE not in os.environ


def test_a_late_import_changes_nothing_and_warns_once(run_module_anew, monkeypatch, caplog):
    """TensorFlow has read the variable already, and child processes must not differ from this one."""
    monkeypatch.setitem(sys.modules, "tensorflow", os)
    module = run_module_anew()
    module["turn_on_onednn"]()
    assert VARIABLE not in os.environ
    for _ in range(2):
        module["warn_if_onednn_is_off"]()
    advice = "import lmzoo before tensorflow, or set TF_ENABLE_ONEDNN_OPTS=1."
    assert messages(caplog) == [f"Training is slower without oneDNN's kernels: {advice}"]


def test_there_is_no_warning_where_tensorflow_turns_the_kernels_on(run_module_anew, monkeypatch, caplog, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorflow", os)
    module = run_module_anew()
    (tmp_path / "cpuinfo").write_text("flags : fma avx2 avx512f avx512_vnni")
    module["warn_if_onednn_is_off"]()
    assert messages(caplog) == []


@pytest.mark.tf_only
def test_fit_checks_the_kernels(monkeypatch, eager):
    calls = []
    monkeypatch.setattr(training_run, "warn_if_onednn_is_off", lambda: calls.append("fit"))
    tiny_task(TextRegressor, FAMILY).fit(["good", "bad"], [0.5, 1.0], verbose=0)
    assert calls == ["fit"]


@pytest.mark.slow
def test_the_import_sets_only_this_variable(root):
    code = """
import os, platform, sys
platform.machine = lambda: "x86_64"
before = dict(os.environ)
import lmzoo.common.tensorflow_kernels
changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
print({name: value for name, value in changed.items() if not name.startswith(("TF2_", "TPU_", "KMP_"))})
"""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    process = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, check=True)
    assert process.stdout.decode() == "{'TF_ENABLE_ONEDNN_OPTS': '1'}\n"
