"""What PyTorch wrote is read with its values, and through nothing but weights_only."""

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
from tests.memory import memory_grows_less_than

torch = pytest.importorskip("torch")

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
CONTAINERS = ["zip", "legacy"]


def save(value: object, path: Path, container: str) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=container == "zip")
    assert zipfile.is_zipfile(path) == (container == "zip")
    return path


def some(dtype: str, *shape: int) -> torch.Tensor:
    """Every bit pattern is a value, NaNs too."""
    dtype = getattr(torch, dtype)
    count = int(np.prod(shape)) * dtype.itemsize
    values = np.random.default_rng(1301).integers(0, 2 if dtype is torch.bool else 256, count, "uint8")
    return torch.from_numpy(values).view(dtype).reshape(shape)


def state_dict() -> dict[str, torch.Tensor]:
    return OrderedDict((f"layer.{dtype}", some(dtype, 7, 11)) for dtype in DTYPES)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values(tmp_path, container, dtype):
    tensor = some(dtype, 7, 11)
    entries = {
        "weight": tensor,
        "transposed": tensor.T,
        "part": tensor[2:, :5],
        "tied": tensor,
        "scalar": tensor[3, 2],
        "empty": tensor[:0],
        "axes": some(dtype, 2, 3, 5, 7),
    }
    path = save(entries, tmp_path / "pytorch_model.bin", container)
    tensors = TorchFile(path)
    assert list(tensors.names()) == list(entries)
    assert tensors.extra == {}
    for name, expected in entries.items():
        read = tensors.read(name)
        assert tensors.dtype(name) == read.dtype.name == dtype
        assert tensors.shape(name) == read.shape == tuple(expected.shape)
        assert read.tobytes() == bytes(expected.contiguous().flatten().view(torch.uint8).numpy())
        assert tensors.file_of(name) == path


@pytest.mark.parametrize("container", CONTAINERS)
def test_parameters(tmp_path, container):
    module = torch.nn.Linear(11, 7)
    save(module.state_dict(keep_vars=True), tmp_path / "pytorch_model.bin", container)
    tensors = TorchFile(tmp_path)
    assert list(tensors.names()) == ["weight", "bias"]
    np.testing.assert_array_equal(tensors.read("weight"), module.weight.detach().numpy())


def test_bfloat16_keeps_its_values(tmp_path):
    path = save({"weight": torch.tensor([1.0, -2.5, 3.0]).bfloat16()}, tmp_path / "x.bin", "zip")
    read = TorchFile(path).read("weight")
    assert read.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(read.astype("float32"), np.array([1.0, -2.5, 3.0], "float32"))


@pytest.mark.parametrize("container", CONTAINERS)
def test_what_is_read_is_the_readers_own(tmp_path, container):
    path = save({"weight": some("int32", 7, 11)}, tmp_path / "x.bin", container)
    tensors, data = TorchFile(path), path.read_bytes()
    tensors.read("weight")[:] = 3
    np.testing.assert_array_equal(tensors.read("weight"), some("int32", 7, 11).numpy())
    assert path.read_bytes() == data


def resident(path: Path) -> int:
    """Bytes of a mapped file that count as this process's memory."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    starts = [number for number, line in enumerate(lines) if line.endswith(str(path))]
    sizes = [next(line for line in lines[start:] if line.startswith("Rss:")) for start in starts]
    return sum(int(size.split()[1]) * 1024 for size in sizes)


@pytest.mark.slow
def test_what_was_read_does_not_stay_in_memory(tmp_path, monkeypatch):
    size, count, limit = 1 << 20, 23, 5 << 20
    monkeypatch.setattr(torch_files, "_MOST_MAPPED", limit)
    path = save({f"layer.{i}": torch.full((size // 4,), i) for i in range(count)}, tmp_path / "x.bin", "zip")
    tensors, sizes = TorchFile(path), []
    assert resident(path) < size
    for i in range(count):
        assert tensors.read(f"layer.{i}")[-1] == i
        sizes.append(resident(path))
    assert size <= max(sizes) < limit + 4 * size


@pytest.mark.parametrize("container", CONTAINERS)
def test_parts(tmp_path, container):
    parts = {"pytorch_model-00001-of-00002.bin": ["a", "b"], "pytorch_model-00002-of-00002.bin": ["c"]}
    for part, names in parts.items():
        save({name: some("float32", 7, ord(name)) for name in names}, tmp_path / part, container)
    weight_map = {name: part for part, names in parts.items() for name in names}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    tensors = TorchFile(tmp_path)
    assert set(tensors.names()) == {"a", "b", "c"}
    for name, part in weight_map.items():
        assert tensors.file_of(name) == tmp_path / part
        np.testing.assert_array_equal(tensors.read(name), some("float32", 7, ord(name)).numpy())
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map | {"c": "../c.bin"}}))
    with pytest.raises(PresetError, match=r"names '../c.bin' as one of its files"):
        TorchFile(tmp_path)


def fairseq(**more: object) -> dict[str, object]:
    """A checkpoint as fairseq lays it out, attention in the older way."""
    state = OrderedDict(
        {
            "decoder.sentence_encoder.embed_tokens.weight": some("float16", 31, 11),
            "decoder.sentence_encoder.layers.0.self_attn.in_proj_weight": some("float16", 39, 11),
            "decoder.sentence_encoder.layers.0.self_attn.in_proj_bias": some("float16", 39),
            "decoder.sentence_encoder.layers.0.self_attn.out_proj.weight": some("float16", 11, 13),
            "decoder.sentence_encoder.layers.0.encoder_attn.in_proj_weight": some("float16", 5, 2),
        }
    )
    args = argparse.Namespace(arch="roberta_base", encoder_layers=1, dropout=0.1, lr=[0.0006], data=None, fp16=True)
    return {"args": args, "model": state, **more}


@pytest.mark.parametrize("container", CONTAINERS)
def test_fairseq(tmp_path, container):
    others = {
        "optimizer_history": [{"criterion_name": "MaskedLmLoss", "num_updates": 500_000}],
        "last_optimizer_state": {"exp_avg": some("float32", 3)},
        "cfg": None,
    }
    stored = fairseq(**others)
    save(stored, tmp_path / "model.pt", container)
    tensors = TorchFile(tmp_path)
    assert tensors.extra == {
        "args": vars(stored["args"]),
        "optimizer_history": others["optimizer_history"],
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


def test_newer_fairseq(tmp_path):
    for model in ({"arch": "roberta"}, argparse.Namespace(arch="roberta")):
        save({"args": None, "cfg": {"model": model}, "model": state_dict()}, tmp_path / "model.pt", "zip")
        tensors = TorchFile(tmp_path)
        assert list(tensors.names()) == list(state_dict())
        assert tensors.extra == {"args": None, "cfg": {"model": {"arch": "roberta"}}}


@pytest.mark.parametrize("shape", [(40, 11), ()])
def test_thirds_that_are_none(tmp_path, shape):
    path = save({"layers.0.self_attn.in_proj_weight": some("float32", *shape)}, tmp_path / "model.pt", "zip")
    with pytest.raises(PresetError, match=rf"{path}: 'layers.0.self_attn.in_proj_weight' has shape \({shape or ''}"):
        TorchFile(path)


def test_both_attention_layouts(tmp_path):
    state = {"self_attn.in_proj_bias": some("float32", 39), "self_attn.v_proj.bias": some("float32", 13)}
    path = save(state, tmp_path / "model.pt", "zip")
    with pytest.raises(PresetError, match=rf"{path} holds 'self_attn.v_proj.bias' twice"):
        TorchFile(path)


@pytest.mark.parametrize("container", CONTAINERS)
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
def test_what_is_no_state_dict(tmp_path, container, value, message):
    path = save(value, tmp_path / "model.pt", container)
    with pytest.raises(PresetError, match=rf"{path}.*{message}"):
        TorchFile(path)


def test_extras_that_are_traps(tmp_path):
    """Small files may hold what is endless, or as good as."""
    circle: list = []
    circle += [circle] * 1000
    doubled: list = []
    for _ in range(100):
        doubled = [doubled, doubled]
    path = save(fairseq(circle=circle, doubled=doubled, fine=3), tmp_path / "model.pt", "zip")
    with memory_grows_less_than(50 << 20):
        assert TorchFile(path).extra.keys() == {"args", "fine"}


def test_permission_is_not_left_behind(tmp_path):
    path = save(fairseq(), tmp_path / "model.pt", "zip")
    assert argparse.Namespace not in (before := torch.serialization.get_safe_globals())
    TorchFile(path)
    assert set(torch.serialization.get_safe_globals()) == set(before)
    with torch.serialization.safe_globals([argparse.Namespace]):
        TorchFile(path)
        assert argparse.Namespace in torch.serialization.get_safe_globals()


def test_without_torch(tmp_path, monkeypatch):
    path = save(state_dict(), tmp_path / "pytorch_model.bin", "zip")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(PresetError, match=rf"{path} was written by PyTorch.*pip install 'lmzoo\[torch\]'.*safetensors"):
        TorchFile(path)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("place", range(20))
def test_truncated(tmp_path, container, place):
    path = save(fairseq(), tmp_path / "model.pt", container)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * place // 20 or 3])
    with pytest.raises(PresetError, match=f"{path} (is not a whole file of PyTorch's|cannot be read as PyTorch's)"):
        TorchFile(path)


@pytest.mark.quick_cases("legacy")
@pytest.mark.parametrize("container", CONTAINERS)
def test_flipped_bits(tmp_path, container):
    """An error that names the file, or the same values; from an older file, which has no checksums, tensors no larger
    than it.
    """
    path = save(fairseq(), tmp_path / "model.pt", container)
    data, messages, whole = path.read_bytes(), [], TorchFile(path)
    expected = {name: whole.read(name).tobytes() for name in whole.names()}
    for place in np.random.default_rng(1301).permutation(len(data))[:500]:
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
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


def test_altered_values(tmp_path, monkeypatch):
    """All of a file is checked, once, even if it is opened again since too much was read."""
    checked, check = [], torch_files._check_sums
    monkeypatch.setattr(torch_files, "_check_sums", lambda file: checked.append(file) or check(file))
    monkeypatch.setattr(torch_files, "_MOST_MAPPED", 1)
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
def test_other_files(tmp_path, content):
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(content)
    with pytest.raises(PresetError, match=f"{path} is not a whole file of PyTorch's"):
        TorchFile(path)


def test_pointer_in_place_of_weights(tmp_path):
    (tmp_path / "pytorch_model.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(PresetError, match="Git LFS pointer"):
        TorchFile(tmp_path)


def test_torchscript(tmp_path, monkeypatch):
    path = save(state_dict(), tmp_path / "model.pt", "zip")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("model/constants.pkl", b"\x80\x02).")
    with pytest.raises(PresetError, match=f"{path} is a TorchScript program"):
        TorchFile(path)


def test_other_protocols(tmp_path):
    torch.save({"a": torch.ones(3)}, tmp_path / "x.bin", pickle_protocol=4)
    with pytest.raises(PresetError, match=r"x.bin is pickled with protocol 4, expected 2"):
        TorchFile(tmp_path / "x.bin")


def test_compressed(tmp_path):
    """The mapped bytes would be taken for values; and 1 MB can unpack to 1 GB."""
    path = save(state_dict(), tmp_path / "stored.bin", "zip")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "x.bin", "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
    with pytest.raises(PresetError, match=r"x.bin is compressed"):
        TorchFile(tmp_path / "x.bin")


class Lie:
    """Pickled as a tensor of any shape on a storage that says to have any size."""

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


def forge(path: Path, container: str, lie: Lie) -> None:
    pickled = io.BytesIO()
    pickler = Pickler(pickled, 2)
    pickler.legacy = container == "legacy"
    pickler.dump({"weight": lie})
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
LIES = {
    "nothing": Lie(20, (4, 5), (5, 1)),
    "storage": Lie(1 << 38, TERABYTE, (1 << 18, 1)),
    "shape": Lie(20, TERABYTE, (1 << 18, 1)),
    "strides of 0": Lie(20, TERABYTE, (0, 0)),
    "gigabytes": Lie(20, (1 << 15, 1 << 15), (1 << 15, 1)),
    "gigabytes of storage": Lie(1 << 30, (1 << 15, 1 << 15), (1 << 15, 1)),
    "negative strides": Lie(20, (4, 5), (-5, -1)),
    "negative shape": Lie(20, (-4, -5), (5, 1)),
    "negative storage": Lie(-20, (4, 5), (5, 1)),
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_lies_about_sizes_cost_nothing(tmp_path, container):
    for name, lie in LIES.items():
        forge(tmp_path / name, container, lie)
    assert TorchFile(tmp_path / "nothing").read("weight").tobytes() == bytes(80)
    start = time.perf_counter()
    with memory_grows_less_than(50 << 20):
        for name in LIES.keys() - {"nothing"}:
            with pytest.raises(PresetError, match=f"{tmp_path / name} "):
                TorchFile(tmp_path / name)
    assert time.perf_counter() - start < 2
