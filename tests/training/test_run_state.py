"""Stored states of a run: which are kept, skipped if damaged, or removed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lmzoo.training.run_state import RunStates


def arrays(step):
    return [("a", np.full((3, 5), step, "float32")), ("b", np.array(step, "int64"))]


def write(states, *steps):
    for step in steps:
        states.write(step, arrays(step), {"done": step})


def steps_of(states):
    return [int(name.removeprefix("step-")) for name in states.names()]


@pytest.fixture(params=["path", "url"])
def directory(request, tmp_path):
    """Return a directory that does not exist yet, on the disk or at a URL."""
    return tmp_path / "run" if request.param == "path" else (tmp_path / "run").as_uri()


def test_the_last_few_are_kept(directory, tmp_path):
    states = RunStates(directory, keep=3)
    assert states.newest() is None
    write(states, 2, 5, 11)
    assert steps_of(states) == [2, 5, 11]
    write(states, 101)
    assert steps_of(states) == [5, 11, 101]
    newest = states.newest()
    assert newest.position == {"done": 101}
    for name, value in arrays(101):
        np.testing.assert_array_equal(newest.tensors.read(name), value)
    write(states, 11)  # the run has gone back to an earlier state
    assert steps_of(states) == [5, 11]
    assert {path.name for path in (tmp_path / "run").iterdir()} == {*states.names()}


def cut(file):
    file.write_bytes(file.read_bytes()[:-3])


def empty(file):
    file.write_bytes(b"")


@pytest.mark.parametrize("file", ["manifest.json", "position.json", "state.safetensors"])
@pytest.mark.parametrize("damage", [cut, empty, Path.unlink])
def test_a_damaged_state_is_skipped(directory, tmp_path, file, damage):
    states = RunStates(directory)
    write(states, 2, 5)
    old, new = (tmp_path / "run" / name for name in states.names())
    damage(new / file)
    message = f"A checkpoint is damaged, and the one before is used: {directory}/step-000000000005"
    with pytest.warns(UserWarning, match=message):
        assert states.newest().position == {"done": 2}
    damage(old / file)
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(ValueError, match=r"All checkpoints .* are damaged"):
        states.newest()


def test_remains_of_a_killed_process_are_removed(tmp_path):
    states = RunStates(tmp_path)
    leftover = tmp_path / ".step-000000000004.0a1b2c3d.tmp"
    leftover.mkdir()
    assert steps_of(states) == []
    write(states, 4)
    assert not leftover.exists()


def test_copies_of_remote_states_are_removed(tmp_path, monkeypatch):
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "copies"))
    states = RunStates((tmp_path / "run").as_uri())
    write(states, 2, 5)
    (tmp_path / "run" / "step-000000000005" / "manifest.json").unlink()  # the upload was interrupted
    with pytest.warns(UserWarning, match="step-000000000005 has no manifest.json"):
        state = states.newest()
    assert len(list((tmp_path / "copies").iterdir())) == 1
    np.testing.assert_array_equal(state.tensors.read("b"), 2)
    del state
    assert not list((tmp_path / "copies").iterdir())


def test_a_failed_download_is_not_damage(tmp_path, monkeypatch):
    states = RunStates((tmp_path / "run").as_uri())
    write(states, 2, 5)

    def fail(*args, **options):
        raise ConnectionError("no route to host")

    monkeypatch.setattr("lmzoo.training.run_state.copy_folder", fail)
    with pytest.raises(ConnectionError, match="no route"):
        states.newest()
