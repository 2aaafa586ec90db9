"""Safetensors files: a single file, or several shards with an index."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes  # noqa: F401 - teaches numpy the name "bfloat16"
import numpy as np
from safetensors import safe_open

from lmzoo.checkpoints.formats.sharded import check_is_weights, tensors_in_files
from lmzoo.checkpoints.formats.tensor_file import Arrays, Tensor, TensorFile, convert_damage_errors
from lmzoo.errors import PresetError
from lmzoo.files.atomic import atomic_file

_NAMES = ("model.safetensors", "model.safetensors.index.json")

# BERT-large needs 50 kB. The safetensors library accepts 100 MB, which take several times as much memory when parsed.
_MAX_HEADER_BYTES = 10_000_000

_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
}  # fmt: skip
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


class SafetensorsFiles(TensorFile):
    """The tensors of a safetensors file, or of a directory with `model.safetensors` or its shards and their index.

    All shards must be in the directory of the index; links that leave it are errors (`files.inside.resolve_inside`).

    Args:
        path: Path of a `*.safetensors` file, or of a directory.

    Raises:
        PresetError: If a file is missing, truncated or not in the format; if a header does not match its values; or if
            the index and the shards list different tensors.

    Example:

    ```python
    import numpy as np

    from lmzoo.checkpoints.formats.safetensors import SafetensorsFiles, write_safetensors

    write_safetensors("model.safetensors", [("bias", np.ones(3, "float32"))])
    SafetensorsFiles("model.safetensors").read("bias")  # array([1., 1., 1.], dtype=float32)
    ```
    """

    def __init__(self, path: str | Path) -> None:
        self._offsets: dict[str, int] = {}  # position of each tensor in its file, in bytes
        super().__init__(Path(path), tensors_in_files(Path(path), _NAMES, self._read_header))

    def _read_header(self, file: Path) -> dict[str, Tensor]:
        """Return the tensors in the header of a file by name, and record their positions.

        Raises:
            PresetError: If the file is missing or damaged, or its header is too long.
        """
        check_is_weights(file)
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if _MAX_HEADER_BYTES < length <= file.stat().st_size - 8:  # the library reports longer headers
                raise PresetError(f"{file} has a header of {length} bytes, expected at most {_MAX_HEADER_BYTES}.")
            with (
                convert_damage_errors(f"{file} is not a whole safetensors file"),
                safe_open(file, framework="numpy") as reader,
            ):
                names: list[str] = reader.keys()  # the library checks the whole header
            header = json.loads(stream.read(length))
        self._offsets |= {name: 8 + length + header[name]["data_offsets"][0] for name in names}
        entries = ((name, header[name]["shape"], header[name]["dtype"]) for name in names)
        return {name: Tensor(tuple(shape), _DTYPES.get(code, code), file) for name, shape, code in entries}

    def read(self, name: str) -> np.ndarray:
        shape, dtype, file = self._tensor(name)
        if dtype not in _CODES:
            raise PresetError(f"{file}: {name!r} holds {dtype}, which cannot be read.")
        # The library maps the file into memory, which would hold the values twice.
        with file.open("rb") as stream:
            stream.seek(self._offsets[name])
            array = np.fromfile(stream, np.dtype(dtype), math.prod(shape))
        if array.size != math.prod(shape):
            raise PresetError(f"{file} has become shorter since it was opened. Fetch it again.")
        return array.reshape(shape)


def write_safetensors(path: str | Path, tensors: Arrays, metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file, with one tensor in memory at a time.

    Args:
        path: Path of the file.
        tensors: Pairs of a name and an array of floats (including bfloat16), integers or booleans.
        metadata: Entries of `__metadata__` in the header; by default `{"format": "pt"}`, which transformers requires.

    Raises:
        PresetError: If two tensors have the same name, or a dtype is not supported.
        OSError: If the file cannot be written.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"} if metadata is None else dict(metadata)}
    # The header precedes the values, but contains their offsets, so the values go to a temporary file first.
    with atomic_file(path) as temporary_file, tempfile.TemporaryFile(dir=temporary_file.parent) as values_file:
        end = 0
        for name, array in tensors:
            if name in header:
                raise PresetError(f"{path}: there are two tensors called {name!r}.")
            if array.dtype.name not in _CODES:
                raise PresetError(f"{path}: {name!r} holds {array.dtype}, expected one of {', '.join(_CODES)}.")
            little_endian_array = array.astype(array.dtype.newbyteorder("<"), copy=False)
            start = end
            end += values_file.write(little_endian_array.reshape(-1).view(np.uint8).data)
            code = _CODES[array.dtype.name]
            header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [start, end]}
        header_bytes = json.dumps(header, ensure_ascii=False).encode()
        header_bytes = header_bytes.ljust(-(-len(header_bytes) // 8) * 8)  # so that values are aligned
        values_file.seek(0)
        with temporary_file.open("wb") as file:
            file.write(len(header_bytes).to_bytes(8, "little") + header_bytes)
            shutil.copyfileobj(values_file, file, 1 << 20)
