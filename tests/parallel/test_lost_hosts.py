"""A run that loses a host continues with the remaining workers."""

from __future__ import annotations

import os
import threading
import time

import pytest
import ray
from ray.cluster_utils import Cluster

from lmzoo.parallel.process_group import run_together

NODE = {"num_cpus": 1, "object_store_memory": 100 << 20}


@pytest.fixture
def cluster(root, monkeypatch):
    """Start two hosts with a processor each, on this machine."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", str(root), os.pathsep)
    monkeypatch.chdir(root)
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    ray.init(cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.slow
def test_fewer_workers_continue(cluster, tmp_path, capsys):
    second = cluster.add_node(**NODE)
    cluster.wait_for_nodes()

    def lose():
        while not all((tmp_path / f"outlive others {index}").exists() for index in range(2)):
            time.sleep(0.1)
        cluster.remove_node(second, allow_graceful=False)

    thread = threading.Thread(target=lose)
    thread.start()
    with pytest.warns(UserWarning, match=r"Ray process\. Now there are 1\. All workers start again"):
        assert run_together("tests.parallel.group_probe", ["outlive others", str(tmp_path)], 2, min_workers=1) == 0
    thread.join()
    assert "0 of 1 is left" in capsys.readouterr().out.splitlines()  # Ray prints the log of a host that it stops
