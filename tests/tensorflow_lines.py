"""A filter for TensorFlow's log lines on standard error, some of which appear whatever TF_CPP_MIN_LOG_LEVEL says."""

from __future__ import annotations

import re

_LINE = re.compile(
    r"[IWEF]\d{4} [\d:.]+ +\d+ \S+:\d+\] "  # a severity and a date, a thread, a place in the sources
    r"|WARNING: All log messages before absl::InitializeLog\(\) is called"
    r"|To enable the following instructions: "  # the second line of a message
)


def without_tensorflow_lines(text: str) -> str:
    """Remove TensorFlow's log lines from a text."""
    return "".join(line for line in text.splitlines(keepends=True) if not _LINE.match(line))
