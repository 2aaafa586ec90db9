"""Damaged TensorFlow checkpoints: each is refused with its fault named, or still holds the original values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lmzoo.checkpoints.formats.tensorflow import TensorFlowCheckpoint, write_tensorflow_checkpoint
from lmzoo.errors import PresetError
from tests.memory import memory_grows_less_than


@pytest.fixture
def checkpoint(tmp_path) -> tuple[Path, dict[str, np.ndarray]]:
    """Write a checkpoint with TensorFlow, and return its prefix and tensors."""
    numbers = np.random.default_rng(23)
    shapes = [(), (7,), (3, 0), (5, 11), (2, 3, 13)]
    tensors = {f"bert/encoder/layer_{n}/kernel": numbers.random(shape) for n, shape in enumerate(shapes)}
    write_tensorflow_checkpoint(tmp_path / "model.ckpt", tensors.items())
    return tmp_path / "model.ckpt", tensors


def is_refused(prefix: Path, tensors: dict[str, np.ndarray]) -> bool:
    """Return whether a checkpoint is refused; if it is read, its values must be `tensors`."""
    try:
        checkpoint = TensorFlowCheckpoint(prefix)
        values = {name: checkpoint.read(name) for name in checkpoint.names()}
    except PresetError as error:
        assert str(error).startswith(f"{prefix}.")  # noqa: PT017 - as for any other error
        return True
    assert values.keys() == tensors.keys()
    for name, value in tensors.items():
        np.testing.assert_array_equal(values[name], value, strict=True)
    return False


def test_every_byte_of_the_index_counts(checkpoint):
    """Only the padding of its footer and the empty second index are not read."""
    prefix, tensors = checkpoint
    file = Path(f"{prefix}.index")
    whole = file.read_bytes()
    accepted = []
    for offset in range(len(whole)):
        file.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        if not is_refused(prefix, tensors):
            accepted.append(offset)
    assert set(accepted) <= {*range(len(whole) - 48, len(whole) - 8), *range(len(whole) - 81, len(whole) - 68)}
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        assert is_refused(prefix, tensors)


def test_each_block_of_the_index_counts(tmp_path):
    """TensorFlow alone would silently omit the entries of a damaged block."""
    prefix, numbers = tmp_path / "model.ckpt", np.random.default_rng(37)
    tensors = {numbers.bytes(60).hex(): np.ones(3, "float32") for _ in range(3_001)}
    write_tensorflow_checkpoint(prefix, tensors.items())
    assert not is_refused(prefix, tensors)
    file = Path(f"{prefix}.index")
    whole = file.read_bytes()
    for offset in (1_009, len(whole) // 2, len(whole) - 10_007):
        file.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        assert is_refused(prefix, tensors)


def test_the_index_of_another_checkpoint_is_refused(checkpoint, tmp_path):
    """It lists more tensors than the data holds, or other ones."""
    prefix, tensors = checkpoint
    for number, shape in enumerate([(1 << 20,), (3,)]):
        write_tensorflow_checkpoint(tmp_path / f"other_{number}", [("kernel", np.ones(shape, "float32"))])
        Path(tmp_path / f"other_{number}.index").rename(f"{prefix}.index")
        with memory_grows_less_than(2 << 20):
            assert is_refused(prefix, tensors)


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n", b"<html>", bytes(1_000)])
def test_another_file_in_place_of_the_index_is_refused(checkpoint, content):
    prefix, _ = checkpoint
    Path(f"{prefix}.index").write_bytes(content)
    with pytest.raises(PresetError, match=r"model\.ckpt\.index "):
        TensorFlowCheckpoint(prefix)
