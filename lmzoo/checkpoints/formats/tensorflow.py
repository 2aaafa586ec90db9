"""TensorFlow checkpoints, versions 1 and 2: `prefix.index`, and data files such as `prefix.data-00000-of-00001`.

TensorFlow itself reads and writes the files. Damage that it would not report clearly is detected beforehand.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from lmzoo.checkpoints.formats.sharded import check_is_weights
from lmzoo.checkpoints.formats.tensor_file import Arrays, Tensor, TensorFile, convert_damage_errors
from lmzoo.errors import PresetError
from lmzoo.files.atomic import atomic_file
from lmzoo.files.inside import resolve_inside

if TYPE_CHECKING:
    import tensorflow as tf

# TensorFlow and numpy share these names. Weights never have the other dtypes: strings, resources, quantized numbers.
_NUMERIC_DTYPES = frozenset({
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool", "complex64", "complex128",
})  # fmt: skip

_INDEX_BLOCK_BYTES = 1 << 18  # the index has a checksum for each block


class TensorFlowCheckpoint(TensorFile):
    """The tensors of a TensorFlow checkpoint, each compared with its checksum when it is read.

    Strings, such as `_CHECKPOINTABLE_OBJECT_GRAPH`, and resources have names and shapes, but cannot be read. Tensors
    that were stored in slices are read as a whole.

    Args:
        prefix: Common path prefix of the files, such as `bert_model.ckpt`, or the path of the index.

    Attributes:
        path: Path of the index.

    Raises:
        PresetError: If TensorFlow is not installed, the path has a `[` or a backslash, or a file is missing, truncated,
            corrupted or too small for its tensors; the message names the file.

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
        index_file = Path(f"{os.fspath(prefix).removesuffix('.index')}.index")
        path = resolve_inside(index_file.parent, index_file.name)
        check_is_weights(path)
        data_files = list(_iterate_data_files(path))
        path_prefix = path.with_suffix("").as_posix()
        if "[" in path_prefix or "\\" in path_prefix:
            raise PresetError(f"{path}: TensorFlow takes brackets and backslashes for a pattern; rename it.")
        # `tf.train.load_checkpoint` would instead read the checkpoint in a directory with the same name as the prefix.
        open_reader = _import_tensorflow(path).compat.v1.train.NewCheckpointReader
        with convert_damage_errors(f"{path} cannot be read as the index of a TensorFlow checkpoint"):
            self._reader = open_reader(path_prefix)
            shapes = self._reader.get_variable_to_shape_map()
            dtypes = self._reader.get_variable_to_dtype_map()
        numeric_names = [name for name in shapes if dtypes[name].name in _NUMERIC_DTYPES]
        tensor_bytes = sum(math.prod(shapes[name]) * dtypes[name].size for name in numeric_names)
        data_bytes = sum(file.stat().st_size for file in data_files)
        # If the index has several blocks, TensorFlow skips damaged ones without an error.
        sizes_must_match = path.stat().st_size > _INDEX_BLOCK_BYTES and len(numeric_names) == len(shapes)
        if tensor_bytes > data_bytes or (tensor_bytes < data_bytes and sizes_must_match):
            raise PresetError(
                f"{path} lists tensors of {tensor_bytes} bytes, but its data has {data_bytes}, in "
                f"{', '.join(file.name for file in data_files)}. A file is truncated or altered; fetch them again."
            )
        # Other dtypes have TensorFlow's names, "string" or "resource".
        entries = {name: Tensor(tuple(shapes[name]), dtypes[name].name, path) for name in sorted(shapes)}
        super().__init__(path, entries)

    def read(self, name: str) -> np.ndarray:
        """Return the values of a tensor.

        Raises:
            PresetError: If the tensor is missing, altered or not numeric.
        """
        if (dtype := self.dtype(name)) not in _NUMERIC_DTYPES:
            raise PresetError(f"{self.path}: {name!r} is of dtype {dtype}, expected numbers.")
        with convert_damage_errors(f"{self.path}: {name!r} cannot be read"):
            return np.asarray(self._reader.get_tensor(name))

    def close(self) -> None:
        vars(self).pop("_reader", None)  # TensorFlow closes the files when the reader is deleted


def _iterate_data_files(index_file: Path) -> Iterator[Path]:
    """Check and yield each data file of a checkpoint.

    The number of files is read from the names of existing files, so that missing files are detected.

    Raises:
        PresetError: If a file is missing, empty or not weights.
    """
    prefix = index_file.with_suffix("").name
    pattern = re.compile(re.escape(prefix) + r"\.data-\d{5}-of-(\d{5})")
    shard_counts = {match[1] for file in os.listdir(index_file.parent) if (match := pattern.fullmatch(file))}
    for shard_count in sorted(shard_counts) or ["00001"]:
        for shard_index in range(int(shard_count)):
            file = resolve_inside(index_file.parent, f"{prefix}.data-{shard_index:05}-of-{shard_count}")
            check_is_weights(file)
            yield file


def _import_tensorflow(path: str | os.PathLike[str]) -> ModuleType:
    try:
        import tensorflow
    except ImportError as error:
        raise PresetError(
            f"{os.fspath(path)}: only TensorFlow itself reads and writes its checkpoints: `pip install tensorflow`."
        ) from error
    return tensorflow


@contextlib.contextmanager
def convert_tensorflow_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Convert TensorFlow errors raised in the block, which writes files, into `OSError`.

    Args:
        path: Path of the files, for messages.

    Raises:
        OSError: If TensorFlow raises an error in the block.
    """
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        error_number = errno.ENOSPC if "No space left" in error.message else errno.EIO
        raise OSError(error_number, f"{os.fspath(path)} cannot be written: {error.message}") from error


def write_tensorflow_checkpoint(prefix: str | os.PathLike[str], tensors: Arrays) -> None:
    """Write a checkpoint that `tf.train.load_checkpoint` and TensorFlow 1's `Saver` read.

    Args:
        prefix: Common path prefix of the files. Missing directories are created.
        tensors: Pairs of a name and an array; all arrays are held in memory at once.

    Raises:
        PresetError: If TensorFlow is not installed, two tensors have the same name, or a name is empty.
        OSError: If the files cannot be written.
    """
    tensorflow = _import_tensorflow(prefix)
    values: dict[str, tf.Tensor] = {}
    with tensorflow.device("CPU:0"):
        for name, array in tensors:
            if not name or name in values:  # an empty name would make TensorFlow abort the process
                raise PresetError(f"{prefix}: each tensor needs a name of its own, got {name!r}.")
            values[name] = tensorflow.convert_to_tensor(array)
        index_file, data_file = (Path(f"{os.fspath(prefix)}.{suffix}") for suffix in ("index", "data-00000-of-00001"))
        # The index is moved last, so that it never refers to missing data.
        with (
            atomic_file(index_file) as new_index,
            atomic_file(data_file) as new_data,
            tempfile.TemporaryDirectory(dir=new_index.parent) as folder,
        ):
            with convert_tensorflow_errors(prefix):
                tensorflow.raw_ops.SaveV2(
                    prefix=f"{folder}/model",
                    tensor_names=list(values),
                    shape_and_slices=[""] * len(values),
                    tensors=list(values.values()),
                )
            os.replace(f"{folder}/model.index", new_index)
            os.replace(f"{folder}/model.data-00000-of-00001", new_data)
