"""HDF5 files are read as they are, and what is not in them is not read."""

from __future__ import annotations

import struct
import tracemalloc

import h5py
import ml_dtypes
import numpy as np
import pytest

from lmzoo.checkpoints.formats.hdf5 import Hdf5File, write_hdf5
from lmzoo.presets import PresetError

DTYPES = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64",
]  # fmt: skip
MB = 1 << 20


def some(dtype: str, *shape: int) -> np.ndarray:
    """Every bit pattern is a value, NaNs too."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    values = np.random.default_rng(1301).integers(0, 2 if dtype == "bool" else 256, count, "uint8")
    return values.view(dtype).reshape(shape)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "weights.hdf5"


def refused(path, message):
    with pytest.raises(PresetError, match=f"{path}.*{message}"):
        Hdf5File(path)


@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip(path, dtype):
    arrays = {"CNN/W_cnn_0": some(dtype, 2, 3, 5, 7), "CNN/b_cnn_0": some(dtype, 7), "code/ünï": some(dtype, 13, 11)}
    write_hdf5(path, arrays.items())
    tensors = Hdf5File(path)
    assert set(tensors.names()) == arrays.keys()
    for name, array in arrays.items():
        read = tensors.read(name)
        assert tensors.dtype(name) == read.dtype.name == dtype
        assert tensors.shape(name) == read.shape == array.shape
        assert read.tobytes() == array.tobytes()
        assert tensors.file_of(name) == path
    with h5py.File(path) as file:
        assert file["CNN/b_cnn_0"][()].tobytes() == arrays["CNN/b_cnn_0"].tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 5)])
def test_shapes(path, shape):
    write_hdf5(path, [("weight", np.full(shape, 17, "int32"))])
    assert Hdf5File(path).shape("weight") == shape
    np.testing.assert_array_equal(Hdf5File(path).read("weight"), np.full(shape, 17, "int32"), strict=True)


def test_layouts_of_arrays(path):
    array = np.arange(77, dtype="float32").reshape(7, 11)
    layouts = {"transposed": array.T, "big": array.astype(">f4"), "strided": array[::2, 1::3]}
    write_hdf5(path, layouts.items())
    tensors = Hdf5File(path)
    for name, expected in layouts.items():
        assert (tensors.dtype(name), tensors.read(name).dtype) == ("float32", np.dtype("float32"))
        np.testing.assert_array_equal(tensors.read(name), expected)


def test_layouts_of_files(path):
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


def test_the_original_file(shared):
    path = shared("fixtures/bilm_tf/lm_weights.hdf5")
    tensors = Hdf5File(path)
    assert tensors.shape("char_embed") == (261, 4)
    assert tensors.shape("RNN_1/RNN/MultiRNNCell/Cell0/LSTMCell/W_0") == (32, 256)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(tensors.read("CNN_proj/W_proj"), file["CNN_proj/W_proj"][()])
    assert sum(int(np.prod(tensors.shape(name))) for name in tensors.names()) == 105_120


def test_writer_refuses(path):
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


def test_one_tensor_in_memory_at_a_time(path):
    shape, count = (MB, 1), 13  # 4 MB each
    tracemalloc.start()
    write_hdf5(path, ((f"layer/{i}", np.full(shape, i, "float32")) for i in range(count)))
    tensors = Hdf5File(path)
    for i in range(count):
        assert tensors.read(f"layer/{i}")[-1, -1] == i
    assert tracemalloc.get_traced_memory()[1] < 10 * MB
    tracemalloc.stop()


@pytest.mark.parametrize("place", range(20))
def test_truncated(path, place):
    write_hdf5(path, [(f"layer/{dtype}", some(dtype, 7, 11)) for dtype in DTYPES])
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * place // 20 or 3])
    refused(path, "is not a whole HDF5 file.*truncated")


@pytest.mark.slow
def test_flipped_bits(path):
    """An error that names the file, or tensors no larger than it: nothing else comes out."""
    write_hdf5(path, [("layer/weight", some("float32", 7, 11)), ("layer/bias", some("float16", 13))])
    data, messages = path.read_bytes(), []
    for place in np.random.default_rng(1301).permutation(len(data))[:800]:
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        path.unlink()  # HDF5 would take it for the one that is still open
        path.write_bytes(changed)
        try:
            tensors = Hdf5File(path)
            assert all(tensors.read(name).nbytes <= len(data) for name in tensors.names())
        except PresetError as error:
            messages.append(str(error))
    assert len(messages) > 50
    assert all(str(path) in message for message in messages)


@pytest.mark.parametrize("content", [b"weights", b"\x89HDF\r\n\x1a\n", b"\x89HDF\r\n\x1a\n" + bytes(500)])
def test_other_files(path, content):
    path.write_bytes(content)
    refused(path, "is not a whole HDF5 file")


def test_pointer_in_place_of_weights(path):
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    refused(path, "Git LFS pointer")
    path.write_text("<!DOCTYPE html>")
    refused(path, "web page")


@pytest.fixture
def other(tmp_path):
    """A file whose contents should not get into a model."""
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["secret"] = np.arange(11, dtype="float32")
    (tmp_path / "values").write_bytes(np.arange(11, dtype="float32").tobytes())
    return tmp_path / "other.hdf5"


@pytest.mark.parametrize("name", ["weight", "group/weight"])
def test_links(path, other, name):
    for link in (
        h5py.ExternalLink(str(other), "secret"),
        h5py.ExternalLink("other.hdf5", "/"),
        h5py.ExternalLink("absent.hdf5", "weight"),
        h5py.SoftLink("/plain"),
        h5py.SoftLink("/absent"),
    ):
        with h5py.File(path, "w") as file:
            file["plain"] = np.ones(3, "float32")
            file[name] = link
        refused(path, f"{name} is a link, which is not followed")


def test_values_elsewhere(path, other):
    with h5py.File(path, "w") as file:
        file.create_dataset("weight", (11,), "float32", external=[(str(other.with_name("values")), 0, 44)])
    refused(path, "weight takes its values from other files")
    layout = h5py.VirtualLayout((11,), "float32")
    layout[:] = h5py.VirtualSource(str(other), "secret", (11,))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("weight", layout)
    refused(path, "weight takes its values from other files")


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
def test_declared_but_not_there(path, shape, options):
    with h5py.File(path, "w") as file:
        file.create_dataset("weight", shape, "float32", **options)
    refused(path, rf"weight \({shape[0]}, {shape[1]}\) needs {shape[0] * shape[1] * 4} bytes")


@pytest.mark.parametrize("beyond", [1, 300, 1 << 40])
def test_values_beyond_the_end(path, beyond):
    with h5py.File(path, "w") as file:
        start = file.create_dataset("weight", data=np.ones((7, 11), "float32")).id.get_offset()
    data = path.read_bytes()
    layout, forged = (struct.pack("<BBQQ", 3, 1, place, 308) for place in (start, len(data) - 308 + beyond))
    assert data.count(layout) == 1
    path.write_bytes(data.replace(layout, forged))
    refused(path, "is not a whole HDF5 file: .*invalid dataset size")


def test_chunks_that_share_their_bytes(path):
    """40 entries of the index lead to the one chunk that the file holds."""
    width, count = 4096, 40
    with h5py.File(path, "w") as file:
        file.create_dataset("weight", (width * count,), "float32", chunks=(width,))[:width] = 1
    data = bytearray(path.read_bytes())
    start = data.index(b"TREE\x01\0\x01\0")
    place = int.from_bytes(data[start + 48 : start + 56], "little")
    assert np.frombuffer(data, "float32", width, place).sum() == width
    entries = b"".join(struct.pack("<IIQQQ", width * 4, 0, width * i, 0, place) for i in range(count))
    data[start + 6] = count
    data[start + 24 : start + 24 + len(entries) + 24] = entries + struct.pack("<IIQQ", 0, 0, width * count, 0)
    path.write_bytes(data)
    with h5py.File(path) as file:
        assert file["weight"][()].sum() == width * count
    refused(path, rf"weight \({width * count},\) needs {4 * width * count} bytes, got {4 * width * count} in a file of")


def test_partly_there(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("weight", (7, 11), "float32", chunks=(2, 3))[:2, :3] = 1
    refused(path, r"weight \(7, 11\) needs 308 bytes, got 24 in")


@pytest.mark.parametrize("options", [{"compression": "gzip"}, {"compression": "lzf"}, {"fletcher32": True}])
def test_compressed(path, options):
    with h5py.File(path, "w") as file:
        file.create_dataset("weight", data=np.zeros((MB, 4), "float32"), **options)
    refused(path, "weight is compressed, which is not read: unpack the file with `h5repack -f NONE`")


def test_what_is_no_number(path):
    for value in (
        "text",
        np.array([b"ab", b"c"]),
        np.ones(3, "complex64"),
        np.zeros(2, [("a", "f4")]),
        h5py.Empty("f4"),
    ):
        with h5py.File(path, "w") as file:
            file["weight"] = value
        refused(path, "weight holds .* expected an array of numbers")
