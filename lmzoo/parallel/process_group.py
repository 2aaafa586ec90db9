"""Running a module in several processes that train one model, with Ray Train and automatic restarts."""

from __future__ import annotations

import collections
import contextlib
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lmzoo.common.arguments import is_integer, require
from lmzoo.parallel.workers import connect_to_ray, make_worker_options

_MAX_RESTARTS = 3  # of all processes, after one has died
_POLL_SECONDS = 0.2
_GRACE_SECONDS = 2.0  # delay before other processes report a failure: if all fail alike, process 0 reports it first
_MAX_MESSAGE_BYTES = 1 << 16  # of the last messages of a process
_LOST_WORKER = "A worker was lost, with its host or its Ray process"

# Program of each process, which runs a module like `python -m`. It unblocks the signals that Ray blocks in its workers.
# When a Ray worker ends, the standard input of its child process closes, and the child process ends. Python writes to a
# copy of file descriptor 1, so that messages of JAX's C++ network library do not mix with results.
_PROGRAM = """
import os, runpy, signal, socket, sys, threading
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
directory = sys.argv.pop(1)
if not os.path.isdir(directory):
    sys.exit(f"Error: There is no {directory} on {socket.gethostname()}: all hosts need the same directories.")
os.chdir(directory)
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def run_together(
    module: str, arguments: Sequence[str], workers: int, address: str | None = None, min_workers: int | None = None
) -> int:
    """Run a Python module in several processes that train one model, until all have ended.

    Each process is a child of a Ray Train worker. It gets the address of process 0, the number of processes and its
    own index in the environment variables of `lmzoo.parallel.initialize`, and a GPU of its own if there are any. The
    output of process 0 becomes output of this process. Signals to this process are forwarded to process 0, which
    informs the others. If a process dies (from a signal, or with its host), all processes are restarted, at most three
    times, and should continue from a saved state. With `min_workers`, fewer processes are restarted after the loss of a
    host, and more after a host is added. If a process fails with an error, all processes end.

    Args:
        module: str, name of the module, which runs as with `python -m` in this working directory.
        arguments: list of str, command-line arguments of the module.
        workers: int, number of processes.
        address: str, address of a Ray cluster, as in `lmzoo.parallel.workers.run_jobs`.
        min_workers: int, minimum number of processes after the loss of a host; by default `workers`.

    Returns:
        The exit code of process 0, or of another process that failed, whose error messages are then written as well;
        or 128 plus the number of the signal that ended the run.

    Raises:
        ImportError: If Ray or a dependency of Ray Train is not installed.
        ConnectionError: If no cluster answers at `address`.
        ValueError: If `workers` is below 1, if `min_workers` is below 1 or above `workers`, or if there are fewer
            processors or GPUs than `workers`.
        ChildProcessError: If a process dies after the last restart.
        KeyboardInterrupt: After a second Ctrl-C, which ends all processes at once.

    Example:

    ```{.python .notest}
    from lmzoo.parallel.process_group import run_together

    run_together("lmzoo_cli", ["pretrain", "texts", "--output", "my_preset"], workers=4)
    ```
    """
    require(is_integer(workers, 1), "workers", "an integer of at least 1", workers)
    is_valid = min_workers is None or is_integer(min_workers, 1, workers)
    require(is_valid, "min_workers", f"an integer from 1 to {workers}, the number of workers, or None", min_workers)
    with connect_to_ray(workers, address) as ray, _catch_signals() as signals:
        from ray.util.queue import Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that Ray's workers need not import Keras
        options = make_worker_options(ray, workers, accelerated=True)
        node_strategy = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        local_options = {"num_cpus": 0, "scheduling_strategy": node_strategy}  # on this host, which outlives others
        config = {
            "command": [os.getcwd(), module, *arguments],
            "variables": {**options["runtime_env"]["env_vars"], "COLUMNS": str(shutil.get_terminal_size().columns)},
            "terminals": [sys.stdout.isatty(), sys.stderr.isatty()],
            "events": Queue(actor_options=local_options),
            "signals": Queue(actor_options=local_options),
        }
        # In another process, since Ray Train would kill the workers at Ctrl-C.
        training_task = ray.remote(**local_options)(_run_workers).remote(
            config, (min_workers or workers, workers), bool(options["num_gpus"])
        )
        try:
            return _wait_for_exit_code(ray, training_task, config, signals)
        finally:
            ray.cancel(training_task)  # Ray Train then ends all workers


def _wait_for_exit_code(ray: Any, training_task: Any, config: Mapping[str, Any], signals: Sequence[int]) -> int:
    """Forward signals and output until the processes end, and return the exit code.

    Raises:
        ChildProcessError: If a process dies after the last restart.
    """
    num_running = 0  # 0 before the processes start
    restarts = 0
    signal_sent = False
    death: str | None = None
    messages: dict[int, bytes] = collections.defaultdict(bytes)  # errors of processes whose output is not shown
    while True:
        if signals and not num_running:
            return 128 + signals[0]
        if signals and not signal_sent:
            config["signals"].put(signals[0])
            signal_sent = True
        try:
            event_kind, index, payload = config["events"].get(timeout=_POLL_SECONDS)
        except queue.Empty:
            if ray.wait([training_task], timeout=0)[0] and config["events"].empty():
                break
            continue
        if event_kind == "begin":
            if signals:
                return 128 + signals[0]
            if num_running:
                restarts += payload <= num_running
                warnings.warn(describe_restart(death, num_running, payload, restarts), stacklevel=3)
            num_running = payload
            death = None
        elif event_kind == "end" and payload < 0:
            death = death or f"Worker {index} was ended by {signal.Signals(-payload).name}"
            if signals and index == 0:
                return 128 - payload
        elif event_kind == "end":
            if (index == 0 and (payload == 0 or signals)) or payload not in (0, os.EX_TEMPFAIL):
                _write("stderr", messages[index])
                return payload
        elif index == 0:
            _write(event_kind, payload)
        elif event_kind == "stderr":
            messages[index] = (messages[index] + payload)[-_MAX_MESSAGE_BYTES:]
    try:
        if ray.get(training_task):
            return os.EX_TEMPFAIL
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    raise ChildProcessError(
        f"{death or _LOST_WORKER}, and all workers have been started again {_MAX_RESTARTS} times. Too little memory is "
        "the usual reason: try smaller batches, or a larger host."
    )


def describe_restart(death: str | None, before: int, now: int, restarts: int) -> str:
    """Return the message about a restart: the reason, the number of workers and the state they continue from.

    Args:
        death: message about the failed process, or None if a worker was lost.
        before: number of workers before the restart.
        now: number of workers after the restart.
        restarts: number of restarts so far, not counting those that only added workers.
    """
    restart_point = "All workers start again from the last saved state, or from scratch if there is none"
    if now > before:
        return f"There is room for {now} workers now, instead of {before}. {restart_point}."
    fewer_note = f" Now there are {now}." if now < before else ""
    return f"{death or _LOST_WORKER}.{fewer_note} {restart_point}: restart {restarts} of at most {_MAX_RESTARTS}."


def _write(stream_name: str, content: bytes) -> None:
    """Write bytes to the stream "stdout" or "stderr" of this process."""
    stream = (sys.stdout if stream_name == "stdout" else sys.stderr).buffer
    stream.write(content)
    stream.flush()


def _run_workers(config: dict[str, Any], worker_range: tuple[int, int], use_gpu: bool) -> bool:
    """Run the command in Ray Train workers, and return whether all processes survived the last attempt.

    Args:
        config: dict, the command, its environment, and the queues for events and signals.
        worker_range: minimum and maximum number of workers.
        use_gpu: bool, whether each worker gets a GPU.
    """
    from ray.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    with tempfile.TemporaryDirectory() as folder:
        # Without Ray's checkpoints, since runs can continue from a `ResumableCheckpoint` even without Ray.
        run_config = RunConfig(storage_path=folder, failure_config=FailureConfig(max_failures=_MAX_RESTARTS))
        is_fixed = worker_range[0] == worker_range[1]
        scaling_config = ScalingConfig(num_workers=worker_range[0] if is_fixed else worker_range, use_gpu=use_gpu)
        trainer = DataParallelTrainer(
            _run_command, train_loop_config=config, run_config=run_config, scaling_config=scaling_config
        )
        try:
            trainer.fit()
        except WorkerGroupError:
            return False
    return True


def _run_command(config: Mapping[str, Any]) -> None:
    """Run the command in a child process of this Ray Train worker.

    Ray calls this function in a thread, which receives no signals, so it reads them from a queue.

    Raises:
        ChildProcessError: If the process dies, so that Ray Train restarts all workers.
    """
    import ray.train
    from ray.train.collective import broadcast_from_rank_zero

    index = ray.train.get_context().get_world_rank()
    events = config["events"]
    if index == 0:
        events.put(("begin", 0, ray.train.get_context().get_world_size()))
    with socket.create_server(("", 0)) as server:
        address = f"{ray.util.get_node_ip_address()}:{server.getsockname()[1]}"
    variables = {
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": broadcast_from_rank_zero(address),
        "KERAS_DISTRIBUTION_NUM_PROCESSES": str(ray.train.get_context().get_world_size()),
        "KERAS_DISTRIBUTION_PROCESS_ID": str(index),
    }
    pipes = [os.openpty() if is_terminal and index == 0 else os.pipe() for is_terminal in config["terminals"]]
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *config["command"]],
        stdin=subprocess.PIPE,
        stdout=pipes[0][1],
        stderr=pipes[1][1],
        env={**os.environ, **config["variables"], **variables},
        start_new_session=True,  # so that Ctrl-C arrives only once, forwarded by the main process
    )
    readers = []
    for stream_name, (read_end, write_end) in zip(("stdout", "stderr"), pipes, strict=True):
        os.close(write_end)
        readers.append(threading.Thread(target=_forward, args=(read_end, events, stream_name, index), daemon=True))
        readers[-1].start()
    while process.poll() is None:
        time.sleep(_POLL_SECONDS)
        if index == 0 and not config["signals"].empty():  # process 0 informs the others
            process.send_signal(config["signals"].get())
    for reader in readers:
        reader.join(1)  # children of the process may keep the pipe open
    if index != 0 and process.returncode > 0:
        time.sleep(_GRACE_SECONDS)
    events.put(("end", index, process.returncode))
    if process.returncode < 0:
        raise ChildProcessError(process.returncode)


def _forward(descriptor: int, events: Any, stream_name: str, index: int) -> None:
    """Put the output that is read from a file descriptor into the queue `events`."""
    with contextlib.suppress(OSError):  # raised by a terminal whose other end is closed
        while content := os.read(descriptor, 1 << 16):
            events.put((stream_name, index, content))


@contextlib.contextmanager
def _catch_signals() -> Iterator[list[int]]:
    """Yield a list that collects SIGINT and SIGTERM; a second signal of the same kind has its usual effect."""
    signals: list[int] = []

    def catch(signal_number: int, frame: object) -> None:
        signals.append(signal_number)
        signal.signal(signal_number, handlers[signal_number])

    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in handlers:
        signal.signal(number, catch)
    try:
        yield signals
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
