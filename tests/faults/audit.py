"""An audit hook that records what reading a file must never do: run code or change files."""

from __future__ import annotations

import contextlib
import os
import site
import sys
import sysconfig
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NEVER = (
    "os.exec", "os.fork", "os.forkpty", "os.kill", "os.posix_spawn", "os.spawn", "os.startfile", "os.system",
    "subprocess.Popen", "pty.spawn", "webbrowser.open", "socket.bind", "socket.connect", "urllib.Request",
    "sqlite3.connect", "pickle.find_class", "ftplib.connect",
)  # fmt: skip
# Event -> index of the argument that names the changed path.
_CHANGES = {
    "os.mkdir": 0, "os.remove": 0, "os.rename": 1, "os.rmdir": 0, "os.link": 1, "os.symlink": 1, "os.truncate": 0,
    "os.chmod": 0, "os.chown": 0, "shutil.copyfile": 1, "shutil.move": 1, "shutil.rmtree": 0,
}  # fmt: skip
_INSTALLED = tuple(
    os.path.realpath(path)
    for path in (Path(__file__).parents[2], sys.prefix, sysconfig.get_path("stdlib"), *site.getsitepackages())
)
_events: list[str] | None = None
_recorded: list[str] = []


def _is_temporary(path: Any, folder: int = -1) -> bool:
    """Return whether a path is in the process's temporary directory, the only place where it may write."""
    if isinstance(path, int):
        return True
    base = f"/proc/self/fd/{folder}" if folder >= 0 else "."
    real = os.path.realpath(os.path.join(base, os.fsdecode(path)))
    return real.startswith(os.path.realpath(tempfile.gettempdir()) + os.sep)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _events is None:
        return
    if event in _NEVER:
        _events.append(f"{event}{arguments!r:.200}")
    elif event in _CHANGES:
        folder = arguments[-1] if event.startswith("os.") and event != "os.truncate" else -1
        if not _is_temporary(arguments[_CHANGES[event]], folder):
            _events.append(f"{event}{arguments!r:.200}")
    elif event == "open":
        path, mode, flags = arguments
        writes = set(mode or "") & set("wax+") or (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR))
        if writes and path is not None and not _is_temporary(path) and os.fsdecode(path) != os.devnull:
            _events.append(f"open{arguments!r:.200}")
    elif event == "exec" and isinstance(arguments[0], types.CodeType):
        name = arguments[0].co_filename
        if not name.startswith("<") and not os.path.realpath(name).startswith(_INSTALLED):
            _events.append(f"exec{arguments!r:.200}")


sys.addaudithook(_hook)


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Record forbidden actions while the block runs."""
    global _events
    _events = []
    try:
        yield
    finally:
        _recorded.extend(_events)
        _events = None


def take_events() -> list[str]:
    """Return the events recorded since the last call."""
    events = list(_recorded)
    _recorded.clear()
    return events
