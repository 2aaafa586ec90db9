"""Saves states without end, for a process that is to be killed: `python killing.py <package folder> <rounds>`.

Without the package's `__init__`, and so without Keras: what writes states needs none, and starts in no time.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import time
import types
from pathlib import Path


def import_snapshots(root: Path):
    for name in ("lmzoo", "lmzoo.training", "lmzoo.files", "lmzoo.checkpoints", "lmzoo.checkpoints.formats"):
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    from lmzoo.training.run_state import RunStates

    assert "keras" not in sys.modules
    return RunStates


def arrays_of(step):
    import numpy as np

    return {f"model.{i}": np.full((97, 131 + i), step, "float32") for i in range(3)}


def write_until_killed(snapshots, first, pipe):
    for step in range(first, 1_000_000):
        snapshots.write(step, arrays_of(step).items(), {"done": step})
        os.write(pipe, b".")


def main(root, rounds):
    snapshots = import_snapshots(Path(root))(Path(tempfile.mkdtemp()) / "run", keep=2)
    draw, cut = random.Random(5), 0
    snapshots.write(0, arrays_of(0).items(), {"done": 0})
    done = 0
    for _ in range(rounds):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            write_until_killed(snapshots, done + 1, writer)
        os.close(writer)
        confirmed = len(os.read(reader, 1))  # the child is under way
        time.sleep(draw.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        confirmed += len(os.read(reader, 1 << 16))
        os.close(reader)
        cut += any(path.name.startswith(".") for path in snapshots.folder.iterdir())
        found = snapshots.newest()
        step = found.position["done"]
        assert done + confirmed <= step <= done + confirmed + 1, (done, confirmed, step)
        for name, array in arrays_of(step).items():
            assert (found.tensors.read(name) == array).all()
        done = step
    shutil.rmtree(snapshots.folder.parent)
    print(rounds, cut)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
