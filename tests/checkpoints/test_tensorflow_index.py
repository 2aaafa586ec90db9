"""Indexes of checkpoints that lie: each is refused for what is wrong with it, at once and in little memory."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

from lmzoo.checkpoints.formats.crc32c import masked_crc32c
from lmzoo.checkpoints.formats.tensorflow import TensorFlowCheckpoint, write_tensorflow_checkpoint
from lmzoo.errors import PresetError

VALUES = np.arange(6, dtype="float32")
HEADER = BundleHeaderProto(num_shards=1, version={"producer": 1}).SerializeToString()
MAGIC = bytes.fromhex("57fb808b247547db")
FLOAT, STRING = 1, 7


def varint(number: int) -> bytes:
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def sealed(content: bytes, compression: int = 0) -> bytes:
    content += bytes([compression])
    return content + masked_crc32c(np.frombuffer(content, np.uint8)).to_bytes(4, "little")


def row(key: bytes, value: bytes, shared: int = 0) -> bytes:
    """An entry of a block; `key` without what it shares with the one before."""
    return varint(shared) + varint(len(key)) + varint(len(value)) + key + value


def block(rows: Iterable[bytes], compression: int = 0) -> bytes:
    return sealed(b"".join(rows) + bytes(4) + (1).to_bytes(4, "little"), compression)


def table(blocks: Iterable[bytes], handles: list[bytes] | None = None, second: Iterable[bytes] = ()) -> bytes:
    """A whole index: data blocks, the empty second index, the index of handles, the footer."""
    data, found = b"", []
    for content in blocks:
        found.append(varint(len(data)) + varint(len(content) - 5))
        data += content
    handles = found if handles is None else handles
    second, index = block(second), block(row(str(n).encode(), handle) for n, handle in enumerate(handles))
    footer = b"".join(map(varint, [len(data), len(second) - 5, len(data) + len(second), len(index) - 5]))
    return data + second + index + footer.ljust(40, b"\0") + MAGIC


def entry(
    shape: Iterable[int] = (2, 3), dtype: int = FLOAT, size: int = 24, of: np.ndarray = VALUES, **fields: int
) -> bytes:
    """A tensor, by default what the data file holds; its checksum is that of `of`."""
    dimensions = {"dim": [{"size": size} for size in shape]}
    crc32c = masked_crc32c(of.view(np.uint8))
    return BundleEntryProto(dtype=dtype, shape=dimensions, size=size, crc32c=crc32c, **fields).SerializeToString()


def one_block(*rows: bytes) -> bytes:
    return table([block(rows)])


def index_of(value: bytes, header: bytes = HEADER) -> bytes:
    return one_block(row(b"", header), row(b"kernel", value))


@pytest.fixture
def prefix(tmp_path) -> Path:
    Path(tmp_path / "model.ckpt.data-00000-of-00001").write_bytes(VALUES.tobytes())
    return tmp_path / "model.ckpt"


def opened(prefix: Path, index: bytes) -> TensorFlowCheckpoint:
    Path(f"{prefix}.index").write_bytes(index)
    return TensorFlowCheckpoint(prefix)


@pytest.mark.parametrize(
    "index",
    [
        index_of(entry()),
        table([block([row(b"", HEADER)]), block([row(b"kernel", entry())])]),
        one_block(row(b"", HEADER), row(b"ker", entry()), row(b"nel", entry(), shared=3)),
        index_of(entry(), BundleHeaderProto(num_shards=1).SerializeToString()),
    ],
)
def test_made_by_hand(prefix, index):
    """What the others differ from."""
    np.testing.assert_array_equal(opened(prefix, index).read("kernel"), VALUES.reshape(2, 3))


LIES = {
    "shape: too large for its size": (index_of(entry((2, 5))), r"'kernel': its size is 24 bytes, expected 40"),
    "shape: terabytes": (index_of(entry((2**20, 2**20), size=2**42)), r"00001 has 24 bytes, expected 4398046511104"),
    "shape: overflows 64 bits to 24": (index_of(entry((2**61, 2**61, 3))), r"is of no array"),
    "shape: negative": (index_of(entry((-2, -3))), "is of no array"),
    "shape: nothing of very much": (index_of(entry((0, 2**40, 2**40), size=0)), "is of no array"),
    "shape: 33 dimensions": (index_of(entry([*[1] * 31, 2, 3])), "more than 32 dimensions"),
    "shape: of unknown rank": (index_of(BundleEntryProto(dtype=1, shape={"unknown_rank": True}).SerializeToString()),
                               "its shape is unknown"),
    "size: negative": (index_of(entry(size=-24)), "expected 24"),
    "size: negative, of a string": (index_of(entry(dtype=STRING, size=-24)), "has 24 bytes, expected 184467"),
    "size: string beyond the end": (index_of(entry(dtype=STRING, size=25)), "has 24 bytes, expected 25"),
    "offset: beyond the end": (index_of(entry(offset=1)), "has 24 bytes, expected 25 or more, where 'kernel' ends"),
    "offset: negative": (index_of(entry(offset=-1)), "has 24 bytes, expected 184467"),
    "dtype: none": (index_of(entry(dtype=0)), "unknown number 0"),
    "dtype: of a reference": (index_of(entry(dtype=101)), "unknown number 101"),
    "shard: one too high": (index_of(entry(shard_id=1)), "'kernel': it is in data file 1, counted from 0, of 1"),
    "shard: negative": (index_of(entry(shard_id=-1)), "it is in data file 184467"),
    "entry: with slices": (index_of(BundleEntryProto(dtype=1, slices=[{}]).SerializeToString()), "unknown field 7"),
    "entry: shape as a number": (index_of(b"\x08\x01\x10\x06\x28\x18"), "unknown field 2"),
    "entry: cut": (index_of(entry()[:-1]), "4 bytes are declared where 3 are left"),
    "entry: a group": (index_of(entry() + b"\x0b"), "of an unknown kind"),
    "entry: a number without end": (index_of(b"\x08" + b"\xff" * 10 + b"\x01"), "more than 64 bits"),
    "entry: a number of 70 bits": (index_of(b"\x08" + b"\xff" * 9 + b"\x7f"), "more than 64 bits"),
    "entry: a cut number": (index_of(b"\x08\xff"), "a number is cut off"),
    "header: none": (one_block(row(b"kernel", entry())), "it has no header"),
    "header: no block": (table([]), "it has no header"),
    "header: no files": (index_of(entry(), b""), "data file 0, counted from 0, of 0"),
    "header: big-endian": (index_of(entry(), HEADER + b"\x10\x01"), "big-endian"),
    "header: of the future": (index_of(entry(), BundleHeaderProto(version={"min_consumer": 2}).SerializeToString()),
                              "newer than version 1"),
    "header: unknown field": (index_of(entry(), HEADER + b"\x20\x01"), "header has the unknown field 4"),
    "names: twice": (one_block(*[row(b"", HEADER)] * 2), r"b'' comes after b''"),
    "names: out of order": (one_block(row(b"", HEADER), row(b"b", entry()), row(b"a", entry())), "b'a' comes after"),
    "names: not UTF-8": (one_block(row(b"", HEADER), row(b"\xff", entry())), "is not UTF-8"),
    "names: share too much": (one_block(row(b"", HEADER), row(b"a", entry(), shared=1)), "shares too many"),
    "names: without end": (one_block(row(b"", HEADER), row(b"a" * 1_025, entry())), "longer than 1024 bytes"),
    "names: cut": (table([sealed(b"\0\x7f\x01a" + bytes(4) + b"\x01\0\0\0")]), "127 bytes are declared where 1 are"),
    "block: Snappy": (table([block([row(b"", HEADER)], 1)]), "compressed with Snappy"),
    "block: compressed otherwise": (table([block([row(b"", HEADER)], 4)]), "compressed with method 4"),
    "block: of no bytes": (table([sealed(b"")]), "has 0 bytes, too few"),
    "block: many restarts": (table([sealed(bytes(8) + b"\xff" * 4)]), "has 12 bytes, too few"),
    "block: beyond the end": (table([], [varint(0) + varint(1 << 40)]), "leaves the file"),
    "block: far away": (table([], [varint(1 << 63) + varint(9)]), "leaves the file"),
    "block: twice": (table([block([row(b"", HEADER)])], [varint(0) + varint(len(HEADER) + 11)] * 2), "overlapping"),
    "block: second index": (table([block([row(b"", HEADER)])], second=[row(b"", b"")]), "it has a second index"),
    "footer: beyond the end": (b"\0\0\x7f\x7f".ljust(40, b"\0") + MAGIC, "leaves the file"),
    "magic: none": (index_of(entry())[:-8] + bytes(8), "does not end like one"),
    "length: of the magic only": (MAGIC, "does not end like one"),
}  # fmt: skip


@pytest.mark.parametrize(("index", "message"), LIES.values(), ids=LIES.keys())
def test_lies(prefix, index, message):
    with pytest.raises(PresetError, match=message) as refused:
        opened(prefix, index)
    assert str(refused.value).startswith(str(prefix))


def test_data_cut_after_opening(prefix):
    checkpoint = opened(prefix, index_of(entry(of=VALUES[:5])))
    Path(f"{prefix}.data-00000-of-00001").write_bytes(VALUES[:5].tobytes())
    with pytest.raises(PresetError, match="'kernel' differs from its checksum"):
        checkpoint.read("kernel")


def many_shards() -> bytes:
    return index_of(entry(), BundleHeaderProto(num_shards=2**31 - 1).SerializeToString())


def many_tensors() -> bytes:
    scalar = b"\x08\x04\x28\x01"
    return table([block([row(b"", HEADER), *(row(n.to_bytes(3).hex().encode(), scalar) for n in range(1 << 15))])])


def many_long_names() -> bytes:
    """All the same up to the last bytes, so that each takes few."""
    scalar = b"\x08\x04\x28\x01"
    names = (f"{number:05x}".encode() for number in range(30_000))
    return table([block([row(b"", HEADER), row(b"a" * 1_019, scalar), *(row(name, scalar, 1_019) for name in names)])])


def many_blocks() -> bytes:
    return table([block([row(b"", HEADER)]), *([block([])] * 30_000)])


def many_dimensions() -> bytes:
    return index_of(b"\x12" + varint(1_000_000) + b"\x12\x00" * 500_000)


def many_fields() -> bytes:
    return index_of(b"\x08\x01" * 200_000)


def too_large() -> bytes:
    return index_of(entry(), HEADER * (1 << 18))


BOMBS = {
    many_shards: "00000-of-2147483647 does not exist",
    many_tensors: "more than 16384 tensors",
    many_long_names: "more than 16384 tensors",
    many_blocks: "or more than 1024",
    many_dimensions: "more than 32 dimensions",
    many_fields: "its size is 0 bytes",
    too_large: "larger than 1048576 bytes",
}


@pytest.mark.parametrize(("make", "message"), BOMBS.items())
def test_bombs(prefix, make, message):
    Path(f"{prefix}.index").write_bytes(make())
    start = time.process_time()
    with pytest.raises(PresetError, match=message):
        TensorFlowCheckpoint(prefix)
    assert time.process_time() - start < 2
    tracemalloc.start()
    with pytest.raises(PresetError):
        TensorFlowCheckpoint(prefix)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30e6


@pytest.fixture
def written(tmp_path) -> tuple[Path, dict[str, np.ndarray]]:
    """A checkpoint by TensorFlow."""
    numbers = np.random.default_rng(23)
    shapes = [(), (7,), (3, 0), (5, 11), (2, 3, 13)]
    tensors = {f"bert/encoder/layer_{n}/kernel": numbers.random(shape) for n, shape in enumerate(shapes)}
    write_tensorflow_checkpoint(tmp_path / "model.ckpt", tensors.items())
    return tmp_path / "model.ckpt", tensors


def right_or_refused(prefix: Path, tensors: dict[str, np.ndarray]) -> bool:
    """Whether it was refused."""
    try:
        checkpoint = TensorFlowCheckpoint(prefix)
        found = {name: checkpoint.read(name) for name in checkpoint.names()}
    except PresetError:
        return True
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        np.testing.assert_array_equal(found[name], value, strict=True)
    return False


def test_every_byte_of_the_index_counts(written):
    prefix, tensors = written
    file = Path(f"{prefix}.index")
    whole = file.read_bytes()
    accepted = []
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        if not right_or_refused(prefix, tensors):
            accepted.append(place)
    # What fills the footer up.
    assert set(accepted) <= set(range(len(whole) - 48, len(whole) - 8))
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        assert right_or_refused(prefix, tensors)


def altered(content: bytes, numbers: np.random.Generator) -> bytes:
    kind = numbers.integers(3)
    if kind == 0:
        return content[: numbers.integers(len(content))]
    changed = bytearray(content)
    for place in numbers.integers(len(content), size=1 if kind == 1 else 5):
        changed[place] = numbers.integers(256)
    return bytes(changed)


def test_altered_at_random(written):
    prefix, tensors = written
    numbers = np.random.default_rng(29)
    files = [Path(f"{prefix}.index"), Path(f"{prefix}.data-00000-of-00001")]
    whole = [file.read_bytes() for file in files]
    refused = 0
    tracemalloc.start()
    for _ in range(300):
        which = numbers.integers(2)
        files[which].write_bytes(altered(whole[which], numbers))
        refused += right_or_refused(prefix, tensors)
        files[which].write_bytes(whole[which])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6
    assert refused > 250
    assert not right_or_refused(prefix, tensors)


@pytest.mark.parametrize("count", [307, pytest.param(1000, marks=pytest.mark.slow)])
def test_altered_at_random_with_right_checksums(prefix, count):
    """By somebody who computes them: what is read is what the index says, or nothing."""
    numbers = np.random.default_rng(31)
    content = b"".join([row(b"", HEADER), row(b"kernel", entry()), row(b"nels", entry((3, 2)), shared=3)])
    read = 0
    tracemalloc.start()
    for _ in range(count):
        try:
            checkpoint = opened(prefix, table([block([altered(content, numbers)])]))
            for name in checkpoint.names():
                values = checkpoint.read(name)
                assert values.tobytes() in VALUES.tobytes()
                read += 1
        except PresetError:
            pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6
    assert read > count / 20
