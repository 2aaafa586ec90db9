"""A child process that saves and loads artifacts on request and reports what happened, even if it dies."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.failing_disk import Disk, Fault

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 120  # for a request; the machine may be busy


@dataclass(frozen=True)
class Outcome:
    """The outcome of a request.

    Attributes:
        ended: "done", "error", "killed" (by a fault), "crashed" or "hangs".
        value: Return value of the function.
        error: Name of the error's class.
        message: Message of the error, or of the warnings.
        ours: Whether lmzoo raised the error, rather than a library below it.
        trace: Last lines of the traceback.
        seconds: Duration.
        megabytes: Growth of the process's memory.
        events: Forbidden actions that the audit hook saw.
    """

    ended: str
    value: Any = None
    error: str = ""
    message: str = ""
    ours: bool = False
    trace: str = ""
    seconds: float = 0.0
    megabytes: float = 0.0
    events: tuple[str, ...] = ()


class WatchedProcess:
    """A process with lmzoo, on the backend of the tests. It starts on the first request, and again after it has ended.

    Args:
        folder: Directory in which the process may change files. It also holds its temporary directory.

    Attributes:
        disk: The process's disk, or None while no process runs or where Linux lacks seccomp's user notification.
        number: Number of processes started so far.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.number = 0
        self.disk: Disk | None = None
        (folder / "temporary").mkdir(parents=True, exist_ok=True)

    def leftovers(self) -> list[Path]:
        """Return the files in the temporary directory, except TensorFlow's, which go when the process ends."""
        return [path for path in (self.folder / "temporary").iterdir() if "__autograph" not in path.name]

    def ask(self, do: str, fault: Fault | None = None, seconds: float = TIMEOUT_SECONDS, **arguments: Any) -> Outcome:
        """Let the process call a function of `tests.faults.worker`.

        Args:
            do: Name of the function.
            fault: Failure of the disk during the call.
            seconds: Timeout after which the process is killed.
            **arguments: Arguments of the function.
        """
        if self._process is not None and self._process.poll() is not None:
            self.end()  # the process has ended since the last request
        if self._process is None:
            self._start()
        assert self._process is not None
        self._socket.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
        if self.disk is not None:
            self.disk.expect(fault)
        start = time.monotonic()
        line = self._receive(start + seconds)
        elapsed = time.monotonic() - start
        if line.endswith(b"\n"):
            return Outcome(**{**json.loads(line), "seconds": elapsed})
        hangs = self._process.poll() is None and elapsed >= seconds
        killed = fault is not None and fault.error is None and self.disk is not None and self.disk.hit
        self.end()
        return Outcome("hangs" if hangs else "killed" if killed else "crashed", seconds=elapsed)

    def _start(self) -> None:
        self.number += 1
        self._socket, worker_socket = socket.socketpair()
        command = [sys.executable, "-W", "ignore", "-m", "tests.faults.worker", str(worker_socket.fileno())]
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "TOKENIZERS_PARALLELISM": "false",
            "TMPDIR": str(self.folder / "temporary"), "TF_CPP_MIN_LOG_LEVEL": "3",
        }  # fmt: skip
        with worker_socket:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, pass_fds=[worker_socket.fileno()], start_new_session=True
            )
        for listener in socket.recv_fds(self._socket, 1, 1)[1]:
            self.disk = Disk(listener, self.folder)
        ready = self._receive(time.monotonic() + 5 * TIMEOUT_SECONDS)
        assert ready == b"ready\n", "the process could not start"

    def _receive(self, until: float) -> bytes:
        """Return a line from the process, or an incomplete one if it has ended or the time is over."""
        line = b""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if self.disk is not None:
            poll.register(self.disk.listener, select.POLLIN)
        while not line.endswith(b"\n") and (remaining := until - time.monotonic()) > 0:
            for descriptor, event in poll.poll(1000 * remaining):
                if self.disk is not None and descriptor == self.disk.listener:
                    if event & select.POLLIN:
                        self.disk.answer()
                    else:  # the process has ended
                        poll.unregister(descriptor)
                else:
                    received = self._socket.recv(1 << 16)
                    line += received
                    if not received:
                        return line
        return line

    def end(self) -> None:
        """End the process and its children."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            self._socket.close()
            if self.disk is not None:
                os.close(self.disk.listener)
                self.disk = None
