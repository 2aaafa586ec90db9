"""Several processes that train one model with JAX: which one this is, and what all of them agree on."""

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

_LISTED, _SHOWN = 3, 60  # differences, and characters of each, in a message
# What the libraries say by which processes compute together, on CPUs and on GPUs of NVIDIA and AMD.
_LOST = re.compile("gloo|nccl|rccl|coordination service|connection reset|connection closed", re.IGNORECASE)


def several_processes() -> bool:
    """Return whether the current `keras.distribution` has devices in several processes."""
    distribution = keras.distribution.distribution()
    return distribution is not None and distribution.num_processes > 1


def process_index() -> int:
    """Return the number of this process; 0 if it is the only one, or the one that writes files."""
    if not several_processes():
        return 0
    import jax

    return jax.process_index()


def gathered(values: Any) -> np.ndarray:
    """Return the numbers of all processes, which call this together: (P, ...) from arrays of one shape (...)."""
    if not several_processes():
        return np.asarray(values)[None]
    return gathered_by_jax(values)


def gathered_by_jax(values: Any) -> np.ndarray:
    """See `gathered`; also before a `keras.distribution` is set."""
    from jax.experimental import multihost_utils

    with naming_lost_processes():
        return np.asarray(multihost_utils.process_allgather(np.asarray(values)))


@contextlib.contextmanager
def naming_lost_processes() -> Iterator[None]:
    """Turn what JAX says in the body of a `with` block when another process has ended into a `ProcessesError`.

    After a `SystemExit`, the end of this process does not wait for the others, which wait for it.
    """
    try:
        yield
    except SystemExit as leaving:
        if several_processes():
            atexit.register(end_at_once, leaving.code)
        raise
    except (RuntimeError, ValueError) as error:
        if lost := lost_process(error):
            raise lost from error
        raise


def lost_process(error: BaseException) -> ProcessesError | None:
    """Return what to say instead of an error of JAX's; None if it does not come from the end of another process."""
    ours, by_jax = isinstance(error, ProcessesError), isinstance(error, (RuntimeError, ValueError))
    if ours or not by_jax or not _LOST.search(str(error)):  # it is a ValueError where a result is read
        return None
    import jax

    return ProcessesError(
        f"Process {jax.process_index()} ends, because another process of the run has ended or cannot be reached. Start "
        "all processes again: a run with saved states continues from the last one."
    )


def end_at_once(status: object) -> NoReturn:
    """End this process as `sys.exit` does, but without what Python does at exit: JAX would wait for the others."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))


def check_same(**facts: Any) -> None:
    """Check that some facts, which JSON can hold, are those of all other processes, if there are any.

    Raises:
        ProcessesError: in all processes, naming the first one that differs from process 0, and the difference.
    """
    if several_processes():
        compare_by_jax(facts)


def compare_by_jax(facts: Mapping[str, Any]) -> None:
    """See `check_same`; also before a `keras.distribution` is set."""
    text = np.frombuffer(json.dumps(facts, default=str).encode(), "uint8")
    longest = gathered_by_jax(np.int32(len(text))).max()
    all_texts = gathered_by_jax(np.pad(text, (0, longest - len(text)), constant_values=ord(" ")))  # (P, longest)
    first, *others = [json.loads(row.astype("uint8").tobytes()) for row in all_texts]
    for index, other in enumerate(others, 1):
        differences = [
            f"{name} ({other.get(name)!s:.{_SHOWN}}, not {first.get(name)!s:.{_SHOWN}})"
            for name in {**first, **other}
            if first.get(name) != other.get(name)
        ]
        if differences:
            more = f" and {len(differences) - _LISTED} more" if len(differences) > _LISTED else ""
            raise ProcessesError(
                f"Process {index} differs from process 0 in {', '.join(differences[:_LISTED])}{more}. All processes of "
                "a run need the same."
            )


@contextlib.contextmanager
def first_process_first() -> Iterator[None]:
    """Let process 0 finish the body of a `with` block before the others begin it, which find what it has written.

    Raises:
        ProcessesError: in the others, if process 0 has failed.
    """
    first = process_index() == 0
    if not first and gathered(0).any():
        raise ProcessesError("Process 0 has failed, and says why.")
    try:
        yield
    except BaseException:
        if first:
            gathered(1)
        raise
    if first:
        gathered(0)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """In a `with` block, what this one of several processes computes does not wait for the others to do the same."""
    if not several_processes():
        yield
        return
    distribution = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(distribution)
