"""HDF5 files: tensors are read bit by bit, and files that are damaged or malicious are refused."""

from __future__ import annotations

import struct
import tracemalloc

import h5py
import ml_dtypes
import numpy as np
import pytest

from lmzoo.checkpoints.formats.hdf5 import Hdf5File, write_hdf5
from lmzoo.presets import PresetError
from tests.checkpoints.random_arrays import random_bits

DTYPES = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64",
]  # fmt: skip
MB = 1 << 20


@pytest.fixture
def path(tmp_path):
    return tmp_path / "weights.hdf5"


def assert_refused(path, message):
    with pytest.raises(PresetError, match=f"{path}.*{message}"):
        Hdf5File(path)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_written_and_read(path, dtype):
    arrays = {
        "CNN/W_cnn_0": random_bits(dtype, 2, 3, 5, 7),
        "CNN/b_cnn_0": random_bits(dtype, 7),
        "code/ünï": random_bits(dtype, 13, 11),
    }
    write_hdf5(path, arrays.items())
    tensors = Hdf5File(path)
    assert set(tensors.names()) == arrays.keys()
    for name, array in arrays.items():
        values = tensors.read(name)
        assert tensors.dtype(name) == values.dtype.name == dtype
        assert tensors.shape(name) == values.shape == array.shape
        assert values.tobytes() == array.tobytes()
        assert tensors.file_of(name) == path
    with h5py.File(path) as file:
        assert file["CNN/b_cnn_0"][()].tobytes() == arrays["CNN/b_cnn_0"].tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 5)])
def test_every_shape_is_written_and_read(path, shape):
    write_hdf5(path, [("weight", np.full(shape, 17, "int32"))])
    assert Hdf5File(path).shape("weight") == shape
    np.testing.assert_array_equal(Hdf5File(path).read("weight"), np.full(shape, 17, "int32"), strict=True)


def test_arrays_of_any_layout_are_written(path):
    array = np.arange(77, dtype="float32").reshape(7, 11)
    layouts = {"transposed": array.T, "big": array.astype(">f4"), "strided": array[::2, 1::3]}
    write_hdf5(path, layouts.items())
    tensors = Hdf5File(path)
    for name, expected in layouts.items():
        assert (tensors.dtype(name), tensors.read(name).dtype) == ("float32", np.dtype("float32"))
        np.testing.assert_array_equal(tensors.read(name), expected)


@pytest.mark.parametrize("shape", [(), (7, 11)])
def test_bfloat16_of_keras_is_read(path, shape):
    """HDF5 lacks the dtype: Keras writes the bytes, and an attribute."""
    array = random_bits("bfloat16", *shape)
    with h5py.File(path, "w") as file:
        file.create_dataset("weight", data=array).attrs["dtype"] = "bfloat16"
    tensors = Hdf5File(path)
    values = tensors.read("weight")
    assert tensors.dtype("weight") == values.dtype.name == "bfloat16"
    assert tensors.shape("weight") == values.shape == shape
    assert values.tobytes() == array.tobytes()
    np.testing.assert_array_equal(tensors.map("weight"), array.astype("float32"), strict=True)


def test_files_of_any_layout_are_read(path):
    array = np.arange(77, dtype="float32").reshape(7, 11)
    with h5py.File(path, "w", libver="latest", userblock_size=512) as file:
        file["plain"] = array
        file.create_dataset("chunked", data=array, chunks=(2, 3))
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_layout(h5py.h5d.COMPACT)
        small = h5py.h5d.create(file.id, b"compact", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((7, 11)), properties)
        small.write(h5py.h5s.ALL, h5py.h5s.ALL, array)
        file["twice"] = file["plain"]
        file.create_group("nothing")
        file["kind"] = np.dtype("float32")
        file["within/itself"] = file["/"]
    tensors = Hdf5File(path)
    assert {"plain", "chunked", "compact", "twice"} == set(tensors.names())
    for name in tensors.names():
        np.testing.assert_array_equal(tensors.read(name), array)


def test_a_file_of_bilm_tf_is_read(shared):
    path = shared("fixtures/bilm_tf/lm_weights.hdf5")
    tensors = Hdf5File(path)
    assert tensors.shape("char_embed") == (261, 4)
    assert tensors.shape("RNN_1/RNN/MultiRNNCell/Cell0/LSTMCell/W_0") == (32, 256)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(tensors.read("CNN_proj/W_proj"), file["CNN_proj/W_proj"][()])
    assert sum(int(np.prod(tensors.shape(name))) for name in tensors.names()) == 105_120


def test_unsupported_tensors_are_not_written(path):
    write_hdf5(path, [("old", np.ones(3, "float32"))])
    ones = np.ones(3, "float32")
    for tensors, message in (
        ([("weight", ones), ("weight", ones)], "weight cannot be written"),
        ([("weight", ones), ("weight/inner", ones)], "weight/inner cannot be written"),
        ([("weight", ones.astype(ml_dtypes.bfloat16))], "weight holds bfloat16"),
        ([("weight", np.array(["a"]))], "weight holds <U1"),
        ([("weight", ones.astype("complex64"))], "weight holds complex64"),
    ):
        with pytest.raises(PresetError, match=f"{path}: {message}"):
            write_hdf5(path, tensors)
    assert list(path.parent.iterdir()) == [path]
    assert list(Hdf5File(path).names()) == ["old"]


def test_memory_holds_one_tensor_at_a_time(path):
    shape, count = (MB, 1), 13  # 4 MB each
    tracemalloc.start()
    write_hdf5(path, ((f"layer/{i}", np.full(shape, i, "float32")) for i in range(count)))
    tensors = Hdf5File(path)
    for i in range(count):
        assert tensors.read(f"layer/{i}")[-1, -1] == i
    assert tracemalloc.get_traced_memory()[1] < 10 * MB
    tracemalloc.stop()


def test_truncated_files_are_refused(path):
    write_hdf5(path, [(f"layer/{dtype}", random_bits(dtype, 7, 11)) for dtype in DTYPES])
    data = path.read_bytes()
    for twentieth in range(20):
        path.write_bytes(data[: len(data) * twentieth // 20 or 3])
        assert_refused(path, "is not a whole HDF5 file.*truncated")


@pytest.mark.parametrize("content", [b"weights", b"\x89HDF\r\n\x1a\n", b"\x89HDF\r\n\x1a\n" + bytes(500)])
def test_other_files_are_refused(path, content):
    path.write_bytes(content)
    assert_refused(path, "is not a whole HDF5 file")


def test_a_git_lfs_pointer_is_named(path):
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert_refused(path, "Git LFS pointer")


@pytest.fixture
def secret_file(tmp_path):
    """Return a file whose contents must not get into a model."""
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["secret"] = np.arange(11, dtype="float32")
    (tmp_path / "values").write_bytes(np.arange(11, dtype="float32").tobytes())
    return tmp_path / "other.hdf5"


@pytest.mark.parametrize("name", ["weight", "group/weight"])
def test_links_are_not_followed(path, secret_file, name):
    for link in (
        h5py.ExternalLink(str(secret_file), "secret"),
        h5py.ExternalLink("other.hdf5", "/"),
        h5py.ExternalLink("absent.hdf5", "weight"),
        h5py.SoftLink("/plain"),
        h5py.SoftLink("/absent"),
    ):
        with h5py.File(path, "w") as file:
            file["plain"] = np.ones(3, "float32")
            file[name] = link
        assert_refused(path, f"{name} is a link, which is not followed")


def test_values_in_other_files_are_not_read(path, secret_file):
    with h5py.File(path, "w") as file:
        file.create_dataset("weight", (11,), "float32", external=[(str(secret_file.with_name("values")), 0, 44)])
    assert_refused(path, "weight takes its values from other files")
    layout = h5py.VirtualLayout((11,), "float32")
    layout[:] = h5py.VirtualSource(str(secret_file), "secret", (11,))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("weight", layout)
    assert_refused(path, "weight takes its values from other files")


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((1 << 20, 1 << 20), {}),
        ((1 << 20, 1 << 20), {"chunks": (7, 11)}),
        ((7, 11), {}),  # never written: the library would make up zeros
        ((7, 11), {"chunks": (2, 3)}),
        ((7, 11), {"maxshape": (None, None), "chunks": (1 << 14, 1 << 14)}),
    ],
)
def test_missing_values_are_refused(path, shape, options):
    with h5py.File(path, "w") as file:
        file.create_dataset("weight", shape, "float32", **options)
    assert_refused(path, rf"weight \({shape[0]}, {shape[1]}\) needs {shape[0] * shape[1] * 4} bytes")


@pytest.mark.parametrize("beyond", [1, 300, 1 << 40])
def test_values_beyond_the_end_are_refused(path, beyond):
    with h5py.File(path, "w") as file:
        start = file.create_dataset("weight", data=np.ones((7, 11), "float32")).id.get_offset()
    data = path.read_bytes()
    layout, forged = (struct.pack("<BBQQ", 3, 1, offset, 308) for offset in (start, len(data) - 308 + beyond))
    assert data.count(layout) == 1
    path.write_bytes(data.replace(layout, forged))
    assert_refused(path, "is not a whole HDF5 file: .*invalid dataset size")


def test_chunks_must_not_share_their_bytes(path):
    """40 entries of the index lead to the one chunk that the file holds."""
    width, count = 4096, 40
    with h5py.File(path, "w") as file:
        file.create_dataset("weight", (width * count,), "float32", chunks=(width,))[:width] = 1
    data = bytearray(path.read_bytes())
    start = data.index(b"TREE\x01\0\x01\0")
    chunk_offset = int.from_bytes(data[start + 48 : start + 56], "little")
    assert np.frombuffer(data, "float32", width, chunk_offset).sum() == width
    entries = b"".join(struct.pack("<IIQQQ", width * 4, 0, width * i, 0, chunk_offset) for i in range(count))
    data[start + 6] = count
    data[start + 24 : start + 24 + len(entries) + 24] = entries + struct.pack("<IIQQ", 0, 0, width * count, 0)
    path.write_bytes(data)
    with h5py.File(path) as file:
        assert file["weight"][()].sum() == width * count
    assert_refused(
        path, rf"weight \({width * count},\) needs {4 * width * count} bytes, got {4 * width * count} in a file of"
    )


def test_partly_written_values_are_refused(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("weight", (7, 11), "float32", chunks=(2, 3))[:2, :3] = 1
    assert_refused(path, r"weight \(7, 11\) needs 308 bytes, got 24 in")


@pytest.mark.parametrize("options", [{"compression": "gzip"}, {"compression": "lzf"}, {"fletcher32": True}])
def test_compressed_files_are_refused(path, options):
    with h5py.File(path, "w") as file:
        file.create_dataset("weight", data=np.zeros((MB, 4), "float32"), **options)
    assert_refused(path, "weight is compressed, which is not read: unpack the file with `h5repack -f NONE`")


def test_only_numbers_are_read(path):
    for value in (
        "text",
        np.array([b"ab", b"c"]),
        np.ones(3, "complex64"),
        np.zeros(2, [("a", "f4")]),
        np.ones(3, ml_dtypes.bfloat16),  # without Keras' attribute
        h5py.Empty("f4"),
    ):
        with h5py.File(path, "w") as file:
            file["weight"] = value
        assert_refused(path, "weight holds .* expected an array of numbers")
