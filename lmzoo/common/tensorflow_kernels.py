"""Setting for oneDNN's kernels, which TensorFlow leaves off on x86 processors without AVX-512 VNNI.

With these kernels, models also train faster on processors that have only AVX2; `benchmarks/README.md` has figures.
TensorFlow reads TF_ENABLE_ONEDNN_OPTS when it is imported: 1 turns the kernels on, 0 off.
"""

from __future__ import annotations

import functools
import logging
import os
import platform
import sys
from pathlib import Path

_VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
_IMPORTED_AFTER_TENSORFLOW = "tensorflow" in sys.modules  # this module is imported by `import lmzoo`
_PROCESSOR = Path("/proc/cpuinfo")


def turn_on_onednn() -> None:
    """Turn on oneDNN's kernels on x86 if the environment variable is not set and TensorFlow is not imported yet."""
    if not _IMPORTED_AFTER_TENSORFLOW and _is_x86():
        os.environ.setdefault(_VARIABLE, "1")


@functools.cache
def warn_if_onednn_is_off() -> None:
    """Warn once if TensorFlow trains without oneDNN's kernels because it was imported before lmzoo."""
    if _IMPORTED_AFTER_TENSORFLOW and _VARIABLE not in os.environ and _is_x86() and not _has_vnni():
        logging.getLogger(__name__).warning(
            "Training is slower without oneDNN's kernels: import lmzoo before tensorflow, or set %s=1.", _VARIABLE
        )


def _is_x86() -> bool:
    """Return whether the processor is a 64-bit x86."""
    return platform.machine() in ("x86_64", "AMD64")


def _has_vnni() -> bool:
    """Return whether /proc/cpuinfo lists VNNI instructions, with which TensorFlow uses the kernels by default."""
    return _PROCESSOR.exists() and "_vnni" in _PROCESSOR.read_text("utf-8")
