"""A helper that runs a module in a process with several virtual devices, whose number is fixed at its start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import keras

# On a busy machine the devices, which are threads, may wait for each other for more than XLA's 40 seconds.
COLLECTIVE_TIMEOUT = "--xla_cpu_collective_call_terminate_timeout_seconds=1200"


def assert_equal_on_devices(root: Path, count: int, module: str, *arguments: str) -> None:
    """Check that a module prints "equal" last: several devices compute the same as one."""
    # Programs compiled for virtual devices cannot be read from the cache: see `lmzoo.use_compilation_cache`.
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={count} {COLLECTIVE_TIMEOUT}"
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, *arguments],
        cwd=root,
        env={**environment, "KERAS_BACKEND": keras.backend.backend(), "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert process.stdout.splitlines()[-1:] == ["equal"], process.stderr[-3000:]
