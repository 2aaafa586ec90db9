"""Damaged checkpoints of TensorFlow: each is refused for what is wrong with it, or holds what it held before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lmzoo.checkpoints.formats.tensorflow import TensorFlowCheckpoint, write_tensorflow_checkpoint
from lmzoo.errors import PresetError
from tests.memory import memory_grows_less_than


@pytest.fixture
def written(tmp_path) -> tuple[Path, dict[str, np.ndarray]]:
    """A checkpoint by TensorFlow."""
    numbers = np.random.default_rng(23)
    shapes = [(), (7,), (3, 0), (5, 11), (2, 3, 13)]
    tensors = {f"bert/encoder/layer_{n}/kernel": numbers.random(shape) for n, shape in enumerate(shapes)}
    write_tensorflow_checkpoint(tmp_path / "model.ckpt", tensors.items())
    return tmp_path / "model.ckpt", tensors


def right_or_refused(prefix: Path, tensors: dict[str, np.ndarray]) -> bool:
    """Whether it was refused."""
    try:
        checkpoint = TensorFlowCheckpoint(prefix)
        found = {name: checkpoint.read(name) for name in checkpoint.names()}
    except PresetError as error:
        message = str(error)
    else:
        assert_equal(found, tensors)
        return False
    assert message.startswith(f"{prefix}.")
    return True


def assert_equal(found: dict[str, np.ndarray], tensors: dict[str, np.ndarray]) -> None:
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        np.testing.assert_array_equal(found[name], value, strict=True)


def test_every_byte_of_the_index_counts(written):
    """But for what fills up its footer, and for a second index, which is empty and not looked at."""
    prefix, tensors = written
    file = Path(f"{prefix}.index")
    whole = file.read_bytes()
    accepted = []
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        if not right_or_refused(prefix, tensors):
            accepted.append(place)
    assert set(accepted) <= {*range(len(whole) - 48, len(whole) - 8), *range(len(whole) - 81, len(whole) - 68)}
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        assert right_or_refused(prefix, tensors)


def test_each_block_of_the_index_counts(tmp_path):
    """TensorFlow by itself would leave out what a damaged block lists."""
    prefix, numbers = tmp_path / "model.ckpt", np.random.default_rng(37)
    tensors = {numbers.bytes(60).hex(): np.ones(3, "float32") for _ in range(3_001)}
    write_tensorflow_checkpoint(prefix, tensors.items())
    assert not right_or_refused(prefix, tensors)
    file = Path(f"{prefix}.index")
    whole = file.read_bytes()
    for place in (1_009, len(whole) // 2, len(whole) - 10_007):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert right_or_refused(prefix, tensors)


def test_index_of_another_checkpoint(written, tmp_path):
    """It says that there is more than there is, or other than there is."""
    prefix, tensors = written
    for number, shape in enumerate([(1 << 20,), (3,)]):
        write_tensorflow_checkpoint(tmp_path / f"other_{number}", [("kernel", np.ones(shape, "float32"))])
        Path(tmp_path / f"other_{number}.index").rename(f"{prefix}.index")
        with memory_grows_less_than(2 << 20):
            assert right_or_refused(prefix, tensors)


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n", b"<html>", bytes(1_000)])
def test_index_that_is_none(written, content):
    prefix, _ = written
    Path(f"{prefix}.index").write_bytes(content)
    with pytest.raises(PresetError, match=r"model\.ckpt\.index "):
        TensorFlowCheckpoint(prefix)
