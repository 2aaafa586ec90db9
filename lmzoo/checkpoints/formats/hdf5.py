"""HDF5 files: weights saved by Keras and, for ELMo, by bilm-tf and AllenNLP."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes  # noqa: F401 - teaches numpy the name "bfloat16"
import numpy as np

from lmzoo.checkpoints.formats.sharded import check_is_weights
from lmzoo.checkpoints.formats.tensor_file import Arrays, Tensor, TensorFile, convert_damage_errors
from lmzoo.errors import PresetError
from lmzoo.files.atomic import NO_SPACE_ERRORS, atomic_file, check_room

if TYPE_CHECKING:
    import h5py


SCALE = ".scale"  # suffix of the name under which the scales of an int8 matrix are stored
_BFLOAT16 = "bfloat16"  # HDF5 lacks this dtype: Keras stores the bytes, with this value of the attribute "dtype"
_FLOATS = ("float16", _BFLOAT16, "float32", "float64")
BYTES_OF_METADATA = 4096  # upper bound per tensor; HDF5 writes some of it only when the file is closed


class Hdf5File(TensorFile):
    """The datasets of an HDF5 file by their paths, such as `CNN/W_cnn_0`.

    For safety, some features of HDF5 are forbidden: soft and external links, datasets with values in other files, and
    datasets that are compressed or incompletely written, which let a small file claim to hold a large tensor. bilm-tf,
    AllenNLP and Keras do not use these features.

    Args:
        path: Path of the file.

    Raises:
        PresetError: If the file is missing, truncated or not HDF5, or uses one of the forbidden features.

    Example:

    ```python
    import numpy as np

    from lmzoo.checkpoints.formats.hdf5 import Hdf5File, write_hdf5

    write_hdf5("weights.hdf5", [("CNN_proj/b_proj", np.ones(3, "float32"))])
    Hdf5File("weights.hdf5").read("CNN_proj/b_proj")  # array([1., 1., 1.], dtype=float32)
    ```
    """

    def __init__(self, path: str | Path) -> None:
        import h5py

        path = Path(path)
        check_is_weights(path)
        tensors = {}
        # Close an invalid file at once: while it is open, HDF5 would not notice that it was replaced.
        with convert_damage_errors(f"{path} is not a whole HDF5 file"), contextlib.ExitStack() as stack:
            file = stack.enter_context(h5py.File(path, "r"))
            links: dict[str, object] = {}
            file.visititems_links(links.__setitem__)
            for name, link in links.items():
                if not isinstance(link, h5py.HardLink):
                    raise PresetError(f"{path}: {name} is a link, which is not followed; expected a dataset.")
                if isinstance(item := file[name], h5py.Dataset):
                    _check_dataset(path, name, item)
                    tensors[name] = Tensor(tuple(item.shape), _read_dtype(item).name, path)
            stack.pop_all()
        self._file = file
        super().__init__(path, tensors)

    def read(self, name: str) -> np.ndarray:
        with convert_damage_errors(f"{self.path}: {name} cannot be read"):
            dataset = self._file[name]
            if self.dtype(name) == _BFLOAT16:
                return np.asarray(dataset).view(_BFLOAT16)
            return np.asarray(dataset, dataset.dtype.newbyteorder("="))

    def map(self, name: str) -> np.ndarray:
        """Map a float32 tensor into memory, so that only the values that are used are read.

        A tensor that cannot be mapped, because its dtype differs or its values are not contiguous in the file, is
        read and converted to float32. An int8 tensor with scales (see `quantize_rows`) is multiplied by its scales.

        Raises:
            ValueError: If a tensor with scales is not int8, or does not have one scale per row.
        """
        dataset = self._file[name]
        if name + SCALE in self._file:
            return _multiply_by_scale(name, self.read(name), self._file)
        offset = dataset.id.get_offset()
        if offset is None or dataset.dtype != np.dtype("<f4"):
            return self.read(name).astype("float32")
        return np.memmap(self.path, "<f4", "r", offset, dataset.shape)

    def close(self) -> None:
        self._file.close()


def _read_dtype(dataset: h5py.Dataset) -> np.dtype:
    """Return the dtype of a dataset's values, which is bfloat16 if an attribute written by Keras says so."""
    if dataset.dtype == np.dtype("V2") and dataset.attrs.get("dtype") == _BFLOAT16:
        return np.dtype(_BFLOAT16)
    return dataset.dtype


def _check_dataset(path: Path, name: str, dataset: h5py.Dataset) -> None:
    file_size = path.stat().st_size
    if dataset.external or dataset.is_virtual:
        raise PresetError(f"{path}: {name} takes its values from other files, which are not read.")
    is_number = dataset.dtype.kind in "fiub" or _read_dtype(dataset) == _BFLOAT16
    if dataset.shape is None or not is_number:
        raise PresetError(f"{path}: {name} holds {dataset.dtype}, expected an array of numbers.")
    if dataset.id.get_create_plist().get_nfilters():
        raise PresetError(f"{path}: {name} is compressed, which is not read: unpack the file with `h5repack -f NONE`.")
    stored_bytes = dataset.id.get_storage_size()
    if not dataset.nbytes <= stored_bytes <= file_size:
        raise PresetError(
            f"{path}: {name} {dataset.shape} needs {dataset.nbytes} bytes, got {stored_bytes} in a file of {file_size}."
        )


def write_hdf5(path: str | Path, tensors: Arrays) -> None:
    """Write arrays of numbers to an HDF5 file, with one array in memory at a time.

    Args:
        path: Path of the file.
        tensors: Pairs of the path of a dataset and an array of floats, integers or booleans.

    Raises:
        PresetError: If two datasets have the same path, a path runs through a dataset, or a dtype is not supported.
        OSError: If the file cannot be written.
    """
    import h5py

    with atomic_file(path) as temporary_file, h5py.File(temporary_file, "w") as file:
        for count, (name, array) in enumerate(tensors, 1):
            check_room(temporary_file.parent, array.nbytes + count * BYTES_OF_METADATA)
            if array.dtype.kind not in "fiub":  # excludes bfloat16
                raise PresetError(f"{path}: {name} holds {array.dtype}, which HDF5 does not have.")
            try:
                file.create_dataset(name, data=array)
            except (TypeError, ValueError) as error:
                raise PresetError(f"{path}: {name} cannot be written: {error}.") from error


def convert_to_float16(array: np.ndarray) -> np.ndarray:
    """Return a float32 or float64 array as float16 if all values stay finite, and any other array unchanged."""
    if array.dtype not in ("float32", "float64"):
        return array
    with np.errstate(over="ignore"):
        float16_array = array.astype("float16")
    return float16_array if np.isfinite(float16_array).all() else array


def quantize_rows(array: np.ndarray) -> dict[str, np.ndarray]:
    """Quantize a matrix, and return its int8 values under the key "" and the float32 scales of its rows under `SCALE`.

    Each row is rounded to 255 evenly spaced values, up to its largest absolute value on either side of 0. Vectors,
    integer arrays and arrays with NaN or infinite values are not quantized; `convert_to_float16` converts them instead.
    """
    if array.ndim < 2 or array.dtype not in _FLOATS or not np.isfinite(array).all():
        return {"": convert_to_float16(array)}
    array = array.astype("float32")
    scales = np.abs(array).max(axis=-1, initial=0.0).astype("float32") / 127
    quantized_values = np.rint(array / np.where(scales == 0, 1, scales)[..., None])
    return {"": quantized_values.astype("int8"), SCALE: scales}


def rewrite_in_half_precision(path: Path) -> None:
    """Convert the float arrays in an HDF5 file to float16, and keep its groups and attributes.

    Arrays in bfloat16 and arrays with values beyond the range of float16 stay unchanged. Keras reads the file into
    variables of any dtype.

    Raises:
        OSError: If the file cannot be written; it is then unchanged.
    """
    _rewrite(path, path, lambda name, array, file: {"": convert_to_float16(array)})


def rewrite_in_int8(path: Path) -> None:
    """Convert the finite float matrices in an HDF5 file to int8 with scales, and float vectors to float16 if they fit.

    The scales of a matrix are stored next to it, under its name followed by `SCALE`, so that Keras refuses to read the
    file before it has been decoded (`decode_int8_file`).

    Raises:
        OSError: If the file cannot be written; it is then unchanged.
    """
    _rewrite(path, path, lambda name, array, file: quantize_rows(array))


@contextlib.contextmanager
def decode_int8_file(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary copy of an HDF5 file in which int8 matrices with scales are decoded to float32.

    Raises:
        PresetError: If the disk of the temporary directory is full.
        ValueError: If a matrix with scales is not int8, or does not have one scale per row.
    """

    def decode(name: str, array: np.ndarray, file: h5py.File) -> dict[str, np.ndarray]:
        if name.endswith(SCALE):
            return {}
        if name + SCALE not in file:
            return {"": array}
        return {"": _multiply_by_scale(name, array, file)}

    with tempfile.TemporaryDirectory(prefix="lmzoo-") as folder:
        target = Path(folder, path.name)
        try:
            _rewrite(path, target, decode)
        except OSError as error:
            if error.errno not in NO_SPACE_ERRORS:
                raise
            raise PresetError(
                f"{path} is decoded in {tempfile.gettempdir()}, where the disk is full. Free some room, or set the "
                "environment variable TMPDIR to another directory."
            ) from error
        yield target


def _multiply_by_scale(name: str, array: np.ndarray, file: h5py.File) -> np.ndarray:
    """Return an int8 array as float32, with each row multiplied by its scale from the file.

    Raises:
        ValueError: If the array is not int8, or does not have one scale per row.
    """
    scales = file[name + SCALE][()]
    if array.dtype != "int8" or scales.shape != array.shape[:-1]:
        raise ValueError(f"{name} {array.dtype} {array.shape} does not fit its scales {scales.shape}")
    return array.astype("float32") * scales[..., None].astype("float32")


def _rewrite(
    path: Path, target_path: Path, convert: Callable[[str, np.ndarray, h5py.File], dict[str, np.ndarray]]
) -> None:
    """Write an HDF5 file with converted arrays and the same groups and attributes.

    Args:
        path: File to read.
        target_path: File to write, which may be `path`.
        convert: Function from the name of an array, the array and the file that is read to a dict of arrays to write.
            Each key is a suffix to append to the name; the array with the suffix "" gets the attributes.
    """
    import h5py

    with contextlib.ExitStack() as stack:
        temporary_file = stack.enter_context(atomic_file(target_path))
        file = stack.enter_context(h5py.File(path, "r"))
        check_room(target_path.parent, _compute_decoded_size(file))
        # In the format of HDF5 1.10, each group takes almost a kilobyte less than in the oldest one.
        target = stack.enter_context(h5py.File(temporary_file, "w", libver="v110"))

        def copy_item(name: str, item: h5py.Group | h5py.Dataset) -> None:
            if isinstance(item, h5py.Group):
                target.require_group(name).attrs.update(item.attrs)
                return
            attributes = dict(item.attrs)
            values = item[()]
            if attributes.pop("dtype", None) == _BFLOAT16:
                values = values.view(_BFLOAT16)
            for suffix, array in convert(name, values, file).items():
                dataset = target.create_dataset(name + suffix, data=array)
                if not suffix:
                    dataset.attrs.update(attributes)
                if array.dtype == _BFLOAT16:
                    dataset.attrs["dtype"] = _BFLOAT16

        target.attrs.update(file.attrs)
        file.visititems(copy_item)


def _compute_decoded_size(file: h5py.File) -> int:
    """Return the maximum size, in bytes, of a copy of a file with its int8 matrices decoded to float32."""
    import h5py

    sizes = []

    def add_size(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset):
            sizes.append(item.nbytes * (4 if name + SCALE in file else 1) + BYTES_OF_METADATA)

    file.visititems(add_size)
    return sum(sizes)
