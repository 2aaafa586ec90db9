"""TensorFlow's checkpoints, versions 1 and 2: `prefix.index` and `prefix.data-00000-of-00001`, or several such files.

They are read without TensorFlow, and written with it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from lmzoo.checkpoints.formats.crc32c import masked_crc32c
from lmzoo.checkpoints.formats.sharded import check_is_weights, file_beside
from lmzoo.checkpoints.formats.tensor_file import TensorFile
from lmzoo.checkpoints.formats.tensorflow_index import NOT_NUMBERS, Entry, read_index
from lmzoo.errors import PresetError
from lmzoo.files.atomic import atomic_file


class TensorFlowCheckpoint(TensorFile):
    """The tensors of a checkpoint, each checked against its checksum when it is read.

    Tensors that are not numbers (strings, such as `_CHECKPOINTABLE_OBJECT_GRAPH`, resources) have names and shapes, but
    cannot be read.

    Args:
        prefix: what the names of the files have in common, such as `bert_model.ckpt`, or the path of the index.

    Attributes:
        path: the index.

    Raises:
        PresetError: naming the file that is missing, truncated, altered, or holds what only TensorFlow reads.

    Example:

    ```python
    import numpy as np

    from lmzoo.checkpoints.formats.tensorflow import TensorFlowCheckpoint, write_tensorflow_checkpoint

    write_tensorflow_checkpoint("model.ckpt", [("dense/bias", np.zeros(3, "float32"))])
    checkpoint = TensorFlowCheckpoint("model.ckpt")
    {name: checkpoint.shape(name) for name in checkpoint.names()}  # {"dense/bias": (3,)}
    checkpoint.read("dense/bias")  # array([0., 0., 0.], dtype=float32)
    ```
    """

    def __init__(self, prefix: str | os.PathLike[str]) -> None:
        common = os.fspath(prefix).removesuffix(".index")
        self.path = _beside(f"{common}.index")
        shards, self._entries = read_index(self.path)
        self._files: dict[int, Path] = {}
        sizes: dict[int, int] = {}
        for name, entry in self._entries.items():
            if entry.shard not in self._files:
                file = _beside(f"{common}.data-{entry.shard:05}-of-{shards:05}")
                check_is_weights(file)
                self._files[entry.shard], sizes[entry.shard] = file, file.stat().st_size
            if (end := entry.offset + entry.size) > (size := sizes[entry.shard]):
                raise PresetError(
                    f"{self._files[entry.shard]} has {size} bytes, expected {end} or more, where {name!r} ends: it is "
                    "truncated or altered. Fetch it again."
                )

    def names(self) -> Iterable[str]:
        return self._entries.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entry(name).shape

    def dtype(self, name: str) -> str:
        """Dtype of a tensor by its numpy name, or TensorFlow's for what is not numbers: "string", "resource"."""
        return self._entry(name).dtype

    def read(self, name: str) -> np.ndarray:
        """The values of a tensor, in an array of its own.

        Raises:
            PresetError: if there is no such tensor, its data was altered, or it does not hold numbers.
        """
        entry = self._entry(name)
        file = self.file_of(name)
        if entry.dtype in NOT_NUMBERS:
            raise PresetError(f"{file}: {name!r} is of dtype {entry.dtype}, expected numbers.")
        try:
            data = np.fromfile(file, np.uint8, entry.size, offset=entry.offset)
        except OSError as error:
            raise PresetError(f"{file} cannot be read ({error}).") from error
        if data.size != entry.size or masked_crc32c(data) != entry.checksum:
            raise PresetError(f"{file} was altered: {name!r} differs from its checksum in the index. Fetch it again.")
        return data.view(entry.dtype).reshape(entry.shape)

    def file_of(self, name: str) -> Path:
        return self._files[self._entry(name).shard]

    def _entry(self, name: str) -> Entry:
        if name not in self._entries:
            raise PresetError(f"{self.path} lists no tensor {name!r}.")
        return self._entries[name]


def _beside(path: str) -> Path:
    return file_beside(Path(path).parent, Path(path).name)


def write_tensorflow_checkpoint(prefix: str | os.PathLike[str], tensors: Iterable[tuple[str, np.ndarray]]) -> None:
    """Writes a checkpoint, for `tf.train.load_checkpoint` and TensorFlow 1's `Saver`.

    Args:
        prefix: what the names of the files begin with; directories are made.
        tensors: pairs of a name and an array. All are held in memory.

    Raises:
        PresetError: if TensorFlow is not installed, two tensors have one name, or one has none.
        OSError: if the files cannot be written.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise PresetError("Only TensorFlow itself writes its checkpoints: `pip install tensorflow`.") from error
    values: dict[str, Any] = {}
    with tf.device("CPU:0"):
        for name, array in tensors:
            if not name or name in values:  # TensorFlow would end the process at an empty name
                raise PresetError(f"{prefix}: each tensor needs a name of its own, got {name!r}.")
            values[name] = tf.convert_to_tensor(array)
        index, data = (Path(f"{os.fspath(prefix)}.{part}") for part in ("index", "data-00000-of-00001"))
        # The data file takes its place first, and the index last.
        with (
            atomic_file(index) as new_index,
            atomic_file(data) as new_data,
            tempfile.TemporaryDirectory(dir=new_index.parent) as folder,
        ):
            try:
                tf.raw_ops.SaveV2(
                    prefix=f"{folder}/model",
                    tensor_names=list(values),
                    shape_and_slices=[""] * len(values),
                    tensors=list(values.values()),
                )
            except tf.errors.OpError as error:
                raise OSError(f"{prefix} cannot be written: {error.message}.") from error
            os.replace(f"{folder}/model.index", new_index)
            os.replace(f"{folder}/model.data-00000-of-00001", new_data)
