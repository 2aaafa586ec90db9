"""Safetensors files are read and written as the library does, and malicious headers are refused."""

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
from tests.checkpoints.random_arrays import random_bits
from tests.memory import memory_grows_less_than

DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}  # fmt: skip
MB = 1 << 20


def make_tensors() -> dict[str, np.ndarray]:
    return {f"layer.{dtype}": random_bits(dtype, 7, 11) for dtype in DTYPES}


def forge_file(length: int | None = None, **tensors: object) -> bytes:
    """Return a file with this header, and 60 bytes of values."""
    text = json.dumps(tensors).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + bytes(60)


def describe(shape: object, start: object, end: object, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_written_and_read(tmp_path, dtype):
    path, array = tmp_path / "model.safetensors", random_bits(dtype, 7, 11)
    write_safetensors(path, [("odd", random_bits("bool", 3)), ("weight", array), ("ünï/код", array[:2, :5])])
    tensors = SafetensorsFiles(path)
    assert set(tensors.names()) == {"odd", "weight", "ünï/код"}
    for name, expected in (("weight", array), ("ünï/код", array[:2, :5])):
        values = tensors.read(name)
        assert tensors.dtype(name) == values.dtype.name == dtype
        assert tensors.shape(name) == values.shape == expected.shape
        assert values.tobytes() == expected.tobytes()
        assert tensors.file_of(name) == path
    stored = dict(deserialize(path.read_bytes()))["weight"]
    assert (stored["dtype"], tuple(stored["shape"])) == (DTYPES[dtype], (7, 11))
    assert bytes(stored["data"]) == array.tobytes()


def test_files_of_the_library_are_read(tmp_path):
    path, arrays = tmp_path / "model.safetensors", make_tensors()
    library.save_file(arrays, path, metadata={"format": "pt"})
    tensors = SafetensorsFiles(path)
    assert set(tensors.names()) == arrays.keys()
    for name, array in arrays.items():
        assert tensors.dtype(name) == array.dtype.name
        assert tensors.read(name).tobytes() == array.tobytes()


def test_headers_equal_those_of_the_library(tmp_path):
    arrays = {"b": random_bits("float32", 7, 11), "a": random_bits("float32", 13)}
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
def test_every_shape_is_written_and_read(tmp_path, shape):
    write_safetensors(tmp_path / "x", [("weight", np.full(shape, 17, "int32"))])
    tensors = SafetensorsFiles(tmp_path / "x")
    assert tensors.shape("weight") == shape
    np.testing.assert_array_equal(tensors.read("weight"), np.full(shape, 17, "int32"), strict=True)


def test_arrays_of_any_layout_are_written(tmp_path):
    array = np.arange(77, dtype="float32").reshape(7, 11)
    layouts = {"transposed": array.T, "big": array.astype(">f4"), "strided": array[::2, 1::3]}
    write_safetensors(tmp_path / "x", layouts.items())
    for name, expected in layouts.items():
        np.testing.assert_array_equal(SafetensorsFiles(tmp_path / "x").read(name), expected)


def test_a_file_may_have_no_tensors(tmp_path):
    write_safetensors(tmp_path / "x", [])
    assert list(SafetensorsFiles(tmp_path / "x").names()) == []


def test_unsupported_tensors_are_not_written(tmp_path):
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


def test_a_file_is_replaced_and_not_overwritten(tmp_path):
    path = tmp_path / "model.safetensors"
    write_safetensors(path, [("old", np.ones(3, "float32"))])
    (tmp_path / "link").hardlink_to(path)
    write_safetensors(path, [("new", np.ones(5, "float32"))])
    assert list(SafetensorsFiles(path).names()) == ["new"]
    assert list(SafetensorsFiles(tmp_path / "link").names()) == ["old"]


def test_memory_holds_one_tensor_at_a_time(tmp_path):
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


def test_values_do_not_stay_in_memory(tmp_path):
    path = tmp_path / "x"
    write_safetensors(path, [("weight", np.ones((MB, 2), "float32"))])
    tensors = SafetensorsFiles(path)
    tensors.read("weight")
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_unsupported_dtypes_are_not_read(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(forge_file(weight=describe([3, 20], 0, 60, "F8_E4M3")))
    tensors = SafetensorsFiles(path)
    assert tensors.dtype("weight") == "F8_E4M3"
    with pytest.raises(PresetError, match=f"{path}: 'weight' holds F8_E4M3"):
        tensors.read("weight")


def test_truncated_and_longer_files_are_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    write_safetensors(path, make_tensors().items())
    data = path.read_bytes()
    for twentieth in range(20):
        path.write_bytes(data[: len(data) * twentieth // 20 or 3])
        with pytest.raises(PresetError, match=f"{path}.*truncated"):
            SafetensorsFiles(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(PresetError, match=f"{path} is not a whole safetensors file"):
        SafetensorsFiles(path)


def test_flipped_bits_of_the_header_cannot_enlarge_tensors(tmp_path):
    """If a name or an equal size changed, the tensors are in the file; otherwise it is an error."""
    path = tmp_path / "model.safetensors"
    write_safetensors(path, [("weight", random_bits("float32", 7, 11)), ("bias", random_bits("float16", 13))])
    data, messages = path.read_bytes(), []
    end = 8 + int.from_bytes(data[:8], "little")
    for offset in range(end):
        for bit in (1, 32, 128):
            changed = bytearray(data)
            changed[offset] ^= bit
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
    "length beyond the file": forge_file(10_000),
    "length of exabytes": forge_file(1 << 63),
    "length of all bits": forge_file((1 << 64) - 1),
    "length of 0": forge_file(0, weight=describe([15], 0, 60)),
    "length of 200 MB": b"".join([(200 * MB).to_bytes(8, "little"), b'{"', b" " * 1000]),
    "not JSON": (60).to_bytes(8, "little") + b"\x80\x02}q\x00." * 10 + bytes(60),
    "not UTF-8": (4).to_bytes(8, "little") + b'{"\xff"' + bytes(60),
    "a list": (2).to_bytes(8, "little") + b"[]" + bytes(60),
    "nested without end": (50_000).to_bytes(8, "little") + b'{"a":' * 10_000,
    "no offsets": forge_file(weight={"dtype": "F32", "shape": [15]}),
    "a terabyte": forge_file(weight=describe([1 << 20, 1 << 18], 0, 1 << 40)),
    "a terabyte in 60 bytes": forge_file(weight=describe([1 << 20, 1 << 18], 0, 60)),
    "a shape that overflows": forge_file(weight=describe([1 << 62, 16], 0, 60)),
    "a shape that overflows to 60": forge_file(weight=describe([(1 << 64) - 1, (1 << 64) - 15], 0, 60)),
    "a negative shape": forge_file(weight=describe([-3, -5], 0, 60)),
    "a fraction": forge_file(weight=describe([1.5, 10], 0, 60)),
    "a shape beyond 64 bits": forge_file(weight=describe([1 << 65], 0, 60)),
    "negative offsets": forge_file(weight=describe([15], -60, 0)),
    "reversed offsets": forge_file(weight=describe([15], 60, 0)),
    "offsets beyond the file": forge_file(weight=describe([15], 8, 68)),
    "overlap": forge_file(weight=describe([10], 0, 40), bias=describe([10], 20, 60)),
    "the same bytes twice": forge_file(weight=describe([15], 0, 60), bias=describe([15], 0, 60)),
    "a hole": forge_file(weight=describe([5], 0, 20), bias=describe([5], 40, 60)),
    "bytes left over": forge_file(weight=describe([14], 0, 56)),
    "another size than the shape's": forge_file(weight=describe([7, 2], 0, 60)),
    "unknown dtype": forge_file(weight=describe([15], 0, 60, "F99")),
    "metadata of numbers": forge_file(__metadata__={"a": 3}, weight=describe([15], 0, 60)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_false_headers_are_refused_at_no_cost(tmp_path, name):
    (tmp_path / name).write_bytes(HOSTILE[name])
    assert_refused_at_no_cost(tmp_path / name)


@pytest.mark.parametrize("names", [True, False])
def test_endless_headers_are_refused_at_no_cost(tmp_path, names):
    entry = b'"%08x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},'
    body = b"".join(entry % i for i in range(20 * MB // 60)) if names else b" " * 20 * MB
    body = b"{" + body.removesuffix(b",") + b"}"
    (tmp_path / "x").write_bytes(len(body).to_bytes(8, "little") + body)
    assert_refused_at_no_cost(tmp_path / "x")


def assert_refused_at_no_cost(path: Path) -> None:
    start = time.perf_counter()
    with memory_grows_less_than(20 * MB), pytest.raises(PresetError, match=f"{path} "):
        SafetensorsFiles(path)
    assert time.perf_counter() - start < 2
