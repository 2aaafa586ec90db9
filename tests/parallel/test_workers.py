"""Jobs in this process and in Ray's workers: each is done once, even if workers are killed."""

from __future__ import annotations

import functools
import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from lmzoo.parallel import workers
from lmzoo.parallel.workers import run_jobs


@pytest.fixture(autouse=True)
def _by_value():
    """Pickle modules by value: workers do not know the tests, and without lmzoo they need not import Keras."""
    for module in (sys.modules[__name__], workers):
        ray.cloudpickle.register_pickle_by_value(module)
    yield
    for module in (sys.modules[__name__], workers):
        ray.cloudpickle.unregister_pickle_by_value(module)


def start(folder: Path) -> Callable[[str], str]:
    """Return a function of jobs, some of which kill their process or fail."""

    def do(job: str) -> str:
        with (folder / job).open("a") as file:
            file.write("begun\n")
        if job == "always killed" or (job == "killed" and (folder / job).read_text() == "begun\n"):
            os.kill(os.getpid(), signal.SIGKILL)
        if job == "unreadable":
            raise FileNotFoundError(2, "No such file", "texts.csv")
        return f"{job} by {os.getpid()}"

    return do


def starter(folder: Path) -> Callable[[], Callable[[str], str]]:
    return functools.partial(start, folder)


def test_jobs_run_in_this_process_by_default(tmp_path):
    results = list(run_jobs(["a", "b"], starter(tmp_path)))
    assert results == [(job, f"{job} by {os.getpid()}") for job in "ab"]
    with pytest.raises(ValueError, match="needs a number of workers"):
        list(run_jobs(["a"], starter(tmp_path), address="auto"))


@pytest.mark.parametrize("count", [0, -1, 1.5])
def test_numbers_of_workers_are_checked(tmp_path, count):
    with pytest.raises(ValueError, match=f"`workers` must be an integer of at least 1, or None, got {count}"):
        list(run_jobs(["a"], starter(tmp_path), count))


@pytest.mark.slow
def test_every_job_is_done_once(tmp_path, monkeypatch):
    """Ray starts only once for all checks, since that takes seconds."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    names = ["a", "b", "killed", "c", "d"]
    try:
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
        results = dict(run_jobs(names, starter(tmp_path), workers=2))
        with pytest.raises(FileNotFoundError, match=re.escape("texts.csv")) as error_info:
            list(run_jobs(["a", "unreadable"], starter(tmp_path), workers=1))
        with pytest.raises(ValueError, match="3 workers need one CPU each, but Ray has 2"):
            list(run_jobs(["a"], starter(tmp_path), workers=3))
    finally:
        ray.shutdown()
    assert type(error_info.value) is FileNotFoundError  # not Ray's error, whose message is a traceback
    assert results.keys() == set(names)
    starts = {job: (tmp_path / job).read_text().count("begun") for job in names}
    assert starts == {"a": 2, "b": 1, "killed": 2, "c": 1, "d": 1}  # the second call also does "a"
    assert not any(str(os.getpid()) in result for result in results.values())


@pytest.mark.slow
def test_a_job_that_kills_every_worker_is_an_error(tmp_path):
    with pytest.raises(ChildProcessError, match="4 workers died one after another at always killed"):
        list(run_jobs(["a", "always killed"], starter(tmp_path), workers=1))
    assert (tmp_path / "always killed").read_text().count("begun") == 4
    assert not ray.is_initialized()


def test_a_missing_cluster_is_an_error(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    for prefix in ("", "ray://"):
        with pytest.raises(ConnectionError, match=f"There is no Ray cluster at {prefix}{address}: .*refused"):
            list(run_jobs(["a"], starter(tmp_path), 1, f"{prefix}{address}"))


def test_workers_need_ray(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=re.escape("Workers need Ray: pip install 'lmzoo[scale]'.")):
        list(run_jobs(["a"], starter(tmp_path), workers=1))
    assert len(list(run_jobs(["a"], starter(tmp_path)))) == 1


@pytest.mark.slow
def test_workers_are_spread_over_a_cluster(tmp_path):
    """The cluster has two hosts."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        ray.shutdown()  # the cluster may have connected
        results = dict(run_jobs(["a", "b", "c", "killed"], starter(tmp_path), workers=2, address=cluster.address))
        with pytest.raises(ValueError, match="3 workers need one CPU each, but Ray has 2"):
            list(run_jobs(["a"], starter(tmp_path), workers=3, address=cluster.address))
    finally:
        cluster.shutdown()
    assert results.keys() == {"a", "b", "c", "killed"}
    assert not ray.is_initialized()
