"""oneDNN's kernels are on unless the user, or a server, says otherwise."""

from __future__ import annotations

import os
import platform
import runpy
import sys

import pytest

from lmzoo.common import tensorflow_kernels

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"


@pytest.fixture
def fresh(monkeypatch):
    """Nothing is set, and TensorFlow is not imported; the processor is one of those that TensorFlow leaves out."""
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setenv(VARIABLE, "")  # what is set here is undone
    monkeypatch.delenv(VARIABLE)


def test_on_unless_set(fresh, monkeypatch):
    runpy.run_path(tensorflow_kernels.__file__)
    assert os.environ[VARIABLE] == "1"
    monkeypatch.setenv(VARIABLE, "0")
    leave = runpy.run_path(tensorflow_kernels.__file__)["leave_to_tensorflow"]
    leave()
    assert os.environ[VARIABLE] == "0"


def test_other_processors_are_left_alone(fresh, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    runpy.run_path(tensorflow_kernels.__file__)
    assert VARIABLE not in os.environ


def test_too_late(fresh, monkeypatch):
    """TensorFlow has read the variable: a child process is not to do otherwise."""
    monkeypatch.setitem(sys.modules, "tensorflow", os)
    runpy.run_path(tensorflow_kernels.__file__)
    assert VARIABLE not in os.environ


def test_a_server_leaves_it_to_tensorflow(fresh):
    runpy.run_path(tensorflow_kernels.__file__)["leave_to_tensorflow"]()
    assert VARIABLE not in os.environ
