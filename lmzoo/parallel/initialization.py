"""Several processes that train one model, brought together."""

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
from lmzoo.parallel.processes import compare_by_jax, end_at_once, gathered_by_jax, lost_process
from lmzoo.version import __version__

_FOREVER = 10**6  # seconds
_HEARTBEAT = 30  # seconds without a sign of life after which a process counts as dead


def initialize(
    job_addresses: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    timeout: float = 60,
) -> None:
    """Connect the processes of a run, as `keras.distribution.initialize` does, and check that they match.

    Call it in every process before anything is computed. The devices of `keras.distribution.list_devices()` are then
    those of all processes. In addition to Keras' function, it gives up when the others cannot be reached, notices
    within a minute when one of them dies, and compares their versions of lmzoo, Keras, JAX and numpy.

    Without arguments, it reads what Keras reads: the environment variables `KERAS_DISTRIBUTION_JOB_ADDRESSES`,
    `KERAS_DISTRIBUTION_NUM_PROCESSES` and `KERAS_DISTRIBUTION_PROCESS_ID`; what they do not say, JAX learns from Slurm,
    Open MPI, or a TPU.

    Args:
        job_addresses: address and port of process 0, such as "10.0.0.1:1234".
        num_processes: int, number of processes.
        process_id: int, number of this process, from 0.
        timeout: float, seconds to wait for the other processes.

    Raises:
        ProcessesError: if the others were not there in time, or have other versions.
        ValueError: on another backend than JAX; for numbers that are too small or too large.

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
    count = _number_in_environment("NUM_PROCESSES") if num_processes is None else num_processes
    index = _number_in_environment("PROCESS_ID") if process_id is None else process_id
    last = math.inf if count is None else count - 1
    require(count is None or is_integer(count, 1), "num_processes", "an integer of at least 1", count)
    require(index is None or is_integer(index, 0, last), "process_id", f"an integer from 0 to {last}", index)
    require(is_number(timeout) and timeout > 0, "timeout", "a number of seconds above 0", timeout)
    _end_at_once_after_errors()
    failures: list[Exception] = []

    def start() -> None:
        try:
            jax.distributed.initialize(
                address, count, index, initialization_timeout=_FOREVER, heartbeat_timeout_seconds=_HEARTBEAT
            )
        except Exception as error:
            failures.append(error)

    # JAX would end the process with a dump of C++ functions when its own time is up, and no line of Python could run.
    starting = threading.Thread(target=start, daemon=True)
    starting.start()
    starting.join(timeout)
    if starting.is_alive():
        raise ProcessesError(
            f"Process {index} has waited {timeout:g} seconds for {count} processes to meet at {address}. Start all of "
            "them, check that this is the address of process 0 and that it can be reached from here, or pass a longer "
            "`timeout`."
        )
    if failures:
        raise failures[0]
    if threading.current_thread() is threading.main_thread():
        # JAX catches SIGTERM to tell the others, and the process would go on. `ResumableCheckpoint` tells them, too.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)
    versions = {"lmzoo": __version__, "Keras": keras.__version__, "JAX": jax.__version__, "numpy": np.__version__}
    compare_by_jax({f"version of {name}": version for name, version in versions.items()})
    # Other processes would draw other weights.
    keras.utils.set_random_seed(int(gathered_by_jax(np.random.randint(2**31, dtype="int64"))[0]))


def _number_in_environment(name: str) -> int | None:
    value = os.environ.get(f"KERAS_DISTRIBUTION_{name}")
    try:
        return None if value is None else int(value)
    except ValueError:
        raise ValueError(f"KERAS_DISTRIBUTION_{name} must be an integer, got {value!r}.") from None


def _end_at_once_after_errors() -> None:
    """Let an error that nobody catches, or `sys.exit` with one, end this process, so that others notice.

    JAX would wait for them first, for minutes, while they wait for this one.
    """
    show, leave = sys.excepthook, sys.exit
    last: list[str | int | None] = []  # the status of the last `sys.exit`, which is not told to what runs at exit

    def end_by_error(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        error = lost_process(error) or error
        if isinstance(error, ProcessesError):
            print(error, file=sys.stderr)
            end_at_once(os.EX_TEMPFAIL)
        show(kind, error, traceback)
        end_at_once(1)

    def note(status: str | int | None = None, /) -> NoReturn:
        last[:] = [status]
        leave(status)

    def end_by_status() -> None:
        for status in last:
            if status not in (None, 0):
                end_at_once(status)

    sys.excepthook, sys.exit = end_by_error, note
    atexit.register(end_by_status)  # called before what JAX has registered
