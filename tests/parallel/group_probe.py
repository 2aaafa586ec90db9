"""The program of a process group in tests: `python -m` this module, with what to do and a folder."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

INDEX, COUNT = (int(os.environ[f"KERAS_DISTRIBUTION_{name}"]) for name in ("PROCESS_ID", "NUM_PROCESSES"))
what, folder = sys.argv[1], Path(sys.argv[2])
mine = folder / f"{what} {INDEX}"
with mine.open("a") as file:
    file.write("begun\n")


def wait_for_others() -> None:
    """Until all have begun as often as this one."""
    begun, all_files = mine.read_text(), [folder / f"{what} {index}" for index in range(COUNT)]
    while any(not file.exists() or file.read_text() != begun for file in all_files):
        time.sleep(0.01)


wait_for_others()
if what == "finish":
    screens = [file.isatty() for file in (sys.stdout, sys.stderr)]
    print(f"{INDEX} of {COUNT} meet at {os.environ['KERAS_DISTRIBUTION_JOB_ADDRESSES']}")
    print("[Gloo] Rank 0 is ", end="", flush=True)
    time.sleep(0.5)
    print(f"connected\n\nterminals: {screens}")
    (folder / f"GPU {INDEX}").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "none"))
    print(f"{INDEX} says", file=sys.stderr)
if what == "die always" or (what in ("die once", "be lost once") and mine.read_text() == "begun\n"):
    (folder / f"process {INDEX}").write_text(str(os.getpid()))
    if INDEX == 1:
        os.kill(os.getppid() if what == "be lost once" else os.getpid(), signal.SIGKILL)
    time.sleep(600)  # until the supervisor ends
if what == "fail":
    print("both say" if INDEX == 0 else "both say\n1 has failed", file=sys.stderr)
    sys.exit(os.EX_TEMPFAIL if INDEX == 0 else 3)
if what == "be stopped":
    signal.signal(signal.SIGINT, lambda *_: sys.exit(100 + INDEX))
    (folder / f"waiting {INDEX}").touch()
    time.sleep(600)
