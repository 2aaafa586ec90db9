"""A command in several processes that need one another, as for training: Ray starts them, and again if one dies."""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmzoo.parallel.workers import connected, worker_options

_RESTARTS = 3  # times that all processes are started again after one has died
_GRACE = 10.0  # seconds in which the others may end by themselves after one has failed
_MOMENT = 0.2  # seconds between two looks at signals
_KEPT = 1 << 16  # bytes of the messages of each process
_NETWORK = re.compile(rb"\[Gloo\] Rank .*(\r?\n)+")  # what JAX's network adds to the output, from several threads

# What each process runs: a module, as `python -m` does. It ends with its supervisor, whose end closes its input. Ray
# blocks SIGINT in what it starts.
_PROGRAM = """
import os, runpy, signal, sys, threading
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def run_together(module: str, arguments: Sequence[str], workers: int, address: str | None = None) -> int:
    """Run a module of Python in several processes at the same time, until all have ended.

    They are told the address of the first process, how many there are and which one each is in the environment
    variables that `lmzoo.parallel.initialize` reads, and have a GPU each if there are any. What the first one
    writes is written here, and signals to this process are passed on to all. If one dies (from a signal, or with its
    host) the others are ended, and all start again, at most three times: they should continue from a state that they
    have saved. If one ends with an error, so do the others.

    Args:
        module: what each process runs, as `python -m` does, in this working directory.
        arguments: of the module.
        workers: int, number of processes.
        address: of a Ray cluster, see `lmzoo.parallel.workers.run_jobs`.

    Returns:
        The exit code of the first process, or of the one that failed, whose messages are then written here, too.

    Raises:
        ImportError: if Ray is not installed.
        ConnectionError: if no cluster answers at the address.
        FileNotFoundError: if the working directory is not there on the host of a process.
        ValueError: if there are fewer processors or GPUs than workers.
        ChildProcessError: naming a process that died after the last restart.

    Example:

    ```{.python .notest}
    from lmzoo.parallel.process_group import run_together

    run_together("lmzoo_cli", ["pretrain", "texts", "--output", "my_preset"], workers=4)
    ```
    """
    with connected(workers, address) as ray, _signals() as heard:
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # supervisors need not import Keras
        for restart in range(_RESTARTS + 1):
            ended = _attempt(ray, [module, *arguments], workers, heard)
            death = None if heard else ended.death()
            if death is None:
                break
            if restart == _RESTARTS:
                raise ChildProcessError(
                    f"{death}, and all workers have been started again {_RESTARTS} times. Too little memory is the "
                    "usual reason: try smaller batches, or a larger host."
                )
            warnings.warn(
                f"{death}. All workers start again from the last saved state, or from scratch if there is none: "
                f"restart {restart + 1} of at most {_RESTARTS}.",
                stacklevel=2,
            )
    return ended.code(heard)


@dataclass
class _Ended:
    """How processes have ended, by their numbers and in the order of their ends.

    Attributes:
        codes: their exit codes, negative for a signal; None if the supervisor or the host died.
        messages: the last of what they have written to standard error.
    """

    codes: dict[int, int | None] = field(default_factory=dict)
    messages: dict[int, bytes] = field(default_factory=dict)

    def errors(self) -> list[tuple[int, int]]:
        """Return the processes that ended with an error of their own, and their codes; last those that blame others."""
        found = [(index, code) for index, code in self.codes.items() if code is not None and code > 0]
        return sorted(found, key=lambda one: one[1] == os.EX_TEMPFAIL)

    def death(self) -> str | None:
        """Which process died first, and of what; None if none did, or if one ended before with an error of its own."""
        if self.codes.get(0) == 0 or any(code != os.EX_TEMPFAIL for _, code in self.errors()):
            return None
        for index, code in self.codes.items():
            if code is None:
                return f"Worker {index} was lost, with its host or its supervisor"
            if code < 0:
                return f"Worker {index} was ended by {signal.Signals(-code).name}"
        return None

    def code(self, heard: Sequence[int]) -> int:
        """Return the exit code of all, and write the messages of the one whose error it is, unless the first has."""
        first = self.codes.get(0)
        if first == 0:
            return 0
        if heard:
            return first if first is not None and first > 0 else 128 + heard[0]
        index, code = self.errors()[0]
        known = {line.strip() for line in self.messages.get(0, b"").splitlines()}
        for line in self.messages.get(index, b"").splitlines():
            if line.strip() not in known:
                _write(2, line + b"\n")
        return code


def _attempt(ray: Any, command: list[str], workers: int, heard: list[int]) -> _Ended:
    """Start all processes, wait for their ends, and end those that do not end in time."""
    actor_class = ray.remote(**worker_options(ray, workers, accelerated=True), max_concurrency=2)(_Supervisor)
    supervisors = [actor_class.remote() for _ in range(workers)]
    ended, passed_on, deadline, held = _Ended(), False, math.inf, b""
    try:
        variables = {
            "KERAS_DISTRIBUTION_JOB_ADDRESSES": ray.get(supervisors[0].free_address.remote()),
            "KERAS_DISTRIBUTION_NUM_PROCESSES": str(workers),
            "PYTHONUNBUFFERED": "1",
        }
        streams = {}
        for index, supervisor in enumerate(supervisors):
            own = {**variables, "KERAS_DISTRIBUTION_PROCESS_ID": str(index)}
            screens = [file.isatty() for file in (sys.stdout, sys.stderr)] if index == 0 else [False, False]
            if any(screens):
                columns, lines = shutil.get_terminal_size()
                own |= {"COLUMNS": str(columns), "LINES": str(lines), "TERM": os.environ.get("TERM", "")}
            run = supervisor.run.options(num_returns="streaming")
            streams[run.remote(command, os.getcwd(), own, screens)] = index
        while streams and time.monotonic() < deadline:
            if heard and not passed_on:
                passed_on = True
                for supervisor in supervisors:
                    supervisor.send.remote(heard[0])
            for stream in ray.wait(list(streams), timeout=_MOMENT)[0]:
                index, (number, content) = streams[stream], _next(ray, stream)
                if number:
                    if number == 2:
                        ended.messages[index] = (ended.messages.get(index, b"") + content)[-_KEPT:]
                    elif index == 0:
                        content = _NETWORK.sub(b"", held + content)
                        complete = content.find(b"[Gloo]") if b"[Gloo]" in content else len(content)
                        content, held = content[:complete], content[complete:]
                    if index == 0:
                        _write(number, content)
                    continue
                del streams[stream]
                ended.codes[index] = content
                if content != 0:
                    deadline = min(deadline, time.monotonic() + (math.inf if heard else _GRACE))
    finally:
        for supervisor in supervisors:
            ray.kill(supervisor)
    return ended


def _next(ray: Any, stream: Any) -> tuple[int, Any]:
    """Return what `_Supervisor.run` yields; (0, None) if the supervisor has died."""
    try:
        return ray.get(next(stream))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except (ray.exceptions.RayActorError, StopIteration):
        return 0, None


def _write(number: int, content: bytes) -> None:
    """Write to standard output (1) or standard error (2)."""
    file = (sys.stdout if number == 1 else sys.stderr).buffer
    file.write(content)
    file.flush()


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Yield a list of the signals that a `with` block hears; Ctrl-C interrupts it only if it comes again."""
    heard: list[int] = []

    def hear(number: int, frame: object) -> None:
        if heard and number == signal.SIGINT:
            raise KeyboardInterrupt
        heard.append(number)

    former = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield heard
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


class _Supervisor:
    """A thread that runs a process on its host, passes on what it writes and how it ends, and sends it signals."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self._process: subprocess.Popen[bytes]

    def free_address(self) -> str:
        """Return an address of this host, with a port on which nobody listens."""
        import ray

        with socket.socket() as found:
            found.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{found.getsockname()[1]}"

    def run(
        self, command: list[str], folder: str, variables: dict[str, str], screens: list[bool]
    ) -> Iterator[tuple[int, Any]]:
        """Yield 1 or 2 and what the process writes to standard output or error, at the end 0 and its exit code.

        `screens` says which of both it is to take for a terminal.
        """
        if not os.path.isdir(folder):
            raise FileNotFoundError(f"There is no {folder} on {socket.gethostname()}: all hosts need the same folders.")
        ends = [os.openpty() if screen else os.pipe() for screen in screens]  # what we read, what the process writes
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *command],
            stdin=subprocess.PIPE,
            stdout=ends[0][1],
            stderr=ends[1][1],
            cwd=folder,
            env={**os.environ, **variables},
            start_new_session=True,  # Ctrl-C reaches it once: through `send`
        )
        self._started.set()
        for _, end in ends:
            os.close(end)
        numbers = {end: number for number, (end, _) in enumerate(ends, 1)}
        while numbers:
            ready = select.select(list(numbers), [], [], _MOMENT)[0]
            if not ready and self._process.poll() is not None:
                break  # what it has started may still hold the other end
            for end in ready:
                try:
                    content = os.read(end, 1 << 16)
                except OSError:  # how a terminal says that its other end is closed
                    content = b""
                if content:
                    yield numbers[end], content
                else:
                    del numbers[end]
        yield 0, self._process.wait()

    def send(self, number: int) -> None:
        """Send a signal to the process."""
        self._started.wait()
        self._process.send_signal(number)
