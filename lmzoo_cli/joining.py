"""Commands that several processes run together: the one that starts them, and those that join each other."""

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
from lmzoo.parallel.processes import naming_lost_processes, process_index
from lmzoo_cli.options import TrainingWorkerOptions
from lmzoo_cli.output import say

_JOINING_SECONDS = 300.0  # until all processes must have met: hosts do not start equally fast


@contextlib.contextmanager
def train_together(scale: TrainingWorkerOptions) -> Iterator[None]:
    """Start workers that run this command, or join the other workers and train one model with them in the block.

    Without workers it does nothing. A process is one of several workers if the environment says so, in the variables
    that `lmzoo.parallel.initialize` reads.

    Args:
        scale: number of workers, and the cluster that runs them.

    Raises:
        typer.Exit: instead of the block, when the processes that this one has started have ended.
        ValueError: on another backend than JAX.
        ProcessesError: if one of the other workers has ended.
    """
    if "KERAS_DISTRIBUTION_NUM_PROCESSES" in os.environ:
        initialize(timeout=_JOINING_SECONDS)
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        with naming_lost_processes(), _first_prints():  # also while a model is built
            yield
        return
    if scale.workers is not None:
        if keras.backend.backend() != "jax":
            raise ValueError("Several workers train one model on the JAX backend: set KERAS_BACKEND=jax.")
        say(f"Starting {scale.workers} worker{'s' * (scale.workers > 1)} on Ray...")
        raise typer.Exit(run_together("lmzoo_cli", sys.argv[1:], scale.workers, scale.ray, scale.min_workers))
    yield


@contextlib.contextmanager
def _first_prints() -> Iterator[None]:
    """Let only process 0 print in a `with` block: launchers show what all of them write."""
    if process_index() == 0:
        yield
        return
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield
