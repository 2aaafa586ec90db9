"""Processes with several virtual devices, which a process has from its start or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import keras

# On a busy machine the devices, which are threads, may wait for each other for more than XLA's 40 seconds.
PATIENT = "--xla_cpu_collective_call_terminate_timeout_seconds=1200"


def assert_equal_on_devices(root: Path, count: int, module: str, *arguments: str) -> None:
    """Runs a module, which prints "equal" at the end if several devices compute what one computes."""
    # Programs that such devices have compiled cannot be read again: see `lmzoo.use_compilation_cache`.
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={count} {PATIENT}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, *arguments],
        cwd=root,
        env={**environment, "KERAS_BACKEND": keras.backend.backend(), "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["equal"], done.stderr[-3000:]
