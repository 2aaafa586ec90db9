"""Connection of the processes that train one model."""

from __future__ import annotations

import atexit
import math
import os
import signal
import sys
import threading
from types import TracebackType
from typing import NoReturn

import keras
import numpy as np

from lmzoo.common.arguments import is_integer, is_number, require
from lmzoo.errors import ProcessesError
from lmzoo.parallel.processes import all_gather_on_jax, compare_by_jax, end_at_once, explain_lost_process
from lmzoo.version import __version__

_NO_TIMEOUT = 10**6  # seconds
_HEARTBEAT_SECONDS = 30  # a process without a heartbeat for this long counts as dead


def initialize(
    job_addresses: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    timeout: float = 60,
) -> None:
    """Connect the processes of a run, and check that their library versions match.

    Call this in every process before any computation. `keras.distribution.list_devices()` then lists the devices of all
    processes. Unlike `keras.distribution.initialize`, this function stops waiting for unreachable processes, detects a
    dead process within a minute, and compares the versions of lmzoo, Keras, JAX and numpy. It also gives all processes
    the same random seed, and makes each process end at once after an uncaught error.

    Arguments that are None are read from the environment variables `KERAS_DISTRIBUTION_JOB_ADDRESSES`,
    `KERAS_DISTRIBUTION_NUM_PROCESSES` and `KERAS_DISTRIBUTION_PROCESS_ID`, as in Keras; if a variable is not set, JAX
    asks Slurm, Open MPI or the TPU.

    Args:
        job_addresses: str, address and port of process 0, such as "10.0.0.1:1234".
        num_processes: int, number of processes.
        process_id: int, index of this process, counted from 0.
        timeout: float, number of seconds to wait for the other processes.

    Raises:
        ProcessesError: If another process does not connect within `timeout`, or has other versions.
        ValueError: If the backend is not JAX, or an argument is out of range.

    Example:

    ```{.python .notest}
    import keras
    from lmzoo.parallel import initialize

    initialize("10.0.0.1:1234", num_processes=2, process_id=0)  # and process_id=1 on the other machine
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    ```
    """
    if keras.backend.backend() != "jax":
        raise ValueError(
            f"Several processes can train one model on the JAX backend, this is {keras.backend.backend()}: set "
            "KERAS_BACKEND=jax."
        )
    import jax

    addresses = job_addresses or os.environ.get("KERAS_DISTRIBUTION_JOB_ADDRESSES")
    address = addresses and addresses.split(",")[0]
    count = _read_environment("NUM_PROCESSES") if num_processes is None else num_processes
    index = _read_environment("PROCESS_ID") if process_id is None else process_id
    max_index = math.inf if count is None else count - 1
    require(count is None or is_integer(count, 1), "num_processes", "an integer of at least 1", count)
    require(index is None or is_integer(index, 0, max_index), "process_id", f"an integer from 0 to {max_index}", index)
    require(is_number(timeout) and timeout > 0, "timeout", "a number of seconds above 0", timeout)
    _end_at_once_after_errors()
    failures: list[Exception] = []

    def connect() -> None:
        try:
            jax.distributed.initialize(
                address, count, index, initialization_timeout=_NO_TIMEOUT, heartbeat_timeout_seconds=_HEARTBEAT_SECONDS
            )
        except Exception as error:
            failures.append(error)

    # In a thread with a timeout of ours, since at JAX's timeout, the process would crash in C++ without a Python error.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        raise ProcessesError(
            f"Process {index} has waited {timeout:g} seconds for {count} processes to meet at {address}. Start all of "
            "them, check that this is the address of process 0 and that it can be reached from here, or pass a longer "
            "`timeout`."
        )
    if failures:
        raise failures[0]
    if threading.current_thread() is threading.main_thread():
        # JAX would catch SIGTERM and let the process continue; `ResumableCheckpoint` also informs the other processes.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)
    versions = {"lmzoo": __version__, "Keras": keras.__version__, "JAX": jax.__version__, "numpy": np.__version__}
    compare_by_jax({f"version of {name}": version for name, version in versions.items()})
    # All processes must draw the same random weights.
    keras.utils.set_random_seed(int(all_gather_on_jax(np.random.randint(2**31, dtype="int64"))[0]))


def _read_environment(name: str) -> int | None:
    """Return the integer in the environment variable `KERAS_DISTRIBUTION_<name>`, or None if it is not set.

    Raises:
        ValueError: If the variable does not hold an integer.
    """
    text = os.environ.get(f"KERAS_DISTRIBUTION_{name}")
    try:
        return None if text is None else int(text)
    except ValueError:
        raise ValueError(f"KERAS_DISTRIBUTION_{name} must be an integer, got {text!r}.") from None


def _end_at_once_after_errors() -> None:
    """Make this process end at once after an uncaught error, or after `sys.exit` with an error status.

    Otherwise JAX would wait at exit for minutes for the other processes, which wait for this process.
    """
    show_error = sys.excepthook
    original_exit = sys.exit
    last_status: list[str | int | None] = []  # from `sys.exit`, since exit handlers do not receive it

    def end_by_error(error_type: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        error = explain_lost_process(error) or error
        if isinstance(error, ProcessesError):
            print(error, file=sys.stderr)
            end_at_once(os.EX_TEMPFAIL)
        show_error(error_type, error, traceback)
        end_at_once(1)

    def exit_with_code(status: str | int | None = None, /) -> NoReturn:
        last_status[:] = [status]
        original_exit(status)

    def end_by_status() -> None:
        for status in last_status:
            if status not in (None, 0):
                end_at_once(status)

    sys.excepthook = end_by_error
    sys.exit = exit_with_code
    atexit.register(end_by_status)  # runs before JAX's own exit handlers, which were registered earlier
