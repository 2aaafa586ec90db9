"""Files of PyTorch: values are read bit by bit, only through weights_only, and other files are refused."""

from __future__ import annotations

import argparse
import io
import json
import pickle
import struct
import sys
import time
import zipfile
from collections import OrderedDict
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from lmzoo.checkpoints.formats import torch as torch_files
from lmzoo.checkpoints.formats.torch import TorchFile
from lmzoo.presets import PresetError
from tests.checkpoints.random_arrays import random_bits
from tests.memory import memory_grows_less_than

torch = pytest.importorskip("torch")

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
CONTAINERS = ["zip", "legacy"]


def save(value: object, path: Path, container: str) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=container == "zip")
    assert zipfile.is_zipfile(path) == (container == "zip")
    return path


def random_tensor(dtype: str, *shape: int) -> torch.Tensor:
    values = random_bits(dtype, *shape).reshape(-1).view("uint8")
    return torch.from_numpy(values).view(getattr(torch, dtype)).reshape(shape)


def state_dict() -> dict[str, torch.Tensor]:
    return OrderedDict((f"layer.{dtype}", random_tensor(dtype, 7, 11)) for dtype in DTYPES)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_layout_is_read(tmp_path, container, dtype):
    tensor = random_tensor(dtype, 7, 11)
    entries = {
        "weight": tensor,
        "transposed": tensor.T,
        "part": tensor[2:, :5],
        "tied": tensor,
        "scalar": tensor[3, 2],
        "empty": tensor[:0],
        "axes": random_tensor(dtype, 2, 3, 5, 7),
    }
    path = save(entries, tmp_path / "pytorch_model.bin", container)
    tensors = TorchFile(path)
    assert list(tensors.names()) == list(entries)
    assert tensors.extra == {}
    for name, expected in entries.items():
        values = tensors.read(name)
        assert tensors.dtype(name) == values.dtype.name == dtype
        assert tensors.shape(name) == values.shape == tuple(expected.shape)
        assert values.tobytes() == bytes(expected.contiguous().flatten().view(torch.uint8).numpy())
        assert tensors.file_of(name) == path


@pytest.mark.parametrize("container", CONTAINERS)
def test_parameters_are_read(tmp_path, container):
    module = torch.nn.Linear(11, 7)
    save(module.state_dict(keep_vars=True), tmp_path / "pytorch_model.bin", container)
    tensors = TorchFile(tmp_path)
    assert list(tensors.names()) == ["weight", "bias"]
    np.testing.assert_array_equal(tensors.read("weight"), module.weight.detach().numpy())


def test_bfloat16_keeps_its_values(tmp_path):
    path = save({"weight": torch.tensor([1.0, -2.5, 3.0]).bfloat16()}, tmp_path / "x.bin", "zip")
    values = TorchFile(path).read("weight")
    assert values.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(values.astype("float32"), np.array([1.0, -2.5, 3.0], "float32"))


@pytest.mark.parametrize("container", CONTAINERS)
def test_read_values_are_copies(tmp_path, container):
    path = save({"weight": random_tensor("int32", 7, 11)}, tmp_path / "x.bin", container)
    tensors, data = TorchFile(path), path.read_bytes()
    tensors.read("weight")[:] = 3
    np.testing.assert_array_equal(tensors.read("weight"), random_tensor("int32", 7, 11).numpy())
    assert path.read_bytes() == data


def resident_bytes(path: Path) -> int:
    """Return the bytes of a mapped file that count as memory of this process."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    starts = [number for number, line in enumerate(lines) if line.endswith(str(path))]
    sizes = [next(line for line in lines[start:] if line.startswith("Rss:")) for start in starts]
    return sum(int(size.split()[1]) * 1024 for size in sizes)


@pytest.mark.slow
def test_values_do_not_stay_in_memory(tmp_path, monkeypatch):
    size, count, limit = 1 << 20, 23, 5 << 20
    monkeypatch.setattr(torch_files, "_MAX_MAPPED_BYTES", limit)
    path = save({f"layer.{i}": torch.full((size // 4,), i) for i in range(count)}, tmp_path / "x.bin", "zip")
    tensors, sizes = TorchFile(path), []
    assert resident_bytes(path) < size
    for i in range(count):
        assert tensors.read(f"layer.{i}")[-1] == i
        sizes.append(resident_bytes(path))
    assert size <= max(sizes) < limit + 4 * size


@pytest.mark.parametrize("container", CONTAINERS)
def test_shards_are_read(tmp_path, container):
    parts = {"pytorch_model-00001-of-00002.bin": ["a", "b"], "pytorch_model-00002-of-00002.bin": ["c"]}
    for part, names in parts.items():
        save({name: random_tensor("float32", 7, ord(name)) for name in names}, tmp_path / part, container)
    weight_map = {name: part for part, names in parts.items() for name in names}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    tensors = TorchFile(tmp_path)
    assert set(tensors.names()) == {"a", "b", "c"}
    for name, part in weight_map.items():
        assert tensors.file_of(name) == tmp_path / part
        np.testing.assert_array_equal(tensors.read(name), random_tensor("float32", 7, ord(name)).numpy())
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map | {"c": "../c.bin"}}))
    with pytest.raises(PresetError, match=r"names '../c.bin' as one of its files"):
        TorchFile(tmp_path)


def make_fairseq_checkpoint(**more: object) -> dict[str, object]:
    """Return a checkpoint as fairseq stores it, with query, key and value in one tensor."""
    state = OrderedDict(
        {
            "decoder.sentence_encoder.embed_tokens.weight": random_tensor("float16", 31, 11),
            "decoder.sentence_encoder.layers.0.self_attn.in_proj_weight": random_tensor("float16", 39, 11),
            "decoder.sentence_encoder.layers.0.self_attn.in_proj_bias": random_tensor("float16", 39),
            "decoder.sentence_encoder.layers.0.self_attn.out_proj.weight": random_tensor("float16", 11, 13),
            "decoder.sentence_encoder.layers.0.encoder_attn.in_proj_weight": random_tensor("float16", 5, 2),
        }
    )
    args = argparse.Namespace(arch="roberta_base", encoder_layers=1, dropout=0.1, lr=[0.0006], data=None, fp16=True)
    return {"args": args, "model": state, **more}


@pytest.mark.parametrize("container", CONTAINERS)
def test_checkpoints_of_fairseq_are_read(tmp_path, container):
    extras = {
        "optimizer_history": [{"criterion_name": "MaskedLmLoss", "num_updates": 500_000}],
        "last_optimizer_state": {"exp_avg": random_tensor("float32", 3)},
        "cfg": None,
    }
    stored = make_fairseq_checkpoint(**extras)
    save(stored, tmp_path / "model.pt", container)
    tensors = TorchFile(tmp_path)
    assert tensors.extra == {
        "args": vars(stored["args"]),
        "optimizer_history": extras["optimizer_history"],
        "cfg": None,
    }
    layer, table = "decoder.sentence_encoder.layers.0.", "decoder.sentence_encoder.embed_tokens.weight"
    assert list(tensors.names()) == [
        table,
        *(f"{layer}self_attn.{part}_proj.{kind}" for kind in ("weight", "bias") for part in "qkv"),
        f"{layer}self_attn.out_proj.weight",
        f"{layer}encoder_attn.in_proj_weight",
    ]
    for kind, shape in (("weight", (13, 11)), ("bias", (13,))):
        fused = stored["model"][f"{layer}self_attn.in_proj_{kind}"].numpy()
        for i, part in enumerate("qkv"):
            name = f"{layer}self_attn.{part}_proj.{kind}"
            assert (tensors.shape(name), tensors.dtype(name)) == (shape, "float16")
            assert tensors.read(name).tobytes() == fused[13 * i : 13 * (i + 1)].tobytes()
            assert tensors.file_of(name) == tmp_path / "model.pt"


def test_checkpoints_of_newer_fairseq_are_read(tmp_path):
    for model in ({"arch": "roberta"}, argparse.Namespace(arch="roberta")):
        save({"args": None, "cfg": {"model": model}, "model": state_dict()}, tmp_path / "model.pt", "zip")
        tensors = TorchFile(tmp_path)
        assert list(tensors.names()) == list(state_dict())
        assert tensors.extra == {"args": None, "cfg": {"model": {"arch": "roberta"}}}


@pytest.mark.parametrize("shape", [(40, 11), ()])
def test_tensors_that_are_not_three_parts_are_refused(tmp_path, shape):
    path = save({"layers.0.self_attn.in_proj_weight": random_tensor("float32", *shape)}, tmp_path / "model.pt", "zip")
    with pytest.raises(PresetError, match=rf"{path}: 'layers.0.self_attn.in_proj_weight' has shape \({shape or ''}"):
        TorchFile(path)


def test_two_layouts_of_attention_in_one_file_are_refused(tmp_path):
    state = {
        "self_attn.in_proj_bias": random_tensor("float32", 39),
        "self_attn.v_proj.bias": random_tensor("float32", 13),
    }
    path = save(state, tmp_path / "model.pt", "zip")
    with pytest.raises(PresetError, match=rf"{path} holds 'self_attn.v_proj.bias' twice"):
        TorchFile(path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([torch.ones(3)], "holds a list, expected a state dict"),
        (torch.ones(3), "holds a Tensor, expected a state dict"),
        ({"state_dict": {"weight": torch.ones(3)}}, "'state_dict' is a dict, expected a tensor"),
        ({"model": {"weight": torch.ones(3)}}, "'model' is a dict"),
        ({"weight": torch.ones(3), "epoch": 7}, "'epoch' is a int, expected a tensor"),
        ({"weight": [torch.ones(3)]}, "'weight' is a list"),
        ({7: torch.ones(3)}, "7 is a Tensor"),
        ({"args": argparse.Namespace(), "model": {"weight": {"inner": torch.ones(3)}}}, "'weight' is a dict"),
        ({"args": argparse.Namespace(), "model": torch.ones(3)}, "'args' is a Namespace"),
    ],
)
def test_only_state_dicts_are_read(tmp_path, value, message):
    path = save(value, tmp_path / "model.pt", "zip")
    with pytest.raises(PresetError, match=rf"{path}.*{message}"):
        TorchFile(path)


def test_endless_extras_are_left_out(tmp_path):
    """Small files can hold values that never end, or take practically forever."""
    circle: list = []
    circle += [circle] * 1000
    doubled: list = []
    for _ in range(100):
        doubled = [doubled, doubled]
    path = save(make_fairseq_checkpoint(circle=circle, doubled=doubled, fine=3), tmp_path / "model.pt", "zip")
    with memory_grows_less_than(50 << 20):
        assert TorchFile(path).extra.keys() == {"args", "fine"}


def test_allowed_classes_are_restored(tmp_path):
    path = save(make_fairseq_checkpoint(), tmp_path / "model.pt", "zip")
    assert argparse.Namespace not in (before := torch.serialization.get_safe_globals())
    TorchFile(path)
    assert set(torch.serialization.get_safe_globals()) == set(before)
    with torch.serialization.safe_globals([argparse.Namespace]):
        TorchFile(path)
        assert argparse.Namespace in torch.serialization.get_safe_globals()


def test_torch_is_required(tmp_path, monkeypatch):
    path = save(state_dict(), tmp_path / "pytorch_model.bin", "zip")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(PresetError, match=rf"{path} was written by PyTorch.*pip install 'lmzoo\[torch\]'.*safetensors"):
        TorchFile(path)


@pytest.mark.parametrize("container", CONTAINERS)
def test_truncated_files_are_refused(tmp_path, container):
    path = save(make_fairseq_checkpoint(), tmp_path / "model.pt", container)
    data = path.read_bytes()
    for twentieth in range(20):
        path.write_bytes(data[: len(data) * twentieth // 20 or 3])
        with pytest.raises(PresetError, match=f"{path} (is not a whole file of PyTorch's|cannot be read as PyTorch's)"):
            TorchFile(path)


@pytest.mark.quick_cases("legacy")
@pytest.mark.parametrize("container", CONTAINERS)
def test_flipped_bits_give_errors_or_the_same_values(tmp_path, container):
    """Legacy files have no checksums: their tensors may change, but not grow beyond the file."""
    path = save(make_fairseq_checkpoint(), tmp_path / "model.pt", container)
    data, messages, whole = path.read_bytes(), [], TorchFile(path)
    expected = {name: whole.read(name).tobytes() for name in whole.names()}
    for offset in np.random.default_rng(1301).permutation(len(data))[:500]:
        changed = bytearray(data)
        changed[offset] ^= 1 << offset % 8
        path.write_bytes(changed)
        try:
            tensors = TorchFile(path)
            values = {name: tensors.read(name).tobytes() for name in tensors.names()}
        except PresetError as error:
            messages.append(str(error))
        else:
            assert all(len(value) <= len(data) for value in values.values())
            assert container == "legacy" or values == expected
    assert len(messages) > 50
    assert all(str(path) in message for message in messages)


def test_checksums_of_all_values_are_checked_once(tmp_path, monkeypatch):
    """Also if the file is opened again because much was read from it."""
    checked, check = [], torch_files._verify_checksums
    monkeypatch.setattr(torch_files, "_verify_checksums", lambda file: checked.append(file) or check(file))
    monkeypatch.setattr(torch_files, "_MAX_MAPPED_BYTES", 1)
    path = save({"a": torch.full((331,), 3), "b": torch.full((331,), 5)}, tmp_path / "x.bin", "zip")
    tensors = TorchFile(path)
    assert [tensors.read(name)[330] for name in ("a", "b", "a")] == [3, 5, 3]
    assert checked == [path]
    data = bytearray(path.read_bytes())
    data[data.rindex(bytes([5, *bytes(7)] * 100)) + 8] = 7
    path.write_bytes(data)
    for name in ("a", "b"):
        with pytest.raises(PresetError, match=r"x\.bin was altered: the checksum of 'x/data/1' in it differs"):
            TorchFile(path).read(name)


@pytest.mark.parametrize(
    "content", [b"weights", b"PK\x03\x04" + bytes(500), b"\x80\x02}q\x00.", b"PK\x05\x06" + bytes(18)]
)
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(content)
    with pytest.raises(PresetError, match=f"{path} is not a whole file of PyTorch's"):
        TorchFile(path)


def test_a_git_lfs_pointer_is_named(tmp_path):
    (tmp_path / "pytorch_model.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(PresetError, match="Git LFS pointer"):
        TorchFile(tmp_path)


def test_torchscript_is_refused(tmp_path):
    path = save(state_dict(), tmp_path / "model.pt", "zip")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("model/constants.pkl", b"\x80\x02).")
    with pytest.raises(PresetError, match=f"{path} is a TorchScript program"):
        TorchFile(path)


def test_other_pickle_protocols_are_refused(tmp_path):
    torch.save({"a": torch.ones(3)}, tmp_path / "x.bin", pickle_protocol=4)
    with pytest.raises(PresetError, match=r"x.bin is pickled with protocol 4, expected 2"):
        TorchFile(tmp_path / "x.bin")


def test_compressed_files_are_refused(tmp_path):
    """Mapped bytes would be taken for values, and 1 MB can unpack to 1 GB."""
    path = save(state_dict(), tmp_path / "stored.bin", "zip")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "x.bin", "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
    with pytest.raises(PresetError, match=r"x.bin is compressed"):
        TorchFile(tmp_path / "x.bin")


class FalseTensor:
    """Value that is pickled as a tensor of any shape on a storage of any claimed size."""

    def __init__(self, stored: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.stored, self.layout = stored, (0, shape, strides, False, OrderedDict())

    def __reduce__(self):
        return torch._utils._rebuild_tensor_v2, (Storage(self.stored), *self.layout)


class Storage(int):
    pass


class Pickler(pickle.Pickler):
    legacy = False

    def persistent_id(self, value):
        if isinstance(value, Storage):
            return ("storage", torch.FloatStorage, "0", "cpu", int(value), *([None] if self.legacy else []))
        return None


def forge(path: Path, container: str, tensor: FalseTensor) -> None:
    pickled = io.BytesIO()
    pickler = Pickler(pickled, 2)
    pickler.legacy = container == "legacy"
    pickler.dump({"weight": tensor})
    if container == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x/data.pkl", pickled.getvalue())
            archive.writestr("x/data/0", bytes(80))
            archive.writestr("x/version", "3\n")
    else:
        head = [pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})]
        tail = [pickle.dumps(["0"], 2), struct.pack("<q", 20), bytes(80)]
        path.write_bytes(b"".join([*head, pickled.getvalue(), *tail]))


TERABYTE = (1 << 20, 1 << 18)
FALSE_TENSORS = {
    "nothing": FalseTensor(20, (4, 5), (5, 1)),
    "storage": FalseTensor(1 << 38, TERABYTE, (1 << 18, 1)),
    "shape": FalseTensor(20, TERABYTE, (1 << 18, 1)),
    "strides of 0": FalseTensor(20, TERABYTE, (0, 0)),
    "gigabytes": FalseTensor(20, (1 << 15, 1 << 15), (1 << 15, 1)),
    "gigabytes of storage": FalseTensor(1 << 30, (1 << 15, 1 << 15), (1 << 15, 1)),
    "negative strides": FalseTensor(20, (4, 5), (-5, -1)),
    "negative shape": FalseTensor(20, (-4, -5), (5, 1)),
    "negative storage": FalseTensor(-20, (4, 5), (5, 1)),
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_false_sizes_are_refused_at_no_cost(tmp_path, container):
    for name, tensor in FALSE_TENSORS.items():
        forge(tmp_path / name, container, tensor)
    assert TorchFile(tmp_path / "nothing").read("weight").tobytes() == bytes(80)
    start = time.perf_counter()
    with memory_grows_less_than(50 << 20):
        for name in FALSE_TENSORS.keys() - {"nothing"}:
            with pytest.raises(PresetError, match=f"{tmp_path / name} "):
                TorchFile(tmp_path / name)
    assert time.perf_counter() - start < 2
