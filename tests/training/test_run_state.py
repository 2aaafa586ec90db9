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
    return [int(name.removeprefix("step-")) for name in snapshots.names()]


@pytest.fixture(params=["path", "url"])
def folder(request, tmp_path):
    """A folder that does not exist yet, on the disk or at a URL."""
    return tmp_path / "run" if request.param == "path" else (tmp_path / "run").as_uri()


def test_the_last_few_are_kept(folder, tmp_path):
    snapshots = RunStates(folder, keep=3)
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
    assert {path.name for path in (tmp_path / "run").iterdir()} == {*snapshots.names()}


def cut(file):
    file.write_bytes(file.read_bytes()[:-3])


def empty(file):
    file.write_bytes(b"")


@pytest.mark.parametrize("file", ["manifest.json", "position.json", "state.safetensors"])
@pytest.mark.parametrize("harm", [cut, empty, Path.unlink])
def test_a_damaged_one_is_passed_over(folder, tmp_path, file, harm):
    snapshots = RunStates(folder)
    write(snapshots, 2, 5)
    old, new = (tmp_path / "run" / name for name in snapshots.names())
    harm(new / file)
    message = f"A checkpoint is damaged, and the one before is used: {folder}/step-000000000005"
    with pytest.warns(UserWarning, match=message):
        assert snapshots.newest().position == {"done": 2}
    harm(old / file)
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


def test_copies_of_remote_states_are_removed(tmp_path, monkeypatch):
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "copies"))
    snapshots = RunStates((tmp_path / "run").as_uri())
    write(snapshots, 2, 5)
    (tmp_path / "run" / "step-000000000005" / "manifest.json").unlink()  # an upload that was interrupted
    with pytest.warns(UserWarning, match="step-000000000005 has no manifest.json"):
        state = snapshots.newest()
    assert len(list((tmp_path / "copies").iterdir())) == 1
    np.testing.assert_array_equal(state.tensors.read("b"), 2)
    del state
    assert not list((tmp_path / "copies").iterdir())


def test_a_store_that_cannot_be_read_is_no_damage(tmp_path, monkeypatch):
    snapshots = RunStates((tmp_path / "run").as_uri())
    write(snapshots, 2, 5)

    def broken(*args, **options):
        raise ConnectionError("no route to host")

    monkeypatch.setattr("lmzoo.training.run_state.copy_folder", broken)
    with pytest.raises(ConnectionError, match="no route"):
        snapshots.newest()
