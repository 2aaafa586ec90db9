"""Multi-process runs of a command: starting worker processes, or joining them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import keras
import typer

from lmzoo.parallel import initialize
from lmzoo.parallel.process_group import run_together
from lmzoo.parallel.processes import convert_lost_process_errors, process_index
from lmzoo_cli.options import TrainingWorkerOptions
from lmzoo_cli.output import say

_JOIN_TIMEOUT_SECONDS = 300.0  # hosts may start at different times


@contextlib.contextmanager
def train_together(scale: TrainingWorkerOptions) -> Iterator[None]:
    """Start workers that run this command; in a worker, connect to the other workers and run the block.

    The workers train one model together. Without workers, only the block runs. A process is a worker if the
    environment variables that `lmzoo.parallel.initialize` reads are set.

    Args:
        scale: number of workers, and the cluster that runs them.

    Raises:
        typer.Exit: In the process that started workers, after they have ended, instead of running the block.
        ValueError: If workers are requested on a backend other than JAX.
        ProcessesError: If another worker has ended.
    """
    if "KERAS_DISTRIBUTION_NUM_PROCESSES" in os.environ:
        initialize(timeout=_JOIN_TIMEOUT_SECONDS)
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        with (
            convert_lost_process_errors(),
            _print_in_main_process(),
        ):  # processes may also be lost while a model is built
            yield
        return
    if scale.workers is not None:
        if keras.backend.backend() != "jax":
            raise ValueError("Several workers train one model on the JAX backend: set KERAS_BACKEND=jax.")
        say(f"Starting {scale.workers} worker{'s' * (scale.workers > 1)} on Ray...")
        raise typer.Exit(run_together("lmzoo_cli", sys.argv[1:], scale.workers, scale.ray, scale.min_workers))
    yield


@contextlib.contextmanager
def _print_in_main_process() -> Iterator[None]:
    """Discard the output of the block in all but process 0, since launchers show the output of every process."""
    if process_index() == 0:
        yield
        return
    with Path(os.devnull).open("w") as null_file, redirect_stdout(null_file), redirect_stderr(null_file):
        yield
