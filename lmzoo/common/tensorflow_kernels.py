"""Turns on oneDNN's kernels where TensorFlow leaves them off. Imported before anything that may import TensorFlow.

By itself, TensorFlow uses them on x86 processors with AVX-512's instructions for neural networks. On those with AVX2
alone, too, models train faster with them; `benchmarks/README.md` has figures. TF_ENABLE_ONEDNN_OPTS decides, as it
does in TensorFlow: with 0 they are off.
"""

from __future__ import annotations

import os
import platform
import sys

_VARIABLE = "TF_ENABLE_ONEDNN_OPTS"


def leave_to_tensorflow() -> None:
    """Undoes it, before TensorFlow is imported: with AVX2 alone, short requests are answered faster without."""
    if _chosen and "tensorflow" not in sys.modules:
        os.environ.pop(_VARIABLE, None)


_chosen = _VARIABLE not in os.environ and "tensorflow" not in sys.modules and platform.machine() in ("x86_64", "AMD64")
if _chosen:
    os.environ[_VARIABLE] = "1"
