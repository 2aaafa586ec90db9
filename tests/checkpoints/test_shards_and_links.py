"""Files of checkpoints: they lie in the directory, hold weights, and are the files that the index lists."""

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


def write_index(directory: Path, **changes: str | None) -> None:
    """Write the index, with changed files for some tensors; None omits a tensor."""
    weight_map = {name: shard for shard, tensors in PARTS.items() for name in tensors} | changes
    weight_map = {name: shard for name, shard in weight_map.items() if shard is not None}
    (directory / INDEX).write_text(json.dumps({"metadata": {"total_size": 404}, "weight_map": weight_map}))


@pytest.fixture
def shards(tmp_path):
    directory = tmp_path / "parts"
    directory.mkdir()
    for shard, tensors in PARTS.items():
        write_safetensors(directory / shard, tensors.items())
    write_index(directory)
    return directory


def test_shards_are_one_checkpoint(shards):
    tensors = SafetensorsFiles(shards)
    assert set(tensors.names()) == {"encoder.weight", "encoder.bias", "head.weight"}
    for shard, expected in PARTS.items():
        for name, array in expected.items():
            assert tensors.file_of(name) == shards / shard
            assert (tensors.shape(name), tensors.dtype(name)) == (array.shape, array.dtype.name)
            np.testing.assert_array_equal(tensors.read(name), array)


def test_a_single_file_is_preferred_to_an_index(shards):
    write_safetensors(shards / "model.safetensors", [("alone", np.ones(3, "float32"))])
    assert list(SafetensorsFiles(shards).names()) == ["alone"]


def test_an_empty_directory_is_refused(tmp_path):
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
def test_the_index_must_match_the_shards(shards, changes, message):
    write_index(shards, **changes)
    with pytest.raises(PresetError, match=message):
        SafetensorsFiles(shards)


def test_a_tensor_in_two_shards_is_refused(shards):
    write_safetensors(shards / FIRST, [*PARTS[FIRST].items(), ("encoder.bias", np.ones(11, "float32"))])
    with pytest.raises(PresetError, match=f"{FIRST} holds 'encoder.bias', which"):
        SafetensorsFiles(shards)


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
def test_a_malformed_index_is_refused(shards, text, message):
    (shards / INDEX).write_text(text)
    with pytest.raises(PresetError, match=rf"{INDEX}.*{message}"):
        SafetensorsFiles(shards)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../outside.safetensors", "a/../../outside.safetensors", "./x", "sub/x", "sub\\x", "C:x", "x\0y"],
)
def test_file_names_must_not_be_paths(shards, name):
    write_safetensors(shards.parent / "outside.safetensors", [("stolen", np.ones(3, "float32"))])
    for hostile in (name, str(shards.parent / "outside.safetensors")):
        write_index(shards, stolen=hostile)
        with pytest.raises(PresetError, match=re.escape(f"{shards} names {hostile!r} as one of its files")):
            SafetensorsFiles(shards)


def hub_cache(root: Path, target: str, blobs: str = "blobs") -> Path:
    """Return a directory laid out by huggingface_hub, whose weights are a link to `target`."""
    snapshot = root / "models--org--name" / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (root / "models--org--name" / blobs).mkdir()
    write_safetensors(root / "models--org--name" / blobs / "89ef", [("weight", np.ones((3, 5), "float32"))])
    (snapshot / "model.safetensors").symlink_to(target)
    return snapshot


def test_links_of_the_hub_cache_are_followed(tmp_path):
    snapshot = hub_cache(tmp_path, "../../blobs/89ef")
    assert SafetensorsFiles(snapshot).shape("weight") == (3, 5)
    (tmp_path / "link").symlink_to(snapshot)  # the caller may link to the directory itself
    assert SafetensorsFiles(tmp_path / "link").shape("weight") == (3, 5)


def test_links_inside_the_directory_are_followed(shards):
    (shards / FIRST).rename(shards / "other.safetensors")
    (shards / FIRST).symlink_to("other.safetensors")
    assert SafetensorsFiles(shards).shape("encoder.weight") == (7, 11)


def test_links_out_of_the_directory_are_refused(tmp_path, shards):
    outside = tmp_path / "outside.safetensors"
    (shards / FIRST).rename(outside)
    (shards / FIRST).symlink_to(outside)
    with pytest.raises(PresetError, match=rf"{shards / FIRST} is a link to {outside}, which is outside"):
        SafetensorsFiles(shards)
    (shards / INDEX).rename(tmp_path / INDEX)
    (shards / INDEX).symlink_to(f"../{INDEX}")
    with pytest.raises(PresetError, match=rf"{shards / INDEX} is a link to {tmp_path / INDEX}"):
        SafetensorsFiles(shards)
    assert SafetensorsFiles(outside).shape("encoder.weight") == (7, 11)


def test_links_that_imitate_the_hub_cache_are_refused(tmp_path):
    out_of_cache = hub_cache(tmp_path / "1", "../../../elsewhere.safetensors")
    write_safetensors(tmp_path / "1" / "elsewhere.safetensors", [("stolen", np.ones(3, "float32"))])
    no_blobs = hub_cache(tmp_path / "2", "../../others/89ef", blobs="others")
    linked_blobs = hub_cache(tmp_path / "3", "../../blobs/89ef", blobs="others")
    (linked_blobs.parents[1] / "blobs").symlink_to("others")  # or anywhere else
    snapshot = hub_cache(tmp_path / "4", "../../blobs/89ef")
    no_snapshots = snapshot.parent.rename(snapshot.parent.with_name("revisions")) / snapshot.name
    for directory in (out_of_cache, no_blobs, linked_blobs, no_snapshots):
        with pytest.raises(PresetError, match="outside the directory"):
            SafetensorsFiles(directory)


def test_circular_links_are_refused(tmp_path):
    (tmp_path / "model.safetensors").symlink_to("model.safetensors")
    with pytest.raises(PresetError, match=r"model.safetensors does not exist"):
        SafetensorsFiles(tmp_path)


def test_the_path_of_a_missing_file_is_resolved(tmp_path):
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
def test_other_files_in_place_of_weights_are_named(tmp_path, content, message):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(PresetError, match=f"{path}.*{message}"):
        check_is_weights(path)


def test_weights_must_be_a_regular_file(tmp_path):
    with pytest.raises(PresetError, match=r"absent\.bin does not exist"):
        check_is_weights(tmp_path / "absent.bin")
    with pytest.raises(PresetError, match=f"{tmp_path} is not a file"):
        check_is_weights(tmp_path)
    os.mkfifo(tmp_path / "pipe")  # reading it would block forever
    with pytest.raises(PresetError, match="pipe is not a file"):
        check_is_weights(tmp_path / "pipe")
