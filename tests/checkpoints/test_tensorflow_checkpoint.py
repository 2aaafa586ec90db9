"""TensorFlow checkpoints: TensorFlow reads ours, and we read TensorFlow's, bit by bit."""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from lmzoo.checkpoints.formats.tensorflow import TensorFlowCheckpoint, write_tensorflow_checkpoint
from lmzoo.errors import PresetError
from tests.checkpoints.random_arrays import random_bits
from tests.memory import memory_grows_less_than

RNG = np.random.default_rng(17)
DTYPES = [
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool", "complex64", "complex128",
]  # fmt: skip
SHAPES = [(), (0,), (7,), (3, 0, 5), (1, 1), (5, 11), (2, 3, 5, 7), (13, 1, 17), (2, 1, 3, 1, 5, 1, 7)]


def array(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return random_bits(dtype, *shape, rng=RNG)


def assert_same(actual: np.ndarray, expected: np.ndarray) -> None:
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert actual.tobytes() == expected.tobytes()


def assert_holds(prefix: Path, tensors: dict[str, np.ndarray]) -> None:
    checkpoint = TensorFlowCheckpoint(prefix)
    assert set(checkpoint.names()) == set(tensors)
    for name, expected in tensors.items():
        assert checkpoint.shape(name) == expected.shape
        assert checkpoint.dtype(name) == expected.dtype.name
        assert_same(checkpoint.read(name), expected)


def save(prefix: Path, tensors: dict[str, np.ndarray], slices: str = "") -> None:
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(tensors),
        shape_and_slices=[slices] * len(tensors),
        tensors=list(tensors.values()),
    )


@pytest.fixture
def prefix(tmp_path) -> Path:
    return tmp_path / "bert_model.ckpt"


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape_is_written_and_read(prefix, dtype):
    tensors = {f"scope/rank_{len(shape)}/{number}": array(shape, dtype) for number, shape in enumerate(SHAPES)}
    write_tensorflow_checkpoint(prefix, reversed(tensors.items()))
    assert_holds(prefix, tensors)
    theirs = tf.train.load_checkpoint(str(prefix))
    assert theirs.get_variable_to_shape_map() == {name: list(value.shape) for name, value in tensors.items()}
    for name, value in tensors.items():
        assert_same(np.asarray(theirs.get_tensor(name), dtype), value)


def test_an_index_of_several_blocks_is_written_and_read(prefix):
    """Some names share long prefixes and some share nothing; they are in any order."""
    names = [f"bert/encoder/layer_{n}/attention/output/dense/kernel" for n in range(1_009)]
    names += [f"{RNG.bytes(50).hex()}/ä/猫" for _ in range(2_003)]
    tensors = {names[n]: array((3,), "float32") for n in RNG.permutation(len(names))}
    write_tensorflow_checkpoint(prefix, tensors.items())
    assert prefix.with_name("bert_model.ckpt.index").stat().st_size > 300_000  # a block has 262,144 bytes
    assert_holds(prefix, tensors)


def test_large_tensors_are_read(prefix):
    tensors = {"a": array((503, 1_009), "float32"), "b": array((3,), "int8"), "c": array((65_537,), "float32")}
    save(prefix, tensors)
    assert_holds(prefix, tensors)


def test_the_saver_of_tensorflow_1_reads_and_writes_checkpoints(prefix):
    tensors = {"cls/kernel": array((5, 7), "float32"), "global_step": array((), "int64")}
    write_tensorflow_checkpoint(prefix, tensors.items())
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        kernel = tf.compat.v1.get_variable("cls/kernel", (5, 7), initializer=tf.compat.v1.zeros_initializer())
        step = tf.compat.v1.train.get_or_create_global_step()
        saver = tf.compat.v1.train.Saver()
        saver.restore(session, str(prefix))
        for variable, value in zip((kernel, step), tensors.values(), strict=True):
            assert_same(np.asarray(session.run(variable)), value)
        saver.save(session, str(prefix.with_name("again.ckpt")))
    assert_holds(prefix.with_name("again.ckpt"), tensors)


def test_object_based_checkpoints_are_read(tmp_path):
    value = array((3, 11), "float32")
    prefix = Path(tf.train.Checkpoint(encoder=tf.Module(), kernel=tf.Variable(value)).save(tmp_path / "ckpt"))
    checkpoint = TensorFlowCheckpoint(prefix)
    assert_same(checkpoint.read("kernel/.ATTRIBUTES/VARIABLE_VALUE"), value)
    graph = "_CHECKPOINTABLE_OBJECT_GRAPH"
    assert set(checkpoint.names()) == {f"{n}/.ATTRIBUTES/VARIABLE_VALUE" for n in ("kernel", "save_counter")} | {graph}
    assert (checkpoint.dtype(graph), checkpoint.shape(graph)) == ("string", ())
    with pytest.raises(PresetError, match=f"{prefix.name}.index: '{graph}' is of dtype string"):
        checkpoint.read(graph)


@pytest.fixture
def sharded(tmp_path) -> tuple[Path, dict[str, np.ndarray]]:
    parts = [{f"part_{part}/{n}": array((part + 2, 5), "float32") for n in range(part + 1)} for part in range(3)]
    for number, tensors in enumerate(parts):
        save(tmp_path / f"part_{number}", tensors)
    prefix = tmp_path / "whole.ckpt"
    paths = [str(tmp_path / f"part_{number}") for number in range(3)]
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=paths, destination_prefix=str(prefix), delete_old_dirs=False)
    return prefix, {name: value for tensors in parts for name, value in tensors.items()}


def test_several_data_files_are_read(sharded):
    prefix, tensors = sharded
    assert_holds(prefix, tensors)
    assert TensorFlowCheckpoint(f"{prefix}.index").path == Path(f"{prefix}.index")


def test_missing_files_are_named(sharded, tmp_path):
    prefix, _ = sharded
    with pytest.raises(PresetError, match=r"none\.index does not exist"):
        TensorFlowCheckpoint(tmp_path / "none")
    (tmp_path / "whole.ckpt.data-00001-of-00003").unlink()
    with pytest.raises(PresetError, match=r"whole\.ckpt\.data-00001-of-00003 does not exist"):
        TensorFlowCheckpoint(prefix)


def test_data_outside_of_the_directory_is_not_read(sharded, tmp_path):
    prefix, tensors = sharded
    (tmp_path / "elsewhere").mkdir()
    data = tmp_path / "whole.ckpt.data-00001-of-00003"
    data.rename(tmp_path / "elsewhere" / "data")
    (tmp_path / "inside").mkdir()
    for file in tmp_path.glob("whole.ckpt.*"):
        file.rename(tmp_path / "inside" / file.name)
    link = tmp_path / "inside" / data.name
    link.symlink_to(tmp_path / "elsewhere" / "data")
    with pytest.raises(PresetError, match=r"data-00001-of-00003 is a link to .*elsewhere"):
        TensorFlowCheckpoint(tmp_path / "inside" / prefix.name)
    link.unlink()
    (tmp_path / "elsewhere" / "data").rename(link)
    assert_holds(tmp_path / "inside" / prefix.name, tensors)


def test_slices_are_read_as_one_tensor(prefix):
    """A partitioner stores parts of a tensor; all of them are needed."""
    whole = array((7, 5), "float32")
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=["bert/word_embeddings"] * 2,
        shape_and_slices=["7 5 0,2:0,5", "7 5 2,5:0,5"],
        tensors=[whole[:2], whole[2:]],
    )
    assert_holds(prefix, {"bert/word_embeddings": whole})
    save(prefix, {"bert/word_embeddings": whole[:2]}, slices="7 5 0,2:0,5")
    with pytest.raises(PresetError, match=r"lists tensors of 140 bytes, but its data has 40, in .*00001"):
        TensorFlowCheckpoint(prefix)


def test_truncated_data_is_refused(prefix):
    write_tensorflow_checkpoint(prefix, [("first", array((5,), "float32")), ("last", array((3,), "float32"))])
    data = Path(f"{prefix}.data-00000-of-00001")
    data.write_bytes(data.read_bytes()[:-1])
    message = r"ckpt\.index lists tensors of 32 bytes, but its data has 31, in .*00000-of-00001"
    with pytest.raises(PresetError, match=message):
        TensorFlowCheckpoint(prefix)


def test_truncated_data_of_several_files_is_refused(sharded):
    prefix, tensors = sharded
    size = sum(value.nbytes for value in tensors.values())
    Path(f"{prefix}.data-00001-of-00003").write_bytes(b"1")
    with pytest.raises(PresetError, match=rf"tensors of {size} bytes, .* in .*00000-of-00003, .*00001-of-00003, "):
        TensorFlowCheckpoint(prefix)


def test_a_web_page_in_place_of_data_is_named(prefix):
    write_tensorflow_checkpoint(prefix, [("kernel", array((5,), "float32"))])
    Path(f"{prefix}.data-00000-of-00001").write_text("<!DOCTYPE html><title>Sign in, please</title>")
    with pytest.raises(PresetError, match=r"data-00000-of-00001 is a web page"):
        TensorFlowCheckpoint(prefix)


def test_a_directory_of_the_same_name_is_not_read(prefix):
    """TensorFlow's `load_checkpoint` would read the checkpoint in it."""
    tensors = {"kernel": array((5,), "float32")}
    write_tensorflow_checkpoint(prefix, tensors.items())
    tf.train.Checkpoint(other=tf.Variable(0.0)).save(prefix / "ckpt")
    assert_holds(prefix, tensors)


def test_names_are_not_patterns(tmp_path):
    tensors = {"kernel": array((5,), "float32")}
    write_tensorflow_checkpoint(tmp_path / "*?.ckpt", tensors.items())
    assert_holds(tmp_path / "*?.ckpt", tensors)
    write_tensorflow_checkpoint(tmp_path / "[a-z].ckpt", tensors.items())
    write_tensorflow_checkpoint(tmp_path / "x.ckpt", [("other", np.zeros(3))])
    with pytest.raises(PresetError, match=r"\[a-z\]\.ckpt\.index: TensorFlow .* a pattern"):
        TensorFlowCheckpoint(tmp_path / "[a-z].ckpt")


def test_data_that_changes_after_opening_is_not_read(prefix):
    tensors = {"first": array((5,), "float32"), "last": array((3,), "float32")}
    write_tensorflow_checkpoint(prefix, tensors.items())
    file = Path(f"{prefix}.data-00000-of-00001")
    content = bytearray(file.read_bytes())
    content[6] ^= 1
    file.write_bytes(content)
    checkpoint, shortened, deleted = (TensorFlowCheckpoint(prefix) for _ in range(3))
    assert_same(checkpoint.read("last"), tensors["last"])
    with pytest.raises(PresetError, match=r"ckpt\.index: 'first' cannot be read: .*Checksum does not match"):
        checkpoint.read("first")
    file.write_bytes(content[:25])
    with pytest.raises(PresetError, match=r"ckpt\.index: 'last' cannot be read: .*less bytes"):
        shortened.read("last")
    file.unlink()
    with pytest.raises(PresetError, match=r"'last' cannot be read: .*data-00000-of-00001; No such file"):
        deleted.read("last")


def test_each_byte_of_the_data_counts(prefix):
    write_tensorflow_checkpoint(prefix, [("kernel", array((3,), "float32"))])
    file = Path(f"{prefix}.data-00000-of-00001")
    whole = file.read_bytes()
    for offset in range(len(whole)):
        file.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        with pytest.raises(PresetError, match=r"'kernel' cannot be read: .*Checksum does not match"):
            TensorFlowCheckpoint(prefix).read("kernel")


def test_unknown_names_are_errors(prefix):
    write_tensorflow_checkpoint(prefix, [("kernel", array((5,), "float32"))])
    for method in ("read", "shape", "dtype"):
        with pytest.raises(PresetError, match=r"ckpt\.index lists no tensor 'bias'"):
            getattr(TensorFlowCheckpoint(prefix), method)("bias")


@pytest.mark.parametrize("names", [["a", "a"], [""]])
def test_names_must_be_unique_and_not_empty(prefix, names):
    with pytest.raises(PresetError, match=f"a name of its own, got '{names[-1]}'"):
        write_tensorflow_checkpoint(prefix, [(name, array((2,), "float32")) for name in names])
    assert list(prefix.parent.iterdir()) == []


def test_a_failed_write_leaves_the_old_checkpoint(prefix):
    tensors = {"kernel": array((5, 3), "float32")}
    write_tensorflow_checkpoint(prefix.parent / "new" / "deep" / prefix.name, tensors.items())
    directory = prefix.parent / "new" / "deep"
    with pytest.raises(OSError, match=r"bert_model\.ckpt cannot be written"):
        write_tensorflow_checkpoint(directory / prefix.name, [])  # TensorFlow refuses it
    assert len(list(directory.iterdir())) == 2
    assert_holds(directory / prefix.name, tensors)


def test_tensorflow_is_required(prefix, monkeypatch):
    write_tensorflow_checkpoint(prefix, [("kernel", array((5, 3), "bfloat16"))])
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(PresetError, match=r"ckpt\.index: only TensorFlow itself reads .*pip install tensorflow"):
        TensorFlowCheckpoint(prefix)
    with pytest.raises(PresetError, match=r"new: only TensorFlow itself .*writes .*pip install tensorflow"):
        write_tensorflow_checkpoint("new", [("kernel", array((5, 3), "bfloat16"))])


def test_memory_holds_one_tensor_at_a_time(prefix):
    tensors = {f"kernel_{number:02}": np.full((1 << 20,), number, "float32") for number in range(12)}  # 4 MB each
    write_tensorflow_checkpoint(prefix, tensors.items())
    checkpoint = TensorFlowCheckpoint(prefix)
    checkpoint.read("kernel_00")
    with memory_grows_less_than(10 << 20):
        assert [checkpoint.read(name)[-1] for name in checkpoint.names()] == list(range(12))


def test_read_values_are_copies(prefix):
    tensors = {"kernel": array((5, 3), "float32"), "step": array((), "int64")}
    write_tensorflow_checkpoint(prefix, tensors.items())
    checkpoint = TensorFlowCheckpoint(prefix)
    for name in tensors:
        checkpoint.read(name)[...] = 3
    assert_holds(prefix, tensors)
    assert_same(checkpoint.read("kernel"), tensors["kernel"])


def test_bfloat16_has_the_dtype_of_ml_dtypes(prefix):
    write_tensorflow_checkpoint(prefix, [("kernel", np.ones((2, 3), ml_dtypes.bfloat16))])
    assert TensorFlowCheckpoint(prefix).read("kernel").dtype == ml_dtypes.bfloat16
