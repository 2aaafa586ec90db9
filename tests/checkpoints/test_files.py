"""A checkpoint's files are in its directory, are weights, and are the ones that the index names."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from lmzoo.checkpoints.formats.safetensors import SafetensorsFiles, write_safetensors
from lmzoo.checkpoints.formats.sharded import check_is_weights
from lmzoo.files.inside import resolve_inside
from lmzoo.presets import PresetError

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d7a2146" * 8 + b"\nsize 440473133\n"
PARTS = {
    "model-00001-of-00002.safetensors": {"encoder.weight": np.arange(7 * 11, dtype="float32").reshape(7, 11)},
    "model-00002-of-00002.safetensors": {
        "encoder.bias": np.arange(11, dtype="float32"),
        "head.weight": np.arange(26, dtype="float16").reshape(2, 13),
    },
}
FIRST, SECOND = PARTS
INDEX = "model.safetensors.index.json"


def index(directory: Path, **changes: str | None) -> None:
    """Writes the index, with other files for some tensors, or none."""
    weight_map = {name: part for part, tensors in PARTS.items() for name in tensors} | changes
    weight_map = {name: part for name, part in weight_map.items() if part is not None}
    (directory / INDEX).write_text(json.dumps({"metadata": {"total_size": 404}, "weight_map": weight_map}))


@pytest.fixture
def parts(tmp_path):
    directory = tmp_path / "parts"
    directory.mkdir()
    for part, tensors in PARTS.items():
        write_safetensors(directory / part, tensors.items())
    index(directory)
    return directory


def test_parts_are_one_checkpoint(parts):
    tensors = SafetensorsFiles(parts)
    assert set(tensors.names()) == {"encoder.weight", "encoder.bias", "head.weight"}
    for part, expected in PARTS.items():
        for name, array in expected.items():
            assert tensors.file_of(name) == parts / part
            assert (tensors.shape(name), tensors.dtype(name)) == (array.shape, array.dtype.name)
            np.testing.assert_array_equal(tensors.read(name), array)


def test_one_file_wins_over_an_index(parts):
    write_safetensors(parts / "model.safetensors", [("alone", np.ones(3, "float32"))])
    assert list(SafetensorsFiles(parts).names()) == ["alone"]


def test_empty_directory(tmp_path):
    with pytest.raises(PresetError, match=rf"{tmp_path} holds no weights: expected model.safetensors or {INDEX}"):
        SafetensorsFiles(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder.extra": FIRST}, rf"{FIRST} lacks 'encoder.extra', which {INDEX} lists"),
        ({"encoder.bias": FIRST}, rf"{FIRST} lacks 'encoder.bias'"),
        ({"encoder.bias": None}, rf"{SECOND} holds 'encoder.bias', which {INDEX} does not list"),
        ({"encoder.bias": "model-00003-of-00002.safetensors"}, "model-00003-of-00002.safetensors does not exist"),
        ({"encoder.bias": INDEX}, rf"{INDEX} is not a whole safetensors file"),
    ],
)
def test_index_and_parts_differ(parts, changes, message):
    index(parts, **changes)
    with pytest.raises(PresetError, match=message):
        SafetensorsFiles(parts)


def test_a_tensor_in_two_parts(parts):
    write_safetensors(parts / FIRST, [*PARTS[FIRST].items(), ("encoder.bias", np.ones(11, "float32"))])
    with pytest.raises(PresetError, match=f"{FIRST} holds 'encoder.bias', which"):
        SafetensorsFiles(parts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "must hold a JSON object"),
        ("{}", '"weight_map"'),
        ('{"weight_map": ["a"]}', '"weight_map"'),
        ('{"weight_map": {"a": 3}}', '"weight_map"'),
        ('{"weight_map": {"a": ["model.safetensors"]}}', '"weight_map"'),
        ('{"weight_map": {}}', "names no tensors"),
        (POINTER.decode(), "Git LFS pointer"),
        ("[" * 100_000, "cannot be read as JSON"),
    ],
)
def test_malformed_index(parts, text, message):
    (parts / INDEX).write_text(text)
    with pytest.raises(PresetError, match=rf"{INDEX}.*{message}"):
        SafetensorsFiles(parts)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../outside.safetensors", "a/../../outside.safetensors", "./x", "sub/x", "sub\\x", "C:x", "x\0y"],
)
def test_names_that_are_paths(parts, name):
    write_safetensors(parts.parent / "outside.safetensors", [("stolen", np.ones(3, "float32"))])
    for hostile in (name, str(parts.parent / "outside.safetensors")):
        index(parts, stolen=hostile)
        with pytest.raises(PresetError, match=re.escape(f"{parts} names {hostile!r} as one of its files")):
            SafetensorsFiles(parts)


def hub_cache(root: Path, target: str, blobs: str = "blobs") -> Path:
    """A directory as huggingface_hub lays it out, its weights a link."""
    snapshot = root / "models--org--name" / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (root / "models--org--name" / blobs).mkdir()
    write_safetensors(root / "models--org--name" / blobs / "89ef", [("weight", np.ones((3, 5), "float32"))])
    (snapshot / "model.safetensors").symlink_to(target)
    return snapshot


def test_links_of_the_hub_cache_are_followed(tmp_path):
    snapshot = hub_cache(tmp_path, "../../blobs/89ef")
    assert SafetensorsFiles(snapshot).shape("weight") == (3, 5)
    (tmp_path / "link").symlink_to(snapshot)  # what leads to the directory is the caller's choice
    assert SafetensorsFiles(tmp_path / "link").shape("weight") == (3, 5)


def test_links_inside_the_directory_are_followed(parts):
    (parts / FIRST).rename(parts / "other.safetensors")
    (parts / FIRST).symlink_to("other.safetensors")
    assert SafetensorsFiles(parts).shape("encoder.weight") == (7, 11)


def test_links_out_of_the_directory_are_refused(tmp_path, parts):
    outside = tmp_path / "outside.safetensors"
    (parts / FIRST).rename(outside)
    (parts / FIRST).symlink_to(outside)
    with pytest.raises(PresetError, match=rf"{parts / FIRST} is a link to {outside}, which is outside"):
        SafetensorsFiles(parts)
    (parts / INDEX).rename(tmp_path / INDEX)
    (parts / INDEX).symlink_to(f"../{INDEX}")
    with pytest.raises(PresetError, match=rf"{parts / INDEX} is a link to {tmp_path / INDEX}"):
        SafetensorsFiles(parts)
    assert SafetensorsFiles(outside).shape("encoder.weight") == (7, 11)


def test_links_that_only_look_like_the_cache_are_refused(tmp_path):
    elsewhere = hub_cache(tmp_path / "1", "../../../elsewhere.safetensors")
    write_safetensors(tmp_path / "1" / "elsewhere.safetensors", [("stolen", np.ones(3, "float32"))])
    with pytest.raises(PresetError, match="outside the directory"):
        SafetensorsFiles(elsewhere)
    with pytest.raises(PresetError, match="outside the directory"):
        SafetensorsFiles(hub_cache(tmp_path / "2", "../../others/89ef", blobs="others"))
    snapshot = hub_cache(tmp_path / "4", "../../blobs/89ef")
    other = snapshot.parent.rename(snapshot.parent.with_name("revisions")) / snapshot.name
    with pytest.raises(PresetError, match="outside the directory"):
        SafetensorsFiles(other)
    through = hub_cache(tmp_path / "3", "../../blobs/89ef", blobs="others")
    (through.parents[1] / "blobs").symlink_to("others")  # or anywhere else
    with pytest.raises(PresetError, match="outside the directory"):
        SafetensorsFiles(through)


def test_links_in_a_circle(tmp_path):
    (tmp_path / "model.safetensors").symlink_to("model.safetensors")
    with pytest.raises(PresetError, match=r"model.safetensors does not exist"):
        SafetensorsFiles(tmp_path)


def test_file_in_needs_no_file(tmp_path):
    assert resolve_inside(tmp_path, "model.bin") == tmp_path / "model.bin"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (POINTER, "Git LFS pointer, not the weights: run `git lfs pull`"),
        (b"version https://hawser.github.com/spec/v1\noid 0\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html lang=en>", "is a web page"),
        (b"\xef\xbb\xbf\n  <HTML><head>", "is a web page"),
        (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "is a web page"),
    ],
)
def test_what_lies_in_place_of_weights(tmp_path, content, message):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(PresetError, match=f"{path}.*{message}"):
        check_is_weights(path)


def test_no_file(tmp_path):
    with pytest.raises(PresetError, match=r"absent\.bin does not exist"):
        check_is_weights(tmp_path / "absent.bin")
    with pytest.raises(PresetError, match=f"{tmp_path} is not a file"):
        check_is_weights(tmp_path)
    os.mkfifo(tmp_path / "pipe")  # reading one waits for ever
    with pytest.raises(PresetError, match="pipe is not a file"):
        check_is_weights(tmp_path / "pipe")
