"""The program of a process group in tests: `python -m` this module, with an action and a directory."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

INDEX, COUNT = (int(os.environ[f"KERAS_DISTRIBUTION_{name}"]) for name in ("PROCESS_ID", "NUM_PROCESSES"))
action, directory = sys.argv[1], Path(sys.argv[2])
own_file = directory / f"{action} {INDEX}"
is_to_die = action == "die always" or (action in ("die once", "be lost once") and not own_file.exists())
if is_to_die:  # written before the others can see that this process has begun, since one of them ends it
    (directory / f"process {INDEX}").write_text(str(os.getpid()))
with own_file.open("a") as file:
    file.write("begun\n")


def wait_for_others() -> None:
    """Wait until all processes have begun as often as this one."""
    starts = own_file.read_text()
    files = [directory / f"{action} {index}" for index in range(COUNT)]
    while any(not file.exists() or file.read_text() != starts for file in files):
        time.sleep(0.01)


if action != "outlive others":  # in this action, one process begins twice
    wait_for_others()
if action == "finish":
    are_terminals = [file.isatty() for file in (sys.stdout, sys.stderr)]
    print(f"{INDEX} of {COUNT} meet at {os.environ['KERAS_DISTRIBUTION_JOB_ADDRESSES']}")
    os.write(1, b"[Gloo] Rank 0 is connected\n")  # JAX's network writes this in C++
    print(f"terminals: {are_terminals}")
    (directory / f"GPU {INDEX}").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "none"))
    print(f"{INDEX} says", file=sys.stderr)
if is_to_die:
    if INDEX == 1:
        os.kill(os.getppid() if action == "be lost once" else os.getpid(), signal.SIGKILL)
    time.sleep(600)  # until the supervisor ends
if action == "outlive others":
    if COUNT > 1:
        time.sleep(600)
    print(f"{INDEX} of {COUNT} is left")
if action == "fail":
    print("0 ends because of another" if INDEX == 0 else "1 has failed", file=sys.stderr)
    sys.exit(os.EX_TEMPFAIL if INDEX == 0 else 3)
if action == "fail together":
    print("all say", file=sys.stderr)
    sys.exit(3)
if action == "be stopped":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(100 + INDEX))
    (directory / f"waiting {INDEX}").write_text(str(os.getpid()))
    time.sleep(600)
