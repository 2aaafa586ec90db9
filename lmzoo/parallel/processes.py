"""Communication between the processes that train one model with JAX."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import keras
import numpy as np

from lmzoo.errors import ProcessesError

_MAX_DIFFERENCES = 3  # in a message
_MAX_CHARACTERS = 60  # of each value in a message
# Errors of the communication libraries, on CPUs and on GPUs of NVIDIA and AMD, when another process has ended.
_LOST_PROCESS_ERROR = re.compile(
    "gloo|nccl|rccl|coordination service|connection reset|connection closed", re.IGNORECASE
)


def has_several_processes() -> bool:
    """Return whether the current `keras.distribution` has devices in several processes."""
    distribution = keras.distribution.distribution()
    return distribution is not None and distribution.num_processes > 1


def process_index() -> int:
    """Return the index of this process, or 0 if there is only one process.

    Process 0 is the one that writes files.
    """
    if not has_several_processes():
        return 0
    import jax

    return jax.process_index()


def all_gather(values: Any) -> np.ndarray:
    """Gather an array from each process.

    All processes must call this together.

    Args:
        values: number or array of the same shape in all processes.

    Returns:
        The values of all processes in one array, along a new first axis, in the order of the process indices.
    """
    if not has_several_processes():
        return np.asarray(values)[None]
    return all_gather_on_jax(values)


def all_gather_on_jax(values: Any) -> np.ndarray:
    """Gather an array from each process, even before a `keras.distribution` is set.

    Args:
        values: number or array of the same shape in all processes.

    Returns:
        The values of all processes in one array, along a new first axis, in the order of the process indices.
    """
    from jax.experimental import multihost_utils

    with convert_lost_process_errors():
        return np.asarray(multihost_utils.process_allgather(np.asarray(values)))


@contextlib.contextmanager
def convert_lost_process_errors() -> Iterator[None]:
    """Convert errors of JAX in the block to a `ProcessesError` if another process has ended.

    After a `SystemExit` in the block, one of several processes ends without JAX's exit handler. The handler would wait
    for the other processes, which wait for this one.

    Raises:
        ProcessesError: If an error was caused by the end of another process.
    """
    try:
        yield
    except SystemExit as exit_error:
        if has_several_processes():
            atexit.register(end_at_once, exit_error.code)
        raise
    except (RuntimeError, ValueError) as error:
        if lost_error := explain_lost_process(error):
            raise lost_error from error
        raise


def explain_lost_process(error: BaseException) -> ProcessesError | None:
    """Return a `ProcessesError` if an error of JAX was caused by the end of another process, else None."""
    is_converted = isinstance(error, ProcessesError)
    may_be_from_jax = isinstance(error, (RuntimeError, ValueError))  # reading a result can raise a ValueError
    if is_converted or not may_be_from_jax or not _LOST_PROCESS_ERROR.search(str(error)):
        return None
    import jax

    return ProcessesError(
        f"Process {jax.process_index()} ends, because another process of the run has ended or cannot be reached. Start "
        "all processes again: a run with saved states continues from the last one."
    )


def end_at_once(status: object) -> NoReturn:
    """End this process with an exit status, skipping exit handlers: JAX's handler waits for other processes."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))


def check_same(**facts: Any) -> None:
    """Check that all processes pass the same values.

    Args:
        **facts: values to compare, by name; values that are not JSON are compared as strings.

    Raises:
        ProcessesError: If a process has other values than process 0. All processes raise the error, whose message names
            the process and shows the values.
    """
    if has_several_processes():
        compare_by_jax(facts)


def compare_by_jax(facts: Mapping[str, Any]) -> None:
    """Check that all processes pass the same values, even before a `keras.distribution` is set.

    Args:
        facts: values to compare, by name; values that are not JSON are compared as strings.

    Raises:
        ProcessesError: If a process has other values than process 0. All processes raise the error, whose message names
            the process and shows the values.
    """
    json_bytes = np.frombuffer(json.dumps(facts, default=str).encode(), "uint8")
    max_length = all_gather_on_jax(np.int32(len(json_bytes))).max()
    encoded_facts = all_gather_on_jax(
        np.pad(json_bytes, (0, max_length - len(json_bytes)), constant_values=ord(" "))
    )  # (processes, max_length)
    main_facts, *other_facts = [json.loads(array.astype("uint8").tobytes()) for array in encoded_facts]
    for index, process_facts in enumerate(other_facts, 1):
        differences = [
            f"{name} ({process_facts.get(name)!s:.{_MAX_CHARACTERS}}, not {main_facts.get(name)!s:.{_MAX_CHARACTERS}})"
            for name in {**main_facts, **process_facts}
            if main_facts.get(name) != process_facts.get(name)
        ]
        if differences:
            more_note = (
                f" and {len(differences) - _MAX_DIFFERENCES} more" if len(differences) > _MAX_DIFFERENCES else ""
            )
            raise ProcessesError(
                f"Process {index} differs from process 0 in {', '.join(differences[:_MAX_DIFFERENCES])}{more_note}. "
                "All processes of a run need the same."
            )


@contextlib.contextmanager
def main_process_first() -> Iterator[None]:
    """Run the block in process 0 first, then in the other processes, which can use files that process 0 wrote.

    Raises:
        ProcessesError: If process 0 failed; raised in the other processes.
    """
    is_main = process_index() == 0
    if not is_main and all_gather(0).any():
        raise ProcessesError("Process 0 failed. See its error message.")
    try:
        yield
    except BaseException:
        if is_main:
            all_gather(1)
        raise
    if is_main:
        all_gather(0)


@contextlib.contextmanager
def without_distribution() -> Iterator[None]:
    """Compute in this process only, without waiting for other processes."""
    if not has_several_processes():
        yield
        return
    distribution = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(distribution)
