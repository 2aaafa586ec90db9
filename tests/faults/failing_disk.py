"""A disk that fails when a test says so, for one process: the kernel asks the test about each call that changes files.

It is seccomp's user notification (Linux 5.5), which needs no rights and sees Python's calls as well as those of HDF5,
TensorFlow and all other libraries. A process calls `hand_over_calls`; the test receives the descriptor, and answers
through `Disk`.
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

# Of x86-64 and of ARM64: what the calls are to us, and their numbers.
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
_FLAGS = {2: 1, 257: 2, 56: 2}  # which argument of `open` and of `openat` says whether it makes a file
_COPY_FILE_RANGE = {"x86_64": 326, "aarch64": 285}  # its third argument is the file that it writes
_NOTIFICATION, _RESPONSE = "QIIiIQ6Q", "QqiI"
_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_RECV and _SEND
_CONTINUE = 1
_CREATES = os.O_CREAT | os.O_TMPFILE & ~os.O_DIRECTORY
ALL = frozenset({"write", "sync", "create", "mkdir", "rename", "remove"})


def _calls() -> dict[int, str]:
    numbers = _NUMBERS[platform.machine()]
    return {number: kind for kind, group in numbers.items() for number in group if kind != "seccomp"}


def hand_over_calls(to: socket.socket) -> None:
    """Lets the process at the other end of a socket decide about the calls of this one that change files.

    It lasts for as long as this process and those that it starts. To be called while there is one thread.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0):  # PR_SET_NO_NEW_PRIVS, without which only root may filter
        raise OSError(ctypes.get_errno(), "prctl")
    program = struct.pack("HBBI", 0x20, 0, 0, 0)  # the call's number
    for number in _calls():
        program += struct.pack("HBBI", 0x15, 0, 1, number) + struct.pack("HBBI", 0x06, 0, 0, 0x7FC00000)  # ask
    program += struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)  # allow
    held = ctypes.create_string_buffer(program, len(program))
    of_program = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(held))
    listener = libc.syscall(_NUMBERS[platform.machine()]["seccomp"][0], 1, 8, of_program)
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    socket.send_fds(to, [b"x"], [listener])
    os.close(listener)


@dataclass(frozen=True)
class Fault:
    """What goes wrong, and when.

    Attributes:
        name: for messages and counts.
        calls: which kinds of calls count.
        at: how many of them succeed first.
        error: the number of the error; None if the process is killed instead.
        lasting: whether all later ones fail, too.
    """

    name: str
    calls: frozenset[str]
    at: int
    error: int | None
    lasting: bool = False


def disk_full(at: int) -> Fault:
    """Nothing more can be written; files can still be removed and renamed."""
    return Fault("ENOSPC", frozenset({"write", "create", "mkdir"}), at, errno.ENOSPC, lasting=True)


def file_too_large(at: int) -> Fault:
    """As with `ulimit -f`, or over a quota."""
    return Fault("EFBIG", frozenset({"write"}), at, errno.EFBIG, lasting=True)


def call_fails(kind: str, at: int) -> Fault:
    """One call fails, and the next ones succeed."""
    return Fault(f"{kind} fails", frozenset({kind}), at, errno.EIO)


def disk_gone(at: int) -> Fault:
    """No more call gets through: what is on the disk is what a killed process would leave."""
    return Fault("disk gone", ALL, at, errno.EIO, lasting=True)


def killed(at: int) -> Fault:
    """SIGKILL."""
    return Fault("SIGKILL", ALL, at, None)


class Disk:
    """Decides about the calls of a process.

    Args:
        listener: the descriptor that `hand_over_calls` sent.
        folder: only calls on open files in it count, and all others that change files.

    Attributes:
        counts: how many calls of each kind there were since `expect`.
        hit: whether the fault has happened since then.
    """

    def __init__(self, listener: int, folder: Path) -> None:
        self.listener, self._folder, self._calls = listener, os.path.realpath(folder), _calls()
        self.expect(None)

    def expect(self, fault: Fault | None) -> None:
        """Begins to count; from now on, the fault is what goes wrong."""
        self._fault, self._seen, self.hit = fault, 0, False
        self.counts = dict.fromkeys(ALL, 0)

    def answer(self) -> None:
        """Answers one call."""
        asked = bytearray(struct.calcsize(_NOTIFICATION))
        try:
            fcntl.ioctl(self.listener, _RECEIVE, asked)
        except OSError as error:
            if error.errno == errno.ENOENT:  # it was killed in the meantime
                return
            raise
        call, process, _, number, _, _, *arguments = struct.unpack(_NOTIFICATION, asked)
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
        """The number of the error, 0 if the call goes on, None if the process is to be killed."""
        kind = self._calls[number]
        if number in _FLAGS and kind == "create" and not arguments[_FLAGS[number]] & _CREATES:
            return 0
        if kind in ("write", "sync"):
            descriptor = arguments[2 if number == _COPY_FILE_RANGE[platform.machine()] else 0]
            try:
                where = os.readlink(f"/proc/{process}/fd/{descriptor & 0xFFFFFFFF}")
            except OSError:
                return 0
            if not where.startswith(self._folder):
                return 0
        self.counts[kind] += 1
        fault = self._fault
        if fault is None or kind not in fault.calls:
            return 0
        self._seen += 1
        if self._seen <= fault.at or (self.hit and not fault.lasting):
            return 0
        self.hit = True
        return fault.error
