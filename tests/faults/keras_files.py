"""Malicious contents of `.keras` files and presets: they try to run code, write elsewhere or fill the memory."""

from __future__ import annotations

import base64
import copy
import json
import marshal
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np


def read_members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def write_archive(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)


def attacks(mark: Path) -> dict[str, dict[str, Any]]:
    """Return serialized objects that create the file `mark` if they are built."""
    code = compile(f"open({str(mark)!r}, 'w')", "attack", "eval")
    encoded = base64.b64encode(marshal.dumps(code)).decode()
    function = {"class_name": "__lambda__", "config": {"code": encoded, "defaults": None, "closure": None}}
    lambda_layer = {
        "module": "keras.layers",
        "class_name": "Lambda",
        "config": {"name": "a", "function": function, "arguments": {}},
        "registered_name": None,
        "build_config": {"input_shape": [None, 3]},
    }
    model = {"module": "keras", "class_name": "Sequential", "config": {"name": "b", "layers": [lambda_layer]}}
    return {
        "lambda": lambda_layer,
        "lambda in a model": {**model, "registered_name": None},
        "bare lambda": {"class_name": "__lambda__", "config": {"value": [encoded, None, None]}},
        "os.system": serialized_object("os", "system", {"command": f"touch {mark}"}),
        "os.system by name": {**serialized_object("os", "system", f"touch {mark}"), "registered_name": "os>system"},
        "Popen": serialized_object("subprocess", "Popen", {"args": ["touch", str(mark)]}),
        "function": {**serialized_object("builtins", "function", "system"), "registered_name": "system"},
        "our own": serialized_object(
            "lmzoo.files.preset_files", "write_json", {"directory": ".", "name": mark.name, "value": {}}
        ),
        "download": serialized_object(
            "keras.utils", "get_file", {"fname": str(mark), "origin": Path(__file__).as_uri()}
        ),
    }


def serialized_object(module: str, name: str, config: Any) -> dict[str, Any]:
    return {"module": module, "class_name": name, "config": config, "registered_name": None}


PLACES = {
    "the file": (),
    "backbone": ("config", "backbone"),
    "preprocessor": ("config", "preprocessor"),
    "tokenizer": ("config", "preprocessor", "config", "tokenizer"),
    "dtype": ("config", "backbone", "config", "dtype"),
    "activation": ("config", "backbone", "config", "activation"),
    "loss": ("compile_config", "loss"),
    "optimizer": ("compile_config", "optimizer"),
}


def replace_part(config: dict[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
    if not place:
        return value
    config = copy.deepcopy(config)
    part = config
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    return config


# === Weights ===


def make_huge(file: h5py.File, name: str) -> None:
    del file[name]
    file.create_dataset(name, shape=(10**6, 10**6), dtype="float32", chunks=(1000, 1000))


def store_externally(file: h5py.File, name: str) -> None:
    shape, secret = file[name].shape, Path(file.filename).with_name("secret")
    del file[name]
    secret.write_bytes(bytes(10**5))
    file.create_dataset(name, shape=shape, dtype="float32", external=[(str(secret), 0, h5py.h5f.UNLIMITED)])


def link_to_another_file(file: h5py.File, name: str) -> None:
    other_file = Path(file.filename).with_name("other.h5")
    with h5py.File(other_file, "w") as opened:
        opened["x"] = np.zeros(file[name].shape)
    del file[name]
    file[name] = h5py.ExternalLink(str(other_file), "x")


WEIGHTS: dict[str, Callable[[h5py.File, str], None]] = {
    "huge": make_huge,
    "outside": store_externally,
    "linked": link_to_another_file,
}


def first_dataset(path: Path) -> str:
    names: list[str] = []
    with h5py.File(path) as file:
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return names[0]


# === Damaged archives and members ===


def damage_checksum(path: Path) -> None:
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as file:
        info = next(info for info in file.infolist() if info.filename.endswith("vocabulary.txt"))
    data[info.header_offset + 30 + len(info.filename) + 7] ^= 1
    path.write_bytes(data)


def remove_member(name: str) -> Callable[[Path], None]:
    return lambda path: write_archive(
        path, {member: data for member, data in read_members(path).items() if member != name}
    )


def replace_weights(path: Path) -> None:
    write_archive(path, {**read_members(path), "model.weights.h5": b"\x89HDF"})


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "checksum": (damage_checksum, r"it.keras is damaged or not an archive \(Bad CRC-32"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "damaged or not an archive .File is not a zip"),
    "no configuration": (remove_member("config.json"), "it.keras is not a Keras model: it holds no config.json"),
    "no weights": (
        remove_member("model.weights.h5"),
        "weights in .*it.keras cannot be read: Expected a model.weights.h5",
    ),
    "other weights": (replace_weights, "weights in .*it.keras cannot be read: .*signature"),
}


def write_bomb(path: Path, members: dict[str, bytes], member: str) -> None:
    """Write an archive with 70 MiB of zeros in place of one member."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name, content in members.items():
            if name != member:
                file.writestr(name, content)
        with file.open(member, "w") as opened:
            for _ in range(70):
                opened.write(bytes(1 << 20))


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Apply a function to the JSON in a file; the function changes the value in place."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
