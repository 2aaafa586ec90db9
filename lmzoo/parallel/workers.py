"""Running a function on many jobs, in this process or in worker processes of Ray."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from lmzoo.common.arguments import is_integer, require

_CONNECT_SECONDS = 10.0  # timeout of connections to a cluster
_MAX_RETRIES = 3  # of a job whose worker died
_OBJECT_STORE_BYTES = 100 << 20  # Ray's shared memory; jobs and results are small, since their data is in files
# Environment variables that workers on other hosts get from this process.
_SHARED_VARIABLES = ("JAX_PLATFORMS", "KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS", "XLA_FLAGS")
# Environment variables that limit the threads of a worker, which would otherwise use all cores.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


def run_jobs(
    jobs: Iterable[_Job],
    start: Callable[[], Callable[[_Job], _Result]],
    workers: int | None = None,
    address: str | None = None,
    accelerated: bool = False,
) -> Iterator[tuple[_Job, _Result]]:
    """Run a function on every job and yield each `(job, result)` as it finishes.

    If the worker of a job dies, the job is retried at most three times. An interrupted job must leave no partial
    output, so write to temporary files and rename them, for example. Write large results to files.

    Args:
        jobs: arguments of the function, one per call.
        start: callable that returns the function, called once in each process. It must be picklable, as must jobs and
            results.
        workers: int, number of worker processes; None to run all jobs in this process, one after another.
        address: str, address of a Ray cluster, such as "10.0.0.5:6379" or "auto"; None for this machine. An existing
            connection of this process takes precedence.
        accelerated: bool, whether each worker gets a GPU of its own, if there are any.

    Raises:
        ImportError: If `workers` is not None and Ray is not installed.
        ConnectionError: If no cluster answers at `address` or, without `address`, Ray cannot start on this machine.
        ValueError: If `workers` is below 1, if there are fewer processors or GPUs than `workers`, or if `address` is
            given without `workers`.
        ChildProcessError: If all retries of a job failed; the message names the job.
        Exception: The first error that the function raises.

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
    require(is_integer(workers, 1), "workers", "an integer of at least 1, or None", workers)
    with connect_to_ray(workers, address) as ray:
        yield from _run_on_actors(ray, list(jobs), start, workers, accelerated)


def _run_on_actors(
    ray: Any, jobs: list[_Job], start: Callable[[], Callable[[_Job], _Result]], workers: int, accelerated: bool
) -> Iterator[tuple[_Job, _Result]]:
    """Run the jobs in Ray actors and yield each `(job, result)` as it finishes."""
    options = make_worker_options(ray, workers, accelerated)
    options |= {"max_restarts": -1, "max_task_retries": _MAX_RETRIES, "scheduling_strategy": "SPREAD"}
    actor_class = ray.remote(**options)(_Worker)
    pending_jobs = iter(jobs)
    # Ray sends the object once to each host. From a list, it passes the reference instead of the object.
    start_reference = [ray.put(start)]
    actors = [actor_class.remote() for _ in range(min(workers, len(jobs)))]
    running_jobs = {
        actor.do.remote(start_reference, job): (actor, job) for actor, job in zip(actors, pending_jobs, strict=False)
    }
    while running_jobs:
        (finished_reference,), _ = ray.wait(list(running_jobs), num_returns=1)
        actor, job = running_jobs.pop(finished_reference)
        result = _get_result(ray, finished_reference, job)
        for next_job in itertools.islice(pending_jobs, 1):
            running_jobs[actor.do.remote(start_reference, next_job)] = (actor, next_job)
        yield job, result


def _get_result(ray: Any, result_reference: Any, job: object) -> Any:
    """Return the result of a job.

    Raises:
        ChildProcessError: If all workers that tried to run the job died; the message names `job`.
        Exception: The error that the function raised.
    """
    try:
        return ray.get(result_reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayActorError:
        raise ChildProcessError(
            f"{_MAX_RETRIES + 1} workers died one after another at {job}. Too little memory is the usual reason: try "
            "fewer workers or smaller batches."
        ) from None


class _Worker:
    """Ray actor that runs one job after another."""

    def __init__(self) -> None:
        self._function: Callable[[Any], Any] | None = None

    def do(self, start: list[Any], job: Any) -> Any:
        """Run the function on `job`; `start[0]` is a Ray reference to the callable that returns the function."""
        if self._function is None:
            import ray

            self._function = ray.get(start[0])()
        return self._function(job)


def make_worker_options(ray: Any, workers: int, accelerated: bool) -> dict[str, Any]:
    """Return the Ray options for each worker: CPUs, GPUs and environment variables.

    Raises:
        ValueError: If there are fewer processors or GPUs than `workers`.
    """
    resources = ray.cluster_resources()
    needs_gpu = accelerated and "GPU" in resources
    processor = "GPU" if needs_gpu else "CPU"
    if workers > resources.get(processor, 0):
        available = f"{resources.get(processor, 0):g}"
        raise ValueError(f"{workers} workers need one {processor} each, but Ray has {available}. Lower `workers`.")
    num_threads = str(max(1, int(resources["CPU"]) // workers))
    variables = {
        **dict.fromkeys(_THREAD_VARIABLES, num_threads),
        **{name: os.environ[name] for name in _SHARED_VARIABLES if name in os.environ},
    }
    return {"num_cpus": 1, "num_gpus": int(needs_gpu), "runtime_env": {"env_vars": variables}}


@contextlib.contextmanager
def connect_to_ray(workers: int, address: str | None) -> Iterator[Any]:
    """Connect to a Ray cluster, or start one on this machine, and yield the `ray` module.

    An existing connection of this process is used and kept.

    Raises:
        ImportError: If Ray is not installed.
        ConnectionError: If no cluster answers at `address` or, without `address`, Ray cannot start on this machine.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default; without it, Ray warns
    try:
        import ray
    except ImportError:
        raise ImportError("Workers need Ray: pip install 'lmzoo[scale]'.") from None
    if ray.is_initialized():
        yield ray
        return
    num_cpus = max(workers, os.cpu_count() or 1)  # users may ask for more workers than cores
    local_options: dict[str, Any] = {
        "num_cpus": num_cpus,
        "object_store_memory": _OBJECT_STORE_BYTES,
        "include_dashboard": False,
    }
    options = local_options if address is None else {}
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
    """Check that a server listens at an address with a port, since Ray would retry for minutes.

    Raises:
        OSError: If no server answers within `_CONNECT_SECONDS`.
    """
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
