"""A process that saves and loads artifacts when it is told to, and what it did, however it ended."""

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
SECONDS = 120  # after which a request counts as one that hangs; the machine may be busy


@dataclass(frozen=True)
class Outcome:
    """What became of a request.

    Attributes:
        ended: "done", "error", "killed" (by a fault), "crashed" or "hangs".
        value: what the request returned.
        error: the error's class.
        message: of the error, or of the warnings.
        ours: whether lmzoo raised the error (and not a library below).
        seconds: how long it took.
        megabytes: by how much the process grew in the meantime.
        events: what the audit hook saw that a file must not cause.
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
    """A process with lmzoo, on the backend of the tests. It is started when it is needed, and again after it has ended.

    Args:
        folder: the files that it may change; its temporary directory is in there, too.

    Attributes:
        disk: its disk; None while it does not run, and where Linux does not let it fail.
        number: how many processes were started so far.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.number = 0
        self.disk: Disk | None = None
        (folder / "temporary").mkdir(parents=True, exist_ok=True)

    def leftovers(self) -> list[Path]:
        """What is in its temporary directory, except for TensorFlow's own files, which go when the process ends."""
        return [path for path in (self.folder / "temporary").iterdir() if "__autograph" not in path.name]

    def ask(self, do: str, fault: Fault | None = None, seconds: float = SECONDS, **arguments: Any) -> Outcome:
        """Has it call a function of `tests.faults.worker`.

        Args:
            do: the function's name.
            fault: what its disk does in the meantime.
            seconds: after which it is killed.
            **arguments: of the function.
        """
        if self._process is not None and self._process.poll() is not None:
            self.end()  # it has ended since the last request
        if self._process is None:
            self._start()
        assert self._process is not None
        self._socket.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
        if self.disk is not None:
            self.disk.expect(fault)
        before = time.monotonic()
        line = self._receive(before + seconds)
        passed = time.monotonic() - before
        if line.endswith(b"\n"):
            return Outcome(**{**json.loads(line), "seconds": passed})
        hangs = self._process.poll() is None and passed >= seconds
        killed = fault is not None and fault.error is None and self.disk is not None and self.disk.hit
        self.end()
        return Outcome("hangs" if hangs else "killed" if killed else "crashed", seconds=passed)

    def _start(self) -> None:
        self.number += 1
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, "-W", "ignore", "-m", "tests.faults.worker", str(theirs.fileno())]
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "TOKENIZERS_PARALLELISM": "false",
            "TMPDIR": str(self.folder / "temporary"), "TF_CPP_MIN_LOG_LEVEL": "3",
        }  # fmt: skip
        with theirs:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()], start_new_session=True
            )
        for listener in socket.recv_fds(self._socket, 1, 1)[1]:
            self.disk = Disk(listener, self.folder)
        ready = self._receive(time.monotonic() + 5 * SECONDS)
        assert ready == b"ready\n", "the process could not start"

    def _receive(self, until: float) -> bytes:
        """A line from it; less if it has ended, or if the time is over."""
        line = b""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if self.disk is not None:
            poll.register(self.disk.listener, select.POLLIN)
        while not line.endswith(b"\n") and (left := until - time.monotonic()) > 0:
            for descriptor, event in poll.poll(1000 * left):
                if self.disk is not None and descriptor == self.disk.listener:
                    if event & select.POLLIN:
                        self.disk.answer()
                    else:  # nobody is left to ask
                        poll.unregister(descriptor)
                else:
                    received = self._socket.recv(1 << 16)
                    line += received
                    if not received:
                        return line
        return line

    def end(self) -> None:
        """Ends the process."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # what it has forked, too
            self._process.wait()
            self._process = None
            self._socket.close()
            if self.disk is not None:
                os.close(self.disk.listener)
                self.disk = None
