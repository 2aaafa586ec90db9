"""A command in several processes that train one model: Ray Train starts them, and again if one dies."""

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

from lmzoo.parallel.workers import connected, worker_options

_RESTARTS = 3  # of all processes, after one has died
_POLL_SECONDS = 0.2
_GRACE_SECONDS = 2.0  # in which process 0 may fail before another process is blamed: usually all say the same
_MAX_MESSAGE_BYTES = 1 << 16  # of the last messages of a process
_LOST = "A worker was lost, with its host or its Ray process"

# What each process runs: a module, as `python -m` does. Ray blocks SIGINT in what it starts. The end of a worker of Ray
# closes the input of its process and so ends it. File 1 is left to C++: JAX's network would write between the results.
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
    """Run a module of Python in several processes at the same time, until all have ended.

    Each process is a child of a worker of Ray Train. It reads the address of process 0, the number of processes and its
    own index from the environment variables of `lmzoo.parallel.initialize`, and has a GPU to itself if there are
    any. What Python writes in process 0 is written here, and signals to this process are passed on to process 0, which
    tells the others. If a process dies (from a signal, or with its host), all start again, at most three times; they
    should continue from a state that they have saved. With `min_workers`, fewer start where a host is gone, and more
    when there is another one. After an error of a process all end.

    Args:
        module: what each process runs, as `python -m` does, in this working directory.
        arguments: of the module.
        workers: int, number of processes.
        address: of a Ray cluster, see `lmzoo.parallel.workers.run_jobs`.
        min_workers: int, number of processes that are enough after a loss; by default all.

    Returns:
        The exit code of process 0, or of the process that failed, whose messages are then also written here.

    Raises:
        ImportError: if Ray, or what Ray Train needs, is not installed.
        ConnectionError: if no cluster answers at the address.
        ValueError: if there are fewer processors or GPUs than workers.
        ChildProcessError: if a process dies after the last restart.
        KeyboardInterrupt: after a second Ctrl-C, which ends all processes at once.

    Example:

    ```{.python .notest}
    from lmzoo.parallel.process_group import run_together

    run_together("lmzoo_cli", ["pretrain", "texts", "--output", "my_preset"], workers=4)
    ```
    """
    with connected(workers, address) as ray, _catch_signals() as signals:
        from ray.util.queue import Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers of Ray need not import Keras
        options = worker_options(ray, workers, accelerated=True)
        node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        here = {"num_cpus": 0, "scheduling_strategy": node}  # where no loss of another host ends it
        config = {
            "command": [os.getcwd(), module, *arguments],
            "variables": {**options["runtime_env"]["env_vars"], "COLUMNS": str(shutil.get_terminal_size().columns)},
            "terminals": [sys.stdout.isatty(), sys.stderr.isatty()],
            "events": Queue(actor_options=here),
            "signals": Queue(actor_options=here),
        }
        # Not in this process: Ray Train would answer Ctrl-C by killing the workers.
        training = ray.remote(**here)(_train).remote(
            config, (min_workers or workers, workers), bool(options["num_gpus"])
        )
        try:
            return _follow(ray, training, config, signals)
        finally:
            ray.cancel(training)  # Ray Train then ends all workers


def _follow(ray: Any, training: Any, config: Mapping[str, Any], signals: Sequence[int]) -> int:
    """Pass on signals and output until the result is known, and return the exit code."""
    size = 0  # of the group that runs, before it starts
    restarts = 0
    passed_on = False
    death: str | None = None
    messages: dict[int, bytes] = collections.defaultdict(bytes)  # of the processes whose output is not shown
    while True:
        if signals and not size:
            return 128 + signals[0]
        if signals and not passed_on:
            config["signals"].put(signals[0])
            passed_on = True
        try:
            kind, index, content = config["events"].get(timeout=_POLL_SECONDS)
        except queue.Empty:
            if ray.wait([training], timeout=0)[0] and config["events"].empty():
                break
            continue
        if kind == "begin":
            if signals:
                return 128 + signals[0]
            if size:
                restarts += content <= size
                warnings.warn(describe_restart(death, size, content, restarts), stacklevel=3)
            size = content
            death = None
        elif kind == "end" and content < 0:
            death = death or f"Worker {index} was ended by {signal.Signals(-content).name}"
            if signals and index == 0:
                return 128 - content
        elif kind == "end":
            if (index == 0 and (content == 0 or signals)) or content not in (0, os.EX_TEMPFAIL):
                _write("stderr", messages[index])
                return content
        elif index == 0:
            _write(kind, content)
        elif kind == "stderr":
            messages[index] = (messages[index] + content)[-_MAX_MESSAGE_BYTES:]
    try:
        if ray.get(training):
            return os.EX_TEMPFAIL
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    raise ChildProcessError(
        f"{death or _LOST}, and all workers have been started again {_RESTARTS} times. Too little memory is the usual "
        "reason: try smaller batches, or a larger host."
    )


def describe_restart(death: str | None, before: int, now: int, restarts: int) -> str:
    """Say why a group of processes starts again, with how many, and from where."""
    start = "All workers start again from the last saved state, or from scratch if there is none"
    if now > before:
        return f"There is room for {now} workers now, instead of {before}. {start}."
    fewer = f" Now there are {now}." if now < before else ""
    return f"{death or _LOST}.{fewer} {start}: restart {restarts} of at most {_RESTARTS}."


def _write(kind: str, content: bytes) -> None:
    """Write to the stream "stdout" or "stderr" of this process."""
    file = (sys.stdout if kind == "stdout" else sys.stderr).buffer
    file.write(content)
    file.flush()


def _train(config: dict[str, Any], workers: tuple[int, int], use_gpu: bool) -> bool:
    """Run the command in workers of Ray Train and return whether no process has died in the last attempt."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    with tempfile.TemporaryDirectory() as folder:
        # No checkpoints of Ray's: states of `ResumableCheckpoint` can also be continued without Ray.
        run_config = RunConfig(storage_path=folder, failure_config=FailureConfig(max_failures=_RESTARTS))
        fixed = workers[0] == workers[1]
        scaling_config = ScalingConfig(num_workers=workers[0] if fixed else workers, use_gpu=use_gpu)
        trainer = DataParallelTrainer(
            _run_command, train_loop_config=config, run_config=run_config, scaling_config=scaling_config
        )
        try:
            trainer.fit()
        except WorkerGroupError:
            return False
    return True


def _run_command(config: Mapping[str, Any]) -> None:
    """Run the command in a child process of a worker of Ray Train, which runs this in a thread that hears no signals.

    Raises:
        ChildProcessError: if the process dies. Ray Train then starts all workers again.
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
    pipes = [os.openpty() if terminal and index == 0 else os.pipe() for terminal in config["terminals"]]
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *config["command"]],
        stdin=subprocess.PIPE,
        stdout=pipes[0][1],
        stderr=pipes[1][1],
        env={**os.environ, **config["variables"], **variables},
        start_new_session=True,  # Ctrl-C reaches it once: passed on by the process that started all
    )
    readers = []
    for kind, (source, target) in zip(("stdout", "stderr"), pipes, strict=True):
        os.close(target)
        readers.append(threading.Thread(target=_forward, args=(source, events, kind, index), daemon=True))
        readers[-1].start()
    while process.poll() is None:
        time.sleep(_POLL_SECONDS)
        if index == 0 and not config["signals"].empty():  # process 0 tells the others
            process.send_signal(config["signals"].get())
    for reader in readers:
        reader.join(1)  # what the process has started may still hold the other end
    if index != 0 and process.returncode > 0:
        time.sleep(_GRACE_SECONDS)
    events.put(("end", index, process.returncode))
    if process.returncode < 0:
        raise ChildProcessError(process.returncode)


def _forward(source: int, events: Any, kind: str, index: int) -> None:
    """Pass on all that a process writes."""
    with contextlib.suppress(OSError):  # how a terminal says that its other end is closed
        while content := os.read(source, 1 << 16):
            events.put((kind, index, content))


@contextlib.contextmanager
def _catch_signals() -> Iterator[list[int]]:
    """Yield a list to which SIGINT and SIGTERM are added during the block; the same signal again interrupts it."""
    signals: list[int] = []

    def catch(number: int, frame: object) -> None:
        signals.append(number)
        signal.signal(number, handlers[number])

    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in handlers:
        signal.signal(number, catch)
    try:
        yield signals
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
