"""States on the disk: kept, passed over, cut off."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import pytest

from lmzoo.training.run_state import RunStates


def arrays(step):
    return [("a", np.full((3, 5), step, "float32")), ("b", np.array(step, "int64"))]


def write(snapshots, *steps):
    for step in steps:
        snapshots.write(step, arrays(step), {"done": step})


def steps_of(snapshots):
    return [int(path.name.removeprefix("step-")) for path in snapshots.paths()]


def test_the_last_few_are_kept(tmp_path):
    snapshots = RunStates(tmp_path / "run", keep=3)
    assert snapshots.newest() is None
    write(snapshots, 2, 5, 11)
    assert steps_of(snapshots) == [2, 5, 11]
    write(snapshots, 101)
    assert steps_of(snapshots) == [5, 11, 101]
    found = snapshots.newest()
    assert found.position == {"done": 101}
    for name, value in arrays(101):
        np.testing.assert_array_equal(found.tensors.read(name), value)
    write(snapshots, 11)  # a run that has gone back
    assert steps_of(snapshots) == [5, 11]
    assert {path.name for path in (tmp_path / "run").iterdir()} == {path.name for path in snapshots.paths()}


def cut(file):
    file.write_bytes(file.read_bytes()[:-3])


def empty(file):
    file.write_bytes(b"")


@pytest.mark.parametrize("file", ["manifest.json", "position.json", "state.safetensors"])
@pytest.mark.parametrize("harm", [cut, empty, Path.unlink])
def test_a_damaged_one_is_passed_over(tmp_path, file, harm):
    snapshots = RunStates(tmp_path)
    write(snapshots, 2, 5)
    harm(snapshots.paths()[-1] / file)
    with pytest.warns(UserWarning, match="A checkpoint is damaged, and the one before is used: .*step-000000000005"):
        assert snapshots.newest().position == {"done": 2}
    harm(snapshots.paths()[0] / file)
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(ValueError, match=r"All checkpoints .* are damaged"):
        snapshots.newest()


def test_what_a_killed_process_left_is_removed(tmp_path):
    snapshots = RunStates(tmp_path)
    leftover = tmp_path / ".step-000000000004.0a1b2c3d.tmp"
    leftover.mkdir()
    assert steps_of(snapshots) == []
    write(snapshots, 4)
    assert not leftover.exists()


def test_a_failure_leaves_the_others(tmp_path):
    snapshots = RunStates(tmp_path, keep=1)
    write(snapshots, 2)

    def broken():
        yield from arrays(3)
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space left"):
        snapshots.write(3, broken(), {"done": 3})
    assert os.listdir(tmp_path) == ["step-000000000002"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert snapshots.newest().position == {"done": 2}
