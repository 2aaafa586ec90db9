"""A function called for each of many jobs, in this process or in worker processes that Ray starts."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

_SECONDS = 10.0  # until a cluster must have answered
_RETRIES = 3  # times that a job is done again after its worker has died
_OBJECTS = 100 << 20  # bytes of Ray's shared memory: jobs and results are small, their data is in files
# What a worker on another host must have as here, and what else would let each worker use all cores.
_SAME = ("JAX_PLATFORMS", "KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS", "XLA_FLAGS")
_THREADS = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


def run_jobs(
    jobs: Iterable[_Job],
    start: Callable[[], Callable[[_Job], _Result]],
    workers: int | None = None,
    address: str | None = None,
    accelerated: bool = False,
) -> Iterator[tuple[_Job, _Result]]:
    """Call a function for each job, and yield the jobs and their results in the order in which they are done.

    A job is done again, at most three times, if its worker dies: a job must not leave anything unfinished behind, as a
    file that is written under a temporary name does not. Results are small; what is large belongs into files.

    Args:
        jobs: arguments of the function.
        start: called once in each process, returns the function. It is pickled, as jobs and results are.
        workers: int, number of worker processes; None to do all jobs in this process, one after another.
        address: of a Ray cluster, such as "10.0.0.5:6379" or "auto"; None for this machine. If this process is already
            connected to a cluster, that is used.
        accelerated: whether each worker has a GPU to itself, if there are any.

    Raises:
        ImportError: if there are workers, but Ray is not installed.
        ConnectionError: if no cluster answers at the address.
        ValueError: if there are fewer processors or GPUs than workers.
        ChildProcessError: naming a job whose workers died one after another.
        Exception: the first that a call of the function raises.

    Example:

    ```python
    from lmzoo.parallel.workers import run_jobs

    list(run_jobs(["a", "bb"], lambda: len))  # [("a", 1), ("bb", 2)]
    ```
    """
    if workers is None:
        if address is not None:
            raise ValueError("A cluster needs a number of workers.")
        function = start()
        yield from ((job, function(job)) for job in jobs)
        return
    with connected(workers, address) as ray:
        yield from _on_actors(ray, list(jobs), start, workers, accelerated)


def _on_actors(
    ray: Any, jobs: list[_Job], start: Callable[[], Callable[[_Job], _Result]], workers: int, accelerated: bool
) -> Iterator[tuple[_Job, _Result]]:
    options = worker_options(ray, workers, accelerated)
    options |= {"max_restarts": -1, "max_task_retries": _RETRIES, "scheduling_strategy": "SPREAD"}
    actor_class = ray.remote(**options)(_Worker)
    waiting = iter(jobs)
    shared = [ray.put(start)]  # it travels once to each host, and in a list is unpacked only where it is needed
    actors = [actor_class.remote() for _ in range(min(workers, len(jobs)))]
    running = {actor.do.remote(shared, job): (actor, job) for actor, job in zip(actors, waiting, strict=False)}
    while running:
        (done,), _ = ray.wait(list(running), num_returns=1)
        actor, job = running.pop(done)
        result = _result(ray, done, job)
        for following in itertools.islice(waiting, 1):
            running[actor.do.remote(shared, following)] = (actor, following)
        yield job, result


def _result(ray: Any, done: Any, job: object) -> Any:
    """Return the result of a job; an error of the function is raised as if it had been called here."""
    try:
        return ray.get(done)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayActorError:
        raise ChildProcessError(
            f"{_RETRIES + 1} workers died one after another at {job}. Too little memory is the usual reason: try fewer "
            "workers or smaller batches."
        ) from None


class _Worker:
    """A process that does one job after another."""

    def __init__(self) -> None:
        self._function: Callable[[Any], Any] | None = None

    def do(self, start: list[Any], job: Any) -> Any:
        """Call the function that `start[0]`, a reference of Ray's, starts; it is started once."""
        if self._function is None:
            import ray

            self._function = ray.get(start[0])()
        return self._function(job)


def worker_options(ray: Any, workers: int, accelerated: bool) -> dict[str, Any]:
    """Return what Ray is told of each of some workers; see `run_jobs`.

    Raises:
        ValueError: if there are fewer processors or GPUs than workers.
    """
    there = ray.cluster_resources()
    gpus = accelerated and "GPU" in there
    kind = "GPU" if gpus else "CPU"
    if workers > there.get(kind, 0):
        raise ValueError(f"{workers} workers need a {kind} each, and there are {there.get(kind, 0):g}.")
    threads = str(max(1, int(there["CPU"]) // workers))
    variables = {**dict.fromkeys(_THREADS, threads), **{name: os.environ[name] for name in _SAME if name in os.environ}}
    return {"num_cpus": 1, "num_gpus": int(gpus), "runtime_env": {"env_vars": variables}}


@contextlib.contextmanager
def connected(workers: int, address: str | None) -> Iterator[Any]:
    """Yield Ray, connected to a cluster: the one that this process already uses, or that at an address, or its own.

    Raises:
        ImportError: if Ray is not installed.
        ConnectionError: if no cluster answers at the address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as Ray will do, and warns of
    try:
        import ray
    except ImportError:
        raise ImportError("Workers need Ray: pip install 'lmzoo[scale]'.") from None
    if ray.is_initialized():
        yield ray
        return
    processors = max(workers, os.cpu_count() or 1)  # a user may want more workers than there are
    own: dict[str, Any] = {"num_cpus": processors, "object_store_memory": _OBJECTS, "include_dashboard": False}
    options = own if address is None else {}
    try:
        _check_reachable(address)
        ray.init(address or "local", logging_level=logging.ERROR, log_to_driver=False, **options)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        problem = (
            "Ray cannot be started on this machine" if address is None else f"There is no Ray cluster at {address}"
        )
        raise ConnectionError(f"{problem}: {reason}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str | None) -> None:
    """Check that something listens at an address with a port: Ray itself would try for minutes."""
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS).close()
