"""An audit hook that notes what reading a file must never cause: code that runs, and files that change."""

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
    "sqlite3.connect", "pickle.find_class", "ctypes.dlsym", "code.__new__", "function.__new__", "ftplib.connect",
)  # fmt: skip
_CHANGES = (
    "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown",
    "shutil.copyfile", "shutil.move", "shutil.rmtree",
)  # fmt: skip
_INSTALLED = tuple(
    os.path.realpath(path)
    for path in (Path(__file__).parents[2], sys.prefix, sysconfig.get_path("stdlib"), *site.getsitepackages())
)
_events: list[str] | None = None
_found: list[str] = []


def _is_temporary(path: Any) -> bool:
    """Whether a path is where the process may write: its own temporary directory."""
    return isinstance(path, int) or os.path.realpath(os.fsdecode(path)).startswith(
        os.path.realpath(tempfile.gettempdir()) + os.sep
    )


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _events is None:
        return
    if event in _NEVER:
        _events.append(f"{event}{arguments!r:.200}")
    elif event in _CHANGES:
        if not _is_temporary(arguments[-1 if event in ("os.rename", "os.link", "shutil.move") else 0]):
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
def watching() -> Iterator[None]:
    """Notes what happens in the body of a `with` block."""
    global _events
    _events = []
    try:
        yield
    finally:
        _found.extend(_events)
        _events = None


def seen() -> list[str]:
    """What was noted since the last call."""
    events, _found[:] = list(_found), []
    return events
