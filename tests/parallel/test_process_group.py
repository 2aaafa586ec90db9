"""Processes that need one another: all end if one does, all start again if one is killed."""

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
    """One start for all, with GPUs of which only Ray knows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", str(root), os.pathsep)
        options = {"include_dashboard": False, "log_to_driver": False, "object_store_memory": 100 << 20}
        ray.init("local", num_cpus=2, num_gpus=2, **options)
        yield
        ray.shutdown()


@pytest.fixture(autouse=True)
def _here(root, monkeypatch):
    monkeypatch.chdir(root)


def begun(folder, what):
    return [(folder / f"{what} {index}").read_text().count("begun") for index in range(2)]


def wait_for_end(process):
    """Waits until a process has ended, or only waits to be asked how: a minute, where it would go on for ten."""
    deadline = time.monotonic() + 60
    with contextlib.suppress(FileNotFoundError):
        while Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.slow
def test_all_run_at_the_same_time(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert run_together(PROBE, ["finish", str(tmp_path)], 2) == 0
    found = capsys.readouterr()
    first, second = found.out.splitlines()  # without what C++ writes
    assert first.startswith("0 of 2 meet at ")
    assert second == "terminals: [False, True]"
    assert found.err.split() == ["0", "says"]  # the other processes are not heard
    assert sorted((tmp_path / f"GPU {index}").read_text() for index in range(2)) == ["0", "1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "death"),
    [
        pytest.param("die once", "Worker 1 was ended by SIGKILL", id="killed"),
        pytest.param("be lost once", "A worker was lost, with its host or its Ray process", id="lost"),
    ],
)
def test_all_start_again_if_one_dies(tmp_path, what, death):
    with pytest.warns(UserWarning, match=rf"{death}\. All workers start again.*restart 1 of at most 3"):
        assert run_together(PROBE, [what, str(tmp_path)], 2) == 0
    assert begun(tmp_path, what) == [2, 2]
    for index in range(2):  # nothing of the first attempt goes on
        wait_for_end((tmp_path / f"process {index}").read_text())


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (3, 3, "was lost, with its host or its Ray process. All workers start again from the last saved state"),
        (3, 2, "Ray process. Now there are 2. All workers start again"),
        (2, 3, "There is room for 3 workers now, instead of 2. All workers start again"),
    ],
)
def test_why_all_start_again(before, now, words):
    message = process_group.describe_restart(None, before, now, 1)
    assert words in message
    assert ("restart 1 of at most 3" in message) == (now <= before)


@pytest.mark.slow
def test_a_process_that_is_killed_each_time(tmp_path):
    with (
        pytest.warns(UserWarning, match="restart [123] of at most 3"),
        pytest.raises(ChildProcessError, match=r"Worker 1 was ended by SIGKILL, and all .* started again 3 times"),
    ):
        run_together(PROBE, ["die always", str(tmp_path)], 2)
    assert begun(tmp_path, "die always") == [4, 4]


@pytest.mark.slow
def test_an_error_of_one_is_shown_once(tmp_path, capfd):
    assert run_together(PROBE, ["fail", str(tmp_path)], 2) == 3
    assert capfd.readouterr().err.splitlines() == ["0 ends because of another", "1 has failed"]
    assert begun(tmp_path, "fail") == [1, 1]


@pytest.mark.slow
def test_the_same_error_of_all_is_shown_once(tmp_path, capfd):
    assert run_together(PROBE, ["fail together", str(tmp_path)], 2) == 3
    assert capfd.readouterr().err.splitlines() == ["all say"]
    assert begun(tmp_path, "fail together") == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on(tmp_path, number):
    """To process 0; the other process, which has not heard of it, is ended."""
    sent = []

    def stop():
        while not all((tmp_path / f"waiting {index}").exists() for index in range(2)):
            time.sleep(0.01)
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)

    former = signal.getsignal(number)
    thread = threading.Thread(target=stop)
    thread.start()
    assert run_together(PROBE, ["be stopped", str(tmp_path)], 2) == 100
    assert signal.getsignal(number) is former
    thread.join()
    for index in range(2):
        wait_for_end((tmp_path / f"waiting {index}").read_text())
    assert time.monotonic() - sent[0] < 10


@pytest.mark.slow
def test_what_is_missing(tmp_path, monkeypatch, capfd):
    with pytest.raises(ValueError, match="3 workers need a GPU each, and there are 2"):
        run_together(PROBE, ["finish", str(tmp_path)], 3)
    monkeypatch.setattr(os, "getcwd", lambda: str(tmp_path / "gone"))
    assert run_together(PROBE, ["finish", str(tmp_path)], 1) == 1
    assert f"Error: There is no {tmp_path / 'gone'} on " in capfd.readouterr().err
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match="pip install 'lmzoo"):
        run_together(PROBE, [], 1)
