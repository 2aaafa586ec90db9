"""TensorFlow's log lines are left out, and nothing else is. `test_import_is_light` imports TensorFlow itself."""

from __future__ import annotations

import logging
import os
import runpy
import sys

import pytest

from lmzoo.common import tensorflow_logs

INFORMATION = "I0000 00:00:1795566379.507940   29683 port.cc:153] oneDNN custom operations are on.\n"
ERROR = "E0000 00:00:1795566379.507940   29683 cuda_fft.cc:477] Unable to register cuFFT factory\n"
HEADER = "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("0", [HEADER, INFORMATION, ERROR]),
        ("1", [ERROR]),
        ("2", [ERROR]),
        ("3", []),
        ("x", [HEADER, INFORMATION, ERROR]),
    ],
)
def test_a_level_hides_lines(monkeypatch, capfd, level, shown):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    with tensorflow_logs._standard_error_without_log_lines():
        os.write(2, "".join([HEADER, INFORMATION, "I am not a log line.\n", ERROR, "WARNING: of Python\n"]).encode())
    os.write(2, b"after")
    assert capfd.readouterr().err == (
        "".join(line for line in [*shown[:-1], "I am not a log line.\n", *shown[-1:]]) + "WARNING: of Python\nafter"
    )


def test_an_error_shows(capfd):
    @tensorflow_logs._standard_error_without_log_lines()
    def fail():
        os.write(2, b"libcuda is broken\n")
        raise ImportError

    with pytest.raises(ImportError):
        fail()
    assert capfd.readouterr().err == "libcuda is broken\n"


@pytest.mark.parametrize(("given", "expected", "quiet"), [(None, "3", True), ("1", "1", True), ("0", "0", False)])
def test_what_the_user_set_is_kept(monkeypatch, given, expected, quiet):
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    # On JAX the finder of the first import still waits for TensorFlow.
    others = [finder for finder in sys.meta_path if type(finder).__name__ != "_QuietImport"]
    monkeypatch.setattr(sys, "meta_path", others)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", given or "")
    if given is None:
        monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    runpy.run_path(tensorflow_logs.__file__)
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == expected
    assert (type(sys.meta_path[0]).__name__ == "_QuietImport") == quiet


def test_lines_of_the_python_logger(caplog):
    logger = logging.getLogger("tensorflow")
    with tensorflow_logs.without_log_lines("Assets written"):
        logger.error("Assets written to: %s", "x")
        logger.error("Another line.")
    logger.error("Assets written to: %s", "y")
    assert [record.getMessage() for record in caplog.records] == ["Another line.", "Assets written to: y"]
