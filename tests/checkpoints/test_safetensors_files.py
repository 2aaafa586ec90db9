"""Safetensors are read and written as the library does, and lying headers are refused."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import deserialize
from safetensors import numpy as library

from lmzoo.checkpoints.formats.safetensors import SafetensorsFiles, write_safetensors
from lmzoo.presets import PresetError
from tests.memory import memory_grows_less_than

DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}  # fmt: skip
MB = 1 << 20


def some(dtype: str, *shape: int) -> np.ndarray:
    """Every bit pattern is a value, NaNs too."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    values = np.random.default_rng(1301).integers(0, 2 if dtype == "bool" else 256, count, "uint8")
    return values.view(dtype).reshape(shape)


def all_dtypes() -> dict[str, np.ndarray]:
    return {f"layer.{dtype}": some(dtype, 7, 11) for dtype in DTYPES}


def raw(length: int | None = None, **tensors: object) -> bytes:
    """A file with this header, and 60 bytes of values."""
    text = json.dumps(tensors).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + bytes(60)


def tensor(shape: object, start: object, end: object, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip(tmp_path, dtype):
    path, array = tmp_path / "model.safetensors", some(dtype, 7, 11)
    write_safetensors(path, [("odd", some("bool", 3)), ("weight", array), ("ünï/код", array[:2, :5])])
    tensors = SafetensorsFiles(path)
    assert set(tensors.names()) == {"odd", "weight", "ünï/код"}
    for name, expected in (("weight", array), ("ünï/код", array[:2, :5])):
        read = tensors.read(name)
        assert tensors.dtype(name) == read.dtype.name == dtype
        assert tensors.shape(name) == read.shape == expected.shape
        assert read.tobytes() == expected.tobytes()
        assert tensors.file_of(name) == path
    stored = dict(deserialize(path.read_bytes()))["weight"]
    assert (stored["dtype"], tuple(stored["shape"])) == (DTYPES[dtype], (7, 11))
    assert bytes(stored["data"]) == array.tobytes()


def test_what_the_library_writes_is_read(tmp_path):
    path, arrays = tmp_path / "model.safetensors", all_dtypes()
    library.save_file(arrays, path, metadata={"format": "pt"})
    tensors = SafetensorsFiles(path)
    assert set(tensors.names()) == arrays.keys()
    for name, array in arrays.items():
        assert tensors.dtype(name) == array.dtype.name
        assert tensors.read(name).tobytes() == array.tobytes()


def test_writer_agrees_with_the_library(tmp_path):
    arrays = {"b": some("float32", 7, 11), "a": some("float32", 13)}
    write_safetensors(tmp_path / "ours", arrays.items())
    library.save_file(arrays, tmp_path / "theirs", metadata={"format": "pt"})

    def header(name: str) -> dict:
        data = (tmp_path / name).read_bytes()
        length = int.from_bytes(data[:8], "little")
        assert length % 8 == 0
        return {key: {**value, "data_offsets": 0} for key, value in json.loads(data[8 : 8 + length]).items()}

    assert header("ours") == header("theirs")
    assert header("ours")["__metadata__"]["format"] == "pt"
    write_safetensors(tmp_path / "ours", arrays.items(), metadata={"by": "lmzoo"})
    assert header("ours")["__metadata__"] == {"by": "lmzoo", "data_offsets": 0}


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 5), (2, 3, 5, 7)])
def test_shapes(tmp_path, shape):
    write_safetensors(tmp_path / "x", [("weight", np.full(shape, 17, "int32"))])
    read = SafetensorsFiles(tmp_path / "x")
    assert read.shape("weight") == shape
    np.testing.assert_array_equal(read.read("weight"), np.full(shape, 17, "int32"), strict=True)


def test_layouts_of_arrays(tmp_path):
    array = np.arange(77, dtype="float32").reshape(7, 11)
    layouts = {"transposed": array.T, "big": array.astype(">f4"), "strided": array[::2, 1::3]}
    write_safetensors(tmp_path / "x", layouts.items())
    for name, expected in layouts.items():
        np.testing.assert_array_equal(SafetensorsFiles(tmp_path / "x").read(name), expected)


def test_file_without_tensors(tmp_path):
    write_safetensors(tmp_path / "x", [])
    assert list(SafetensorsFiles(tmp_path / "x").names()) == []


def test_writer_refuses(tmp_path):
    path = tmp_path / "model.safetensors"
    write_safetensors(path, [("old", np.ones(3, "float32"))])
    twice = [("weight", np.ones(3, "float32")), ("weight", np.ones(5, "float32"))]
    with pytest.raises(PresetError, match=f"{path}: there are two tensors called 'weight'"):
        write_safetensors(path, twice)
    with pytest.raises(PresetError, match="two tensors called '__metadata__'"):
        write_safetensors(path, [("__metadata__", np.ones(3, "float32"))])
    for array in (np.ones(3, "complex64"), np.array(["a"]), np.ones(3, ml_dtypes.float8_e5m2)):
        with pytest.raises(PresetError, match=f"'weight' holds {array.dtype}, expected one of .*bfloat16"):
            write_safetensors(path, [("weight", array)])
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert list(SafetensorsFiles(path).names()) == ["old"]


def test_a_file_is_replaced_and_not_written_over(tmp_path):
    path = tmp_path / "model.safetensors"
    write_safetensors(path, [("old", np.ones(3, "float32"))])
    (tmp_path / "link").hardlink_to(path)
    write_safetensors(path, [("new", np.ones(5, "float32"))])
    assert list(SafetensorsFiles(path).names()) == ["new"]
    assert list(SafetensorsFiles(tmp_path / "link").names()) == ["old"]


def test_one_tensor_in_memory_at_a_time(tmp_path):
    path, shape, count = tmp_path / "x", (MB, 1), 13  # 4 MB each
    tracemalloc.start()
    write_safetensors(path, ((f"layer.{i}", np.full(shape, i, "float32")) for i in range(count)))
    assert tracemalloc.get_traced_memory()[1] < 10 * MB
    tracemalloc.reset_peak()
    tensors = SafetensorsFiles(path)
    for i in range(count):
        assert tensors.read(f"layer.{i}")[-1, -1] == i
    assert tracemalloc.get_traced_memory()[1] < 10 * MB
    tracemalloc.stop()


def test_what_was_read_does_not_stay_in_memory(tmp_path):
    path = tmp_path / "x"
    write_safetensors(path, [("weight", np.ones((MB, 2), "float32"))])
    tensors = SafetensorsFiles(path)
    tensors.read("weight")
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_dtypes_that_are_not_read(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(raw(weight=tensor([3, 20], 0, 60, "F8_E4M3")))
    tensors = SafetensorsFiles(path)
    assert tensors.dtype("weight") == "F8_E4M3"
    with pytest.raises(PresetError, match=f"{path}: 'weight' holds F8_E4M3"):
        tensors.read("weight")


@pytest.mark.parametrize("place", range(20))
def test_truncated(tmp_path, place):
    path = tmp_path / "model.safetensors"
    write_safetensors(path, all_dtypes().items())
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * place // 20 or 3])
    with pytest.raises(PresetError, match=f"{path}.*truncated"):
        SafetensorsFiles(path)


def test_one_byte_more(tmp_path):
    path = tmp_path / "model.safetensors"
    write_safetensors(path, all_dtypes().items())
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(PresetError, match=f"{path} is not a whole safetensors file"):
        SafetensorsFiles(path)


def test_flipped_bits_of_the_header(tmp_path):
    """Either an error or, where a name or a number of equal bytes changed, tensors that are in the file."""
    path = tmp_path / "model.safetensors"
    write_safetensors(path, [("weight", some("float32", 7, 11)), ("bias", some("float16", 13))])
    data, messages = path.read_bytes(), []
    end = 8 + int.from_bytes(data[:8], "little")
    for place in range(end):
        for bit in (1, 32, 128):
            changed = bytearray(data)
            changed[place] ^= bit
            path.write_bytes(changed)
            try:
                tensors = SafetensorsFiles(path)
            except PresetError as error:
                messages.append(str(error))
            else:
                assert sum(tensors.read(name).nbytes for name in tensors.names()) <= len(data)
    assert len(messages) > end
    assert all(str(path) in message for message in messages)


HOSTILE = {
    "length beyond the file": raw(10_000),
    "length of exabytes": raw(1 << 63),
    "length of all bits": raw((1 << 64) - 1),
    "length of 0": raw(0, weight=tensor([15], 0, 60)),
    "length of 200 MB": b"".join([(200 * MB).to_bytes(8, "little"), b'{"', b" " * 1000]),
    "not JSON": (60).to_bytes(8, "little") + b"\x80\x02}q\x00." * 10 + bytes(60),
    "not UTF-8": (4).to_bytes(8, "little") + b'{"\xff"' + bytes(60),
    "a list": (2).to_bytes(8, "little") + b"[]" + bytes(60),
    "nested without end": (50_000).to_bytes(8, "little") + b'{"a":' * 10_000,
    "no offsets": raw(weight={"dtype": "F32", "shape": [15]}),
    "a terabyte": raw(weight=tensor([1 << 20, 1 << 18], 0, 1 << 40)),
    "a terabyte in 60 bytes": raw(weight=tensor([1 << 20, 1 << 18], 0, 60)),
    "a shape that overflows": raw(weight=tensor([1 << 62, 16], 0, 60)),
    "a shape that overflows to 60": raw(weight=tensor([(1 << 64) - 1, (1 << 64) - 15], 0, 60)),
    "a negative shape": raw(weight=tensor([-3, -5], 0, 60)),
    "a fraction": raw(weight=tensor([1.5, 10], 0, 60)),
    "a shape beyond 64 bits": raw(weight=tensor([1 << 65], 0, 60)),
    "negative offsets": raw(weight=tensor([15], -60, 0)),
    "reversed offsets": raw(weight=tensor([15], 60, 0)),
    "offsets beyond the file": raw(weight=tensor([15], 8, 68)),
    "overlap": raw(weight=tensor([10], 0, 40), bias=tensor([10], 20, 60)),
    "the same bytes twice": raw(weight=tensor([15], 0, 60), bias=tensor([15], 0, 60)),
    "a hole": raw(weight=tensor([5], 0, 20), bias=tensor([5], 40, 60)),
    "bytes left over": raw(weight=tensor([14], 0, 56)),
    "another size than the shape's": raw(weight=tensor([7, 2], 0, 60)),
    "unknown dtype": raw(weight=tensor([15], 0, 60, "F99")),
    "metadata of numbers": raw(__metadata__={"a": 3}, weight=tensor([15], 0, 60)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_headers_that_lie(tmp_path, name):
    (tmp_path / name).write_bytes(HOSTILE[name])
    costs_nothing(tmp_path / name)


@pytest.mark.parametrize("names", [True, False])
def test_headers_without_end(tmp_path, names):
    entry = b'"%08x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},'
    body = b"".join(entry % i for i in range(20 * MB // 60)) if names else b" " * 20 * MB
    body = b"{" + body.removesuffix(b",") + b"}"
    (tmp_path / "x").write_bytes(len(body).to_bytes(8, "little") + body)
    costs_nothing(tmp_path / "x")


def costs_nothing(path: Path) -> None:
    start = time.perf_counter()
    with memory_grows_less_than(20 * MB), pytest.raises(PresetError, match=f"{path} "):
        SafetensorsFiles(path)
    assert time.perf_counter() - start < 2
