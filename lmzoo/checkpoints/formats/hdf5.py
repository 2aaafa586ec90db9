"""HDF5, the format of bilm-tf's and AllenNLP's ELMo and of Keras' weights."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lmzoo.checkpoints.formats.sharded import check_is_weights
from lmzoo.checkpoints.formats.tensor_file import Arrays, Tensor, TensorFile, damage_named
from lmzoo.errors import PresetError
from lmzoo.files.atomic import atomic_file, check_room

if TYPE_CHECKING:
    import h5py


BYTES_OF_METADATA = 4096  # for each tensor in a file, at most; part of them is written when the file is closed


class Hdf5File(TensorFile):
    """The datasets of an HDF5 file by their paths, such as `CNN/W_cnn_0`.

    Refused are all links but hard ones (which cannot leave the file), datasets that take their values from other files,
    and datasets that are compressed or not written in full, so that a small file cannot claim to hold a large tensor.
    bilm-tf, AllenNLP and Keras write none of these.

    Args:
        path: The file.

    Raises:
        PresetError: If it is missing, truncated or not HDF5, or holds one of the things above.

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
        # A refused file is closed at once: while it is open, HDF5 would not notice that it was replaced.
        with damage_named(f"{path} is not a whole HDF5 file"), contextlib.ExitStack() as stack:
            file = stack.enter_context(h5py.File(path, "r"))
            links: dict[str, object] = {}
            file.visititems_links(links.__setitem__)
            for name, link in links.items():
                if not isinstance(link, h5py.HardLink):
                    raise PresetError(f"{path}: {name} is a link, which is not followed; expected a dataset.")
                if isinstance(item := file[name], h5py.Dataset):
                    _check(path, name, item)
                    tensors[name] = Tensor(tuple(item.shape), item.dtype.name, path)
            stack.pop_all()
        self._file = file
        super().__init__(path, tensors)

    def read(self, name: str) -> np.ndarray:
        with damage_named(f"{self.path}: {name} cannot be read"):
            dataset = self._file[name]
            return np.asarray(dataset, dataset.dtype.newbyteorder("="))

    def close(self) -> None:
        self._file.close()


def _check(path: Path, name: str, dataset: h5py.Dataset) -> None:
    size = path.stat().st_size
    if dataset.external or dataset.is_virtual:
        raise PresetError(f"{path}: {name} takes its values from other files, which are not read.")
    if dataset.shape is None or dataset.dtype.kind not in "fiub":
        raise PresetError(f"{path}: {name} holds {dataset.dtype}, expected an array of numbers.")
    if dataset.id.get_create_plist().get_nfilters():
        raise PresetError(f"{path}: {name} is compressed, which is not read: unpack the file with `h5repack -f NONE`.")
    stored = dataset.id.get_storage_size()
    if not dataset.nbytes <= stored <= size:
        raise PresetError(
            f"{path}: {name} {dataset.shape} needs {dataset.nbytes} bytes, got {stored} in a file of {size}."
        )


def write_hdf5(path: str | Path, tensors: Arrays) -> None:
    """Write arrays of floats or integers by their datasets' paths, with one of them in memory at a time.

    Raises:
        PresetError: If two datasets have the same path, a path leads through a dataset, or HDF5 does not have a dtype.
        OSError: If the file cannot be written.
    """
    import h5py

    with atomic_file(path) as temporary, h5py.File(temporary, "w") as file:
        for count, (name, array) in enumerate(tensors, 1):
            check_room(temporary.parent, array.nbytes + count * BYTES_OF_METADATA)
            if array.dtype.kind not in "fiub":  # which bfloat16 is not
                raise PresetError(f"{path}: {name} holds {array.dtype}, which HDF5 does not have.")
            try:
                file.create_dataset(name, data=array)
            except (TypeError, ValueError) as error:
                raise PresetError(f"{path}: {name} cannot be written: {error}.") from error


def in_half_precision(array: np.ndarray) -> np.ndarray:
    """Return floats as float16, or the array itself if it holds other numbers or some beyond that range."""
    if array.dtype not in ("float32", "float64"):
        return array
    with np.errstate(over="ignore"):
        half = array.astype("float16")
    return half if np.isfinite(half).all() else array


def rewrite_in_half_precision(path: Path) -> None:
    """Replace an HDF5 file by one with the same groups and attributes whose arrays are in half precision.

    Keras reads such a file into variables of any dtype.

    Raises:
        OSError: If the file cannot be written; it stays as it was.
    """
    import h5py

    check_room(path.parent, path.stat().st_size)
    with atomic_file(path) as temporary, h5py.File(path, "r") as file, h5py.File(temporary, "w") as target:

        def copy(name: str, item: h5py.Group | h5py.Dataset) -> None:
            if isinstance(item, h5py.Dataset):
                copied = target.create_dataset(name, data=in_half_precision(item[()]))
            else:
                copied = target.require_group(name)
            copied.attrs.update(item.attrs)

        target.attrs.update(file.attrs)
        file.visititems(copy)
