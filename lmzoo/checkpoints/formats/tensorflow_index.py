"""The index of a TensorFlow checkpoint: which tensors it holds, and where.

A table in LevelDB's format, sorted by key: blocks of entries, then a block that says where they are, then a footer. A
key omits what it shares with the one before. Under the empty key is a header, under every other, a tensor's name, an
entry; both are protocol buffers (TensorFlow's `tensor_bundle.proto`). Nothing here takes more time or memory than an
index of the largest size, whatever it declares.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes  # noqa: F401 - teaches numpy the name "bfloat16"
import numpy as np

from lmzoo.checkpoints.formats.crc32c import masked_crc32c
from lmzoo.checkpoints.formats.sharded import check_is_weights
from lmzoo.errors import PresetError

# BERT-large with its optimizer's state is 1,200 tensors of some 40 bytes each in the index. More would take long.
_LARGEST_INDEX = 1 << 20
_MOST_BLOCKS = 1 << 10
_MOST_TENSORS = 1 << 14
_LONGEST_NAME = 1 << 10
_MOST_DIMENSIONS = 32
_MOST_ELEMENTS = 1 << 56

_FOOTER = 48
_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")

# Of TensorFlow's `types.proto`; numpy holds all but those in NOT_NUMBERS.
_DTYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 8: "complex64", 9: "int64",
    10: "bool", 11: "qint8", 12: "quint8", 13: "qint32", 14: "bfloat16", 15: "qint16", 16: "quint16", 17: "uint16",
    18: "complex128", 19: "float16", 20: "resource", 21: "variant", 22: "uint32", 23: "uint64",
}  # fmt: skip
NOT_NUMBERS = frozenset({"string", "qint8", "quint8", "qint32", "qint16", "quint16", "resource", "variant"})


class _NotReadableError(Exception):
    """What is wrong, for a caller that knows the file."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor's place.

    Attributes:
        dtype: numpy's name, or one of NOT_NUMBERS.
        shape: the shape.
        shard: number of the data file.
        offset: of the first byte in it.
        size: in bytes.
        checksum: masked CRC-32C of these bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


def read_index(path: Path) -> tuple[int, dict[str, Entry]]:
    """Reads an index and checks it by itself; data files are not looked at.

    Returns:
        The number of data files, and the tensors by name.

    Raises:
        PresetError: if it is missing, truncated, altered, or holds what only TensorFlow reads.
    """
    check_is_weights(path)
    with path.open("rb") as file:
        data = file.read(_LARGEST_INDEX + 1)
    try:
        return _index(data)
    except _NotReadableError as error:
        raise PresetError(f"{path} cannot be read as the index of a TensorFlow checkpoint: {error}.") from None


def _index(data: bytes) -> tuple[int, dict[str, Entry]]:
    if len(data) > _LARGEST_INDEX:
        raise _NotReadableError(f"it is larger than {_LARGEST_INDEX} bytes")
    table = _table(data)
    key, header = next(table, (b"?", b""))
    if key:
        raise _NotReadableError("it has no header")
    shards = _shards(header)
    entries: dict[str, Entry] = {}
    for key, value in table:
        if key.startswith(b"\0"):
            sliced = key[1:].split(b"\0")[0].decode(errors="replace")
            raise _NotReadableError(f"{sliced!r} is stored in slices; save it whole, without a partitioner")
        try:
            name = key.decode()
        except UnicodeDecodeError:
            raise _NotReadableError(f"the name {key!r} is not UTF-8: it was altered") from None
        if len(entries) == _MOST_TENSORS:
            raise _NotReadableError(f"it lists more than {_MOST_TENSORS} tensors")
        try:
            entries[name] = _entry(value, shards)
        except _NotReadableError as error:
            raise _NotReadableError(f"{name!r}: {error}") from None
    return shards, entries


class _Cursor:
    """Reads bytes one part after another, and none beyond the end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def __bool__(self) -> bool:
        return self.at < len(self.data)

    def take(self, count: int) -> bytes:
        start, self.at = self.at, self.at + count
        if self.at > len(self.data):
            raise _NotReadableError(f"{count} bytes are declared where {len(self.data) - start} are left")
        return self.data[start : self.at]

    def number(self) -> int:
        """A varint, seven bits to a byte."""
        value = 0
        for shift in range(0, 64, 7):
            if self.at >= len(self.data):
                raise _NotReadableError("a number is cut off")
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128 and value < 1 << 64:
                return value
        raise _NotReadableError("a number has more than 64 bits")


def _table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values in ascending order."""
    if len(data) < _FOOTER or not data.endswith(_MAGIC):
        raise _NotReadableError("it does not end like one: truncated, or another kind of file; fetch it again")
    footer = _Cursor(data[-_FOOTER:])
    if next(_block(data, footer.number(), footer.number()), None):
        raise _NotReadableError("it has a second index, expected an empty one")
    end, previous = 0, None
    for number, (_, handle) in enumerate(_block(data, footer.number(), footer.number())):
        cursor = _Cursor(handle)
        offset, size = cursor.number(), cursor.number()
        if offset < end or number == _MOST_BLOCKS:
            raise _NotReadableError(f"it has overlapping blocks, or more than {_MOST_BLOCKS}")
        end = offset + size
        for key, value in _block(data, offset, size):
            if previous is not None and key <= previous:
                raise _NotReadableError(f"the name {key!r} comes after {previous!r}: out of order, or twice")
            yield key, value
            previous = key


def _block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    trailer = offset + size  # one byte for the compression and four for the checksum
    if trailer + 5 > len(data) - _FOOTER:
        raise _NotReadableError(f"a block of {size} bytes at byte {offset} leaves the file: truncated or altered")
    checksum = int.from_bytes(data[trailer + 1 : trailer + 5], "little")
    if checksum != masked_crc32c(np.frombuffer(data, np.uint8, size + 1, offset)):
        raise _NotReadableError(
            f"the block at byte {offset} was altered: its checksum is not {checksum:#x}; fetch it again"
        )
    if compression := data[trailer]:
        kind = "Snappy" if compression == 1 else f"method {compression}"
        raise _NotReadableError(f"it is compressed with {kind}, expected none; save it again with TensorFlow")
    content = data[offset:trailer]
    restarts = 4 * int.from_bytes(content[-4:], "little") + 4  # where keys are whole, for searches, and their number
    if restarts > size:
        raise _NotReadableError(f"the block at byte {offset} has {size} bytes, too few for what it declares")
    entries, key = _Cursor(content[:-restarts]), b""
    while entries:
        shared, unshared, length = entries.number(), entries.number(), entries.number()
        if shared > len(key) or shared + unshared > _LONGEST_NAME:
            raise _NotReadableError(f"a name after {key!r} is longer than {_LONGEST_NAME} bytes, or shares too many")
        key = key[:shared] + entries.take(unshared)
        yield key, entries.take(length)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol buffer: their numbers, and integers or bytes."""
    cursor = _Cursor(message)
    while cursor:
        field, kind = divmod(cursor.number(), 8)
        match kind:
            case 0:
                yield field, cursor.number()
            case 2:
                yield field, cursor.take(cursor.number())
            case 5:
                yield field, int.from_bytes(cursor.take(4), "little")
            case _:
                raise _NotReadableError(f"field {field} is of an unknown kind ({kind})")


def _shards(header: bytes) -> int:
    shards = 0
    for field, part in _fields(header):
        match field, part:
            case 1, int():
                shards = part
            case 2, int():
                if part:
                    raise _NotReadableError("its numbers are big-endian; save it again on a little-endian computer")
            case 3, bytes():
                if dict(_fields(part)).get(2, 0) not in (0, 1):  # the oldest version whose readers can read this
                    raise _NotReadableError("it was written for readers newer than version 1 of the format")
            case _:
                raise _NotReadableError(f"its header has the unknown field {field}")
    return shards


def _entry(message: bytes, shards: int) -> Entry:
    numbers = dict.fromkeys((1, 3, 4, 5, 6), 0)
    shape: tuple[int, ...] = ()
    for field, part in _fields(message):
        if field == 2 and isinstance(part, bytes):
            shape = _shape(part)
        elif field in numbers and isinstance(part, int):
            numbers[field] = part
        else:
            raise _NotReadableError(f"its entry has the unknown field {field}")
    kind, shard, offset, size, checksum = numbers.values()
    dtype = _DTYPES.get(kind)
    if dtype is None:
        raise _NotReadableError(f"its dtype has the unknown number {kind}")
    if shard >= shards:
        raise _NotReadableError(f"it is in data file {shard}, counted from 0, of {shards}")
    if dtype not in NOT_NUMBERS and (expected := math.prod(shape) * np.dtype(dtype).itemsize) != size:
        raise _NotReadableError(f"its size is {size} bytes, expected {expected} for {dtype} {shape}")
    return Entry(dtype, shape, shard, offset, size, checksum)


def _shape(message: bytes) -> tuple[int, ...]:
    shape: list[int] = []
    for field, part in _fields(message):
        size = dict(_fields(part)).get(1, 0) if field == 2 and isinstance(part, bytes) else None
        if not isinstance(size, int) or len(shape) == _MOST_DIMENSIONS:
            raise _NotReadableError(f"its shape is unknown, or has more than {_MOST_DIMENSIONS} dimensions")
        shape.append(size)
    if math.prod(size or 1 for size in shape) >= _MOST_ELEMENTS:  # also where another dimension is 0
        raise _NotReadableError(f"its shape {shape} is of no array")
    return tuple(shape)
