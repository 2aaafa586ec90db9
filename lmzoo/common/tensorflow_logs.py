"""Keeps TensorFlow's log lines off the screen. Imported before anything that may import TensorFlow.

The variable TF_CPP_MIN_LOG_LEVEL decides, as it does in TensorFlow: 0 shows all lines, 1 leaves out information, 2 also
warnings, 3 also errors. If it is not set, lmzoo sets it to 3, which child processes inherit. Python exceptions are not
log lines.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_VARIABLE = "TF_CPP_MIN_LOG_LEVEL"
_SEVERITIES = b"IWE"  # information, warning, error: how lines begin, each with a date
_HEADER = b"WARNING: All log messages before absl::InitializeLog() is called"


class _QuietImport(MetaPathFinder):
    """Finds TensorFlow, and loads it without log lines.

    Its libraries write some as soon as they are loaded, before they read the variable.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if fullname != "tensorflow":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_quietly(module: ModuleType) -> None:
                with _standard_error_without_log_lines():
                    load(module)

            spec.loader.exec_module = load_quietly  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def _standard_error_without_log_lines() -> Iterator[None]:
    """Holds back what C++ and Python write to standard error in a `with` block, and then writes the rest of it."""
    try:
        descriptor = os.dup(2)
    except OSError:  # closed, as for some daemons
        yield
        return
    with tempfile.TemporaryFile() as held, contextlib.ExitStack() as after:
        after.callback(os.close, descriptor)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            if sys.stderr is not None:
                sys.stderr.flush()
            os.dup2(descriptor, 2)
            held.seek(0)
            with os.fdopen(os.dup(2), "wb") as shown:
                shown.write(_without_log_lines(held.read(), os.environ.get(_VARIABLE, "")))


def _without_log_lines(text: bytes, level: str) -> bytes:
    """Leaves out the lines of a log that a level hides."""
    hidden = _SEVERITIES[: int(level)] if level.isdecimal() else b""
    if not hidden:
        return text
    begin = re.compile(rb"[%b]\d{4} [\d:.]+ +\d+ \S+:\d+\] " % hidden)
    # Only the first line of a message has a date: this one is the second of its message.
    second = b"To enable the following instructions: "
    return b"".join(
        line for line in text.splitlines(keepends=True) if not (begin.match(line) or line.startswith((_HEADER, second)))
    )


@contextlib.contextmanager
def without_log_lines(*parts: str) -> Iterator[None]:
    """In a `with` block, leaves out lines of TensorFlow's Python logger that contain one of some texts."""

    def keep(record: logging.LogRecord) -> bool:
        return not any(part in str(record.msg) for part in parts)

    logger = logging.getLogger("tensorflow")
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


if os.environ.setdefault(_VARIABLE, "3") != "0" and "tensorflow" not in sys.modules:
    sys.meta_path.insert(0, _QuietImport())
