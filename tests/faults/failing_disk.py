"""A disk that fails on demand, for one process: the kernel asks the test about each system call that changes files.

The mechanism is seccomp's user notification (Linux 5.5). It needs no privileges, and it sees the calls of HDF5,
TensorFlow and all other libraries as well as Python's. A process calls `hand_over_calls`; the test receives the file
descriptor and answers through `Disk`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import signal
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

# Numbers of the system calls on x86-64 and on ARM64, by what they do.
_NUMBERS = {
    "x86_64": {
        "write": (1, 18, 20, 296, 328, 40, 326, 77, 285), "sync": (74, 75), "create": (2, 85, 257, 86, 265, 88, 266),
        "mkdir": (83, 258), "rename": (82, 264, 316), "remove": (84, 87, 263), "seccomp": (317,),
    },
    "aarch64": {
        "write": (64, 68, 66, 70, 287, 71, 285, 46, 47), "sync": (82, 83), "create": (56, 36, 37),
        "mkdir": (34,), "rename": (38, 276), "remove": (35,), "seccomp": (277,),
    },
}  # fmt: skip
_FLAGS = {2: 1, 257: 2, 56: 2}  # index of the argument with the flags of `open` and `openat`
_COPY_FILE_RANGE = {"x86_64": 326, "aarch64": 285}  # it writes to its third argument
_NOTIFICATION, _RESPONSE = "QIIiIQ6Q", "QqiI"
_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_RECV and _SEND
_CONTINUE = 1
_CREATES = os.O_CREAT | os.O_TMPFILE & ~os.O_DIRECTORY
ALL = frozenset({"write", "sync", "create", "mkdir", "rename", "remove"})


def _calls() -> dict[int, str]:
    numbers = _NUMBERS[platform.machine()]
    return {number: kind for kind, group in numbers.items() for number in group if kind != "seccomp"}


def hand_over_calls(sock: socket.socket) -> None:
    """Let the process at the other end of a socket decide about every call of this one that changes files.

    The filter also holds for child processes and cannot be removed. Call this before other threads start.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0):  # PR_SET_NO_NEW_PRIVS, without which only root may filter
        raise OSError(ctypes.get_errno(), "prctl")
    program = struct.pack("HBBI", 0x20, 0, 0, 0)  # the call's number
    for number in _calls():
        program += struct.pack("HBBI", 0x15, 0, 1, number) + struct.pack("HBBI", 0x06, 0, 0, 0x7FC00000)  # ask
    program += struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)  # allow
    instructions = ctypes.create_string_buffer(program, len(program))
    sock_fprog = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(instructions))
    listener = libc.syscall(_NUMBERS[platform.machine()]["seccomp"][0], 1, 8, sock_fprog)
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    socket.send_fds(sock, [b"x"], [listener])
    os.close(listener)


@dataclass(frozen=True)
class Fault:
    """A failure of the disk and the moment at which it happens.

    Attributes:
        name: Name for messages and counts.
        calls: Kinds of calls that count.
        at: Number of these calls that succeed first.
        error: Number of the error, or None if the process is killed instead.
        lasting: Whether all later calls of these kinds fail as well.
    """

    name: str
    calls: frozenset[str]
    at: int
    error: int | None
    lasting: bool = False


def disk_full(at: int) -> Fault:
    """Return a disk on which nothing more can be written; files can still be removed and renamed."""
    return Fault("ENOSPC", frozenset({"write", "create", "mkdir"}), at, errno.ENOSPC, lasting=True)


def file_too_large(at: int) -> Fault:
    """Return a disk that fails as under `ulimit -f` or a quota."""
    return Fault("EFBIG", frozenset({"write"}), at, errno.EFBIG, lasting=True)


def call_fails(kind: str, at: int) -> Fault:
    """Return a disk on which one call fails and later calls succeed."""
    return Fault(f"{kind} fails", frozenset({kind}), at, errno.EIO)


def disk_gone(at: int) -> Fault:
    """Return a disk that refuses every further call, so that it keeps what a killed process would leave."""
    return Fault("disk gone", ALL, at, errno.EIO, lasting=True)


def killed(at: int) -> Fault:
    """Return a fault that kills the process with SIGKILL."""
    return Fault("SIGKILL", ALL, at, None)


class Disk:
    """The disk of a process: it lets calls through or makes them fail.

    Args:
        listener: File descriptor that `hand_over_calls` sent.
        folder: Calls that write or sync an open file count only if the file is in this directory; other calls that
            change files always count.

    Attributes:
        counts: Number of calls of each kind since `expect`.
        hit: Whether the fault has happened since `expect`.
    """

    def __init__(self, listener: int, folder: Path) -> None:
        self.listener = listener
        self._folder = os.path.realpath(folder)
        self._calls = _calls()
        self.expect(None)

    def expect(self, fault: Fault | None) -> None:
        """Reset the counts and arm a fault."""
        self._fault = fault
        self._matching_calls = 0
        self.hit = False
        self.counts = dict.fromkeys(ALL, 0)

    def answer(self) -> None:
        """Answer one call of the process."""
        notification = bytearray(struct.calcsize(_NOTIFICATION))
        try:
            fcntl.ioctl(self.listener, _RECEIVE, notification)
        except OSError as error:
            if error.errno == errno.ENOENT:  # the process was killed in the meantime
                return
            raise
        call, process, _, number, _, _, *arguments = struct.unpack(_NOTIFICATION, notification)
        failure = self._decide(process, number, arguments)
        if failure is None:
            os.kill(process, signal.SIGKILL)
            return
        response = struct.pack(_RESPONSE, call, 0, -failure, 0 if failure else _CONTINUE)
        try:
            fcntl.ioctl(self.listener, _SEND, bytearray(response))
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise

    def _decide(self, process: int, number: int, arguments: list[int]) -> int | None:
        """Return the number of the error, 0 to let the call through, or None to kill the process."""
        kind = self._calls[number]
        if number in _FLAGS and kind == "create" and not arguments[_FLAGS[number]] & _CREATES:
            return 0
        if kind in ("write", "sync"):
            descriptor = arguments[2 if number == _COPY_FILE_RANGE[platform.machine()] else 0]
            try:
                path = os.readlink(f"/proc/{process}/fd/{descriptor & 0xFFFFFFFF}")
            except OSError:
                return 0
            if not path.startswith(self._folder):
                return 0
        self.counts[kind] += 1
        fault = self._fault
        if fault is None or kind not in fault.calls:
            return 0
        self._matching_calls += 1
        if self._matching_calls <= fault.at or (self.hit and not fault.lasting):
            return 0
        self.hit = True
        return fault.error
