"""TensorFlow's checkpoints, versions 1 and 2: `prefix.index` and `prefix.data-00000-of-00001`, or several such files.

TensorFlow itself reads and writes them. What it would not report clearly is checked before.
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
from lmzoo.checkpoints.formats.tensor_file import Arrays, Tensor, TensorFile, damage_named
from lmzoo.errors import PresetError
from lmzoo.files.atomic import atomic_file
from lmzoo.files.inside import file_in

if TYPE_CHECKING:
    import tensorflow as tf

# TensorFlow's names are numpy's. No model has weights of the other dtypes (strings, resources, quantized numbers).
_NUMBERS = frozenset({
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool", "complex64", "complex128",
})  # fmt: skip

_BLOCK = 1 << 18  # bytes of an index that have one checksum


class TensorFlowCheckpoint(TensorFile):
    """The tensors of a checkpoint, each checked against its checksum when it is read.

    Tensors that are not numbers (strings, such as `_CHECKPOINTABLE_OBJECT_GRAPH`, and resources) have names and shapes,
    but cannot be read. A tensor that was stored in slices is presented as a whole.

    Args:
        prefix: Common prefix of the files' paths, such as `bert_model.ckpt`, or the path of the index.

    Attributes:
        path: The index.

    Raises:
        PresetError: Naming the file that is missing, truncated, altered or too small for its tensors; or if TensorFlow
            is not installed.

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
        index = Path(f"{os.fspath(prefix).removesuffix('.index')}.index")
        path = file_in(index.parent, index.name)
        check_is_weights(path)
        files = list(_data_files(path))
        common = path.with_suffix("").as_posix()
        if "[" in common or "\\" in common:
            raise PresetError(f"{path}: TensorFlow takes brackets and backslashes for a pattern; rename it.")
        # Not `tf.train.load_checkpoint`: if a directory has the prefix's name, it reads a checkpoint in there.
        open_reader = _tensorflow(path).compat.v1.train.NewCheckpointReader
        with damage_named(f"{path} cannot be read as the index of a TensorFlow checkpoint"):
            self._reader = open_reader(common)
            shapes = self._reader.get_variable_to_shape_map()
            dtypes = self._reader.get_variable_to_dtype_map()
        numbers = [name for name in shapes if dtypes[name].name in _NUMBERS]
        needed = sum(math.prod(shapes[name]) * dtypes[name].size for name in numbers)
        size = sum(file.stat().st_size for file in files)
        # TensorFlow skips a damaged block of the index if there are several.
        has_blocks = path.stat().st_size > _BLOCK and len(numbers) == len(shapes)
        if needed > size or (needed < size and has_blocks):
            raise PresetError(
                f"{path} lists tensors of {needed} bytes, but its data has {size}, in "
                f"{', '.join(file.name for file in files)}. A file is truncated or altered; fetch them again."
            )
        # A dtype that is not of numbers has TensorFlow's name: "string", "resource".
        entries = {name: Tensor(tuple(shapes[name]), dtypes[name].name, path) for name in sorted(shapes)}
        super().__init__(path, entries)

    def read(self, name: str) -> np.ndarray:
        """Return the values of a tensor.

        Raises:
            PresetError: If there is no such tensor, its data was altered, or it does not hold numbers.
        """
        if (dtype := self.dtype(name)) not in _NUMBERS:
            raise PresetError(f"{self.path}: {name!r} is of dtype {dtype}, expected numbers.")
        with damage_named(f"{self.path}: {name!r} cannot be read"):
            return np.asarray(self._reader.get_tensor(name))

    def close(self) -> None:
        vars(self).pop("_reader", None)  # TensorFlow closes the files of a reader that nothing refers to


def _data_files(index: Path) -> Iterator[Path]:
    """Yield the files with the values, each checked; the names of the files that are there give their number."""
    prefix = index.with_suffix("").name
    pattern = re.compile(re.escape(prefix) + r"\.data-\d{5}-of-(\d{5})")
    counts = {match[1] for file in os.listdir(index.parent) if (match := pattern.fullmatch(file))}
    for count in sorted(counts) or ["00001"]:
        for number in range(int(count)):
            file = file_in(index.parent, f"{prefix}.data-{number:05}-of-{count}")
            check_is_weights(file)
            yield file


def _tensorflow(path: str | os.PathLike[str]) -> ModuleType:
    try:
        import tensorflow
    except ImportError as error:
        raise PresetError(
            f"{os.fspath(path)}: only TensorFlow itself reads and writes its checkpoints: `pip install tensorflow`."
        ) from error
    return tensorflow


@contextlib.contextmanager
def system_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn errors of TensorFlow when it writes files into errors of the system.

    Args:
        path: What is written, for messages.

    Raises:
        OSError: In place of TensorFlow's errors.
    """
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        full = errno.ENOSPC if "No space left" in error.message else errno.EIO
        raise OSError(full, f"{os.fspath(path)} cannot be written: {error.message}") from error


def write_tensorflow_checkpoint(prefix: str | os.PathLike[str], tensors: Arrays) -> None:
    """Write a checkpoint, for `tf.train.load_checkpoint` and TensorFlow 1's `Saver`.

    `prefix` is that of the files' paths; missing directories are created. All arrays are held in memory.

    Raises:
        PresetError: If TensorFlow is not installed, two tensors have the same name, or a name is empty.
        OSError: If the files cannot be written.
    """
    tensorflow = _tensorflow(prefix)
    values: dict[str, tf.Tensor] = {}
    with tensorflow.device("CPU:0"):
        for name, array in tensors:
            if not name or name in values:  # an empty name would make TensorFlow abort the process
                raise PresetError(f"{prefix}: each tensor needs a name of its own, got {name!r}.")
            values[name] = tensorflow.convert_to_tensor(array)
        index, data = (Path(f"{os.fspath(prefix)}.{part}") for part in ("index", "data-00000-of-00001"))
        # The data file is moved to its place first, and the index last.
        with (
            atomic_file(index) as new_index,
            atomic_file(data) as new_data,
            tempfile.TemporaryDirectory(dir=new_index.parent) as folder,
        ):
            with system_errors(prefix):
                tensorflow.raw_ops.SaveV2(
                    prefix=f"{folder}/model",
                    tensor_names=list(values),
                    shape_and_slices=[""] * len(values),
                    tensors=list(values.values()),
                )
            os.replace(f"{folder}/model.index", new_index)
            os.replace(f"{folder}/model.data-00000-of-00001", new_data)
