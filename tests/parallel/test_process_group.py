"""Processes that depend on each other: all end if one fails, and all restart if one is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import ray

from lmzoo.parallel import process_group
from lmzoo.parallel.process_group import run_together

PROBE = "tests.parallel.group_probe"


@pytest.fixture(autouse=True, scope="module")
def _ray(root):
    """Start Ray once for all tests, with GPUs that only Ray knows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", str(root), os.pathsep)
        options = {"include_dashboard": False, "log_to_driver": False, "object_store_memory": 100 << 20}
        ray.init("local", num_cpus=2, num_gpus=2, **options)
        yield
        ray.shutdown()


@pytest.fixture(autouse=True)
def _in_repository(root, monkeypatch):
    monkeypatch.chdir(root)


def count_starts(folder, action):
    return [(folder / f"{action} {index}").read_text().count("begun") for index in range(2)]


def wait_for_end(process):
    """Wait up to a minute until a process has ended, or is a zombie; if not killed it would run for ten minutes."""
    deadline = time.monotonic() + 60
    with contextlib.suppress(FileNotFoundError):
        while Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_numbers_of_workers_are_checked():
    for workers in (0, -1, 1.5):
        with pytest.raises(ValueError, match=f"`workers` must be an integer of at least 1, got {workers}"):
            run_together(PROBE, [], workers)
    for min_workers in (0, 3):
        with pytest.raises(ValueError, match=f"`min_workers` must be an integer from 1 to 2, .*, got {min_workers}"):
            run_together(PROBE, [], 2, min_workers=min_workers)


@pytest.mark.slow
def test_all_run_at_the_same_time(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert run_together(PROBE, ["finish", str(tmp_path)], 2) == 0
    output = capsys.readouterr()
    first, second = output.out.splitlines()  # C++'s lines are removed
    assert first.startswith("0 of 2 meet at ")
    assert second == "terminals: [False, True]"
    assert output.err.split() == ["0", "says"]  # output of the other processes is dropped
    assert sorted((tmp_path / f"GPU {index}").read_text() for index in range(2)) == ["0", "1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "death"),
    [
        pytest.param("die once", "Worker 1 was ended by SIGKILL", id="killed"),
        pytest.param("be lost once", "A worker was lost, with its host or its Ray process", id="lost"),
    ],
)
def test_all_restart_if_one_dies(tmp_path, action, death):
    with pytest.warns(UserWarning, match=rf"{death}\. All workers start again.*restart 1 of at most 3"):
        assert run_together(PROBE, [action, str(tmp_path)], 2) == 0
    assert count_starts(tmp_path, action) == [2, 2]
    for index in range(2):  # no process of the first attempt survives
        wait_for_end((tmp_path / f"process {index}").read_text())


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (3, 3, "was lost, with its host or its Ray process. All workers start again from the last saved state"),
        (3, 2, "Ray process. Now there are 2. All workers start again"),
        (2, 3, "There is room for 3 workers now, instead of 2. All workers start again"),
    ],
)
def test_the_message_says_why_all_restart(before, now, words):
    message = process_group.describe_restart(None, before, now, 1)
    assert words in message
    assert ("restart 1 of at most 3" in message) == (now <= before)


@pytest.mark.slow
def test_a_process_that_is_always_killed_is_an_error(tmp_path):
    with (
        pytest.warns(UserWarning, match="restart [123] of at most 3"),
        pytest.raises(ChildProcessError, match=r"Worker 1 was ended by SIGKILL, and all .* started again 3 times"),
    ):
        run_together(PROBE, ["die always", str(tmp_path)], 2)
    assert count_starts(tmp_path, "die always") == [4, 4]


@pytest.mark.slow
def test_an_error_of_one_is_shown_once(tmp_path, capfd):
    assert run_together(PROBE, ["fail", str(tmp_path)], 2) == 3
    assert capfd.readouterr().err.splitlines() == ["0 ends because of another", "1 has failed"]
    assert count_starts(tmp_path, "fail") == [1, 1]


@pytest.mark.slow
def test_the_same_error_of_all_is_shown_once(tmp_path, capfd):
    assert run_together(PROBE, ["fail together", str(tmp_path)], 2) == 3
    assert capfd.readouterr().err.splitlines() == ["all say"]
    assert count_starts(tmp_path, "fail together") == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_forwarded(tmp_path, number):
    """Process 0 receives the signal; the other process is then ended."""
    sent_at = []

    def stop():
        while not all((tmp_path / f"waiting {index}").exists() for index in range(2)):
            time.sleep(0.01)
        sent_at.append(time.monotonic())
        os.kill(os.getpid(), number)

    handler = signal.getsignal(number)
    thread = threading.Thread(target=stop)
    thread.start()
    assert run_together(PROBE, ["be stopped", str(tmp_path)], 2) == 100
    assert signal.getsignal(number) is handler
    thread.join()
    for index in range(2):
        wait_for_end((tmp_path / f"waiting {index}").read_text())
    assert time.monotonic() - sent_at[0] < 10


@pytest.mark.slow
def test_missing_devices_directories_and_packages_are_errors(tmp_path, monkeypatch, capfd):
    with pytest.raises(ValueError, match="3 workers need one GPU each, but Ray has 2"):
        run_together(PROBE, ["finish", str(tmp_path)], 3)
    monkeypatch.setattr(os, "getcwd", lambda: str(tmp_path / "gone"))
    assert run_together(PROBE, ["finish", str(tmp_path)], 1) == 1
    assert f"Error: There is no {tmp_path / 'gone'} on " in capfd.readouterr().err
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match="pip install 'lmzoo"):
        run_together(PROBE, [], 1)
