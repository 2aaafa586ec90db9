"""The manifest reveals every change to a preset's files."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from lmzoo.files import manifest
from lmzoo.presets import PresetError, open_preset, verify_manifest, write_manifest

FILES = {
    "config.json": '{"registered_name": "x"}',
    "metadata.json": "{}",
    "model.weights.h5": "weights" * 331,
    "README.md": "# A preset",
    "assets/tokenizer/vocabulary.txt": "[PAD]\n[UNK]\nstraße\n",
}


@pytest.fixture
def preset(tmp_path):
    directory = tmp_path / "preset"
    for name, text in FILES.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text, encoding="utf-8")
    write_manifest(directory)
    return directory


@pytest.fixture
def hashed_files(monkeypatch):
    """Return the names of the files that were hashed."""
    names = []
    original = manifest._compute_sha256
    monkeypatch.setattr(manifest, "_compute_sha256", lambda path: names.append(path.name) or original(path))
    return names


def rewrite(preset: Path, **changes) -> None:
    path = preset / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_manifest_lists_sizes_and_digests(preset):
    stored = json.loads((preset / "manifest.json").read_text())
    assert stored["format"] == 1
    assert stored["files"].keys() == FILES.keys()
    assert stored["files"]["metadata.json"] == {
        "sha256": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",  # of "{}"
        "size": 2,
    }
    assert verify_manifest(preset) is True
    assert verify_manifest(str(preset)) is True


def test_the_manifest_and_hidden_files_are_not_listed(preset):
    before = (preset / "manifest.json").read_bytes()
    (preset / ".git").mkdir()
    (preset / ".git" / "HEAD").write_text("ref")
    (preset / ".DS_Store").write_text("")
    write_manifest(preset)
    assert (preset / "manifest.json").read_bytes() == before


def test_the_manifest_is_replaced_and_not_overwritten(preset):
    path = preset / "manifest.json"
    before = path.read_text()
    with path.open() as file:  # reads changes in place
        (preset / "README.md").write_text("# Another text")
        write_manifest(preset)
        assert file.read() == before
    assert path.read_text() != before
    assert verify_manifest(preset) is True


def test_a_preset_may_lack_a_manifest(preset):
    (preset / "manifest.json").unlink()
    assert verify_manifest(preset) is False
    assert open_preset(preset) == preset


@pytest.mark.parametrize("name", FILES)
def test_each_changed_file_is_named(preset, name):
    path = preset / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(PresetError, match=rf"{path} was altered.*write_manifest"):
        verify_manifest(preset)
    path.write_bytes(data[:-1])
    message = rf"{path} was altered: it has {len(data) - 1} bytes, not {len(data)}.*write_manifest"
    with pytest.raises(PresetError, match=message):
        verify_manifest(preset)
    path.unlink()
    with pytest.raises(PresetError, match=rf"{path} is missing"):
        open_preset(preset)


@pytest.mark.parametrize("name", ["task.json", "task.weights.h5", "assets/tokenizer/merges.txt"])
def test_unlisted_preset_files_are_refused(preset, name):
    (preset / name).write_text("{}")
    with pytest.raises(PresetError, match=rf"{name} is not listed"):
        verify_manifest(preset)


def test_other_unlisted_files_are_ignored(preset):
    (preset / "notes.txt").write_text("mine")
    (preset / "assets" / ".DS_Store").write_text("")
    assert verify_manifest(preset) is True


@pytest.mark.parametrize(
    "name", ["../secret.txt", "/etc/hostname", "assets/../../secret.txt", "a//b", "./config.json", "C:\\x", "..\\x", ""]
)
def test_paths_out_of_the_directory_are_refused(preset, name):
    (preset.parent / "secret.txt").write_text("secret")
    rewrite(preset, files={name: {"sha256": "0" * 64, "size": 6}})
    with pytest.raises(PresetError, match=r"manifest\.json lists .*only relative paths inside"):
        verify_manifest(preset)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"files": ["config.json"]},
        {"files": {"config.json": "44136f"}},
        {"files": {"config.json": {"sha256": "44136f"}}},
        {"files": {"config.json": {"sha256": 3, "size": 2}}},
        {"files": {"config.json": {"sha256": "44136f", "size": True}}},
    ],
)
def test_malformed_manifests_are_refused(preset, changes):
    rewrite(preset, **changes)
    with pytest.raises(PresetError, match=r"manifest\.json"):
        verify_manifest(preset)


@pytest.mark.parametrize("text", ["", "{", "[]", "\udcff", "[" * 100_000])
def test_manifests_must_be_json(preset, text):
    (preset / "manifest.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(PresetError, match=r"manifest\.json"):
        verify_manifest(preset)


def test_files_are_hashed_once_until_something_changes(preset, hashed_files, monkeypatch):
    monkeypatch.setattr(manifest, "_SETTLED_NS", -1)
    open_preset(preset)
    assert sorted(hashed_files) == sorted(Path(name).name for name in FILES)
    hashed_files.clear()
    open_preset(str(preset))
    assert hashed_files == []

    path = preset / "model.weights.h5"
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    time.sleep(0.02)
    path.write_text("Weights" + "weights" * 330)
    os.utime(path, ns=times)  # same size, and a false modification time
    with pytest.raises(PresetError, match=r"model\.weights\.h5 was altered"):
        open_preset(preset)
    with pytest.raises(PresetError, match=r"model\.weights\.h5 was altered"):
        open_preset(preset)
    path.write_text(FILES["model.weights.h5"])
    assert open_preset(preset) == preset

    (preset / "task.json").write_text("{}")
    with pytest.raises(PresetError, match=r"task\.json is not listed"):
        open_preset(preset)


def test_fresh_files_are_hashed_again(preset, hashed_files):
    open_preset(preset)
    open_preset(preset)
    assert len(hashed_files) == 2 * len(FILES)
