"""The commands that several processes run together: the one that starts them, and those that join each other."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import typer

from lmzoo.parallel.process_group import run_together
from lmzoo_cli.options import check_workers
from lmzoo_cli.output import announce_keras, say

_TIMEOUT = 300.0  # seconds until all processes must have met: hosts do not start equally fast


@contextlib.contextmanager
def joined(workers: int | None, address: str | None) -> Iterator[None]:
    """Runs this command in several processes; in each of those, they train one model together in the `with` block.

    It does nothing if there is only this one. A process is one of several if the environment says so, in the variables
    that `lmzoo.distribution.initialize` reads.

    Args:
        workers: the value of `--workers`.
        address: the value of `--ray`.

    Raises:
        typer.Exit: instead of the `with` block, when the processes that this one has started have ended.
        ValueError: on another backend than JAX.
        ProcessesError: if one of the others has ended.
    """
    check_workers(workers, address)
    if "KERAS_DISTRIBUTION_NUM_PROCESSES" in os.environ:
        announce_keras()
        import keras

        from lmzoo.distribution import initialize
        from lmzoo.parallel.processes import naming_lost_processes

        initialize(timeout=_TIMEOUT)
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        with naming_lost_processes():  # also while a model is built
            yield
        return
    if workers is not None:
        if os.environ.get("KERAS_BACKEND") != "jax":  # not asked of Keras, whose import takes seconds
            raise ValueError("Several workers train one model on the JAX backend: set KERAS_BACKEND=jax.")
        say(f"Starting {workers} worker{'s' * (workers > 1)} on Ray...")
        raise typer.Exit(run_together("lmzoo", sys.argv[1:], workers, address))
    yield
