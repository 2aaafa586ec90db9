"""Files that were made to run code, to write elsewhere, or to fill the memory: `.keras` files and presets."""

from __future__ import annotations

import base64
import copy
import json
import marshal
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest

from lmzoo.cli.task_commands import load_task
from lmzoo.family import families
from lmzoo.models import Task, TextClassifier
from lmzoo.presets import PresetError
from lmzoo.testing import tiny_backbone, tiny_preprocessor

SECONDS = 2.0
KERNEL = "classifier/logits/kernel"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A task as `task.keras` and as the preset `preset`, without a manifest."""
    directory = tmp_path_factory.mktemp("made")
    family = families()["bert"]
    task = TextClassifier(tiny_backbone(family, num_layers=1), tiny_preprocessor(family), num_classes=3)
    task.save(directory / "task.keras")
    task.save_to_preset(directory / "preset")
    (directory / "preset/manifest.json").unlink()
    return directory


@pytest.fixture
def mark(tmp_path, monkeypatch) -> Path:
    """What the attacks try to make; the test fails if one did."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "RAN"


def members_of(made: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(made / "task.keras") as file:
        return {name: file.read(name) for name in file.namelist()}


def write(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)


def refused(load, mark: Path) -> str:
    """The message of the error that `load` raises, in time and before anything ran."""
    before = time.process_time()
    with pytest.raises((ValueError, TypeError)) as error:
        load()
    assert time.process_time() - before <= SECONDS
    assert not mark.exists()
    return str(error.value)


def attacks(mark: Path) -> dict[str, dict[str, Any]]:
    """Serialised objects that make `mark` if they are built."""
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
        "os.system": foreign("os", "system", {"command": f"touch {mark}"}),
        "os.system by name": {**foreign("os", "system", f"touch {mark}"), "registered_name": "os>system"},
        "Popen": foreign("subprocess", "Popen", {"args": ["touch", str(mark)]}),
        "function": {**foreign("builtins", "function", "system"), "registered_name": "system"},
        "our own": foreign(
            "lmzoo.files.preset_files", "write_json", {"directory": ".", "name": mark.name, "value": {}}
        ),
        "download": foreign("keras.utils", "get_file", {"fname": str(mark), "origin": Path(__file__).as_uri()}),
    }


def foreign(module: str, name: str, config: Any) -> dict[str, Any]:
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


def replaced(config: dict[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
    if not place:
        return value
    config = copy.deepcopy(config)
    inside = config
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    return config


@pytest.mark.parametrize("place", PLACES)
def test_code_in_a_keras_file(place, made, mark, tmp_path):
    members = members_of(made)
    for attack in attacks(mark).values():
        config = replaced(json.loads(members["config.json"]), PLACES[place], attack)
        write(tmp_path / "it.keras", {**members, "config.json": json.dumps(config).encode()})
        assert refused(lambda: keras.saving.load_model(tmp_path / "it.keras"), mark)
        assert refused(lambda: Task.load(tmp_path / "it.keras"), mark)


def test_the_attacks_would_work(mark):
    """Built by somebody who trusts them, they do what they are made for: what is refused above is not harmless."""
    code = attacks(mark)["lambda"]["config"]["function"]["config"]["code"]
    eval(marshal.loads(base64.b64decode(code))).close()
    assert mark.exists()


@pytest.mark.parametrize("name", ["../RAN", "assets/../../RAN", "{}/RAN"])
@pytest.mark.filterwarnings("ignore:Skipping invalid path:UserWarning")
def test_members_outside_of_a_keras_file(name, made, mark, tmp_path):
    """They are left out, and the model is what it was."""
    (tmp_path / "in").mkdir()
    write(tmp_path / "in/it.keras", {**members_of(made), name.format(tmp_path): b"x"})
    model = keras.saving.load_model(tmp_path / "in/it.keras")
    assert isinstance(model, TextClassifier)
    assert [path for path in tmp_path.rglob("*") if path.name == "RAN"] == []
    assert not (tmp_path.parent / "RAN").exists()
    assert "only relative paths inside it" in refused(lambda: Task.load(tmp_path / "in/it.keras"), mark)


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """An empty folder that serves as the system's temporary directory."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("member", ["config.json", "model.weights.h5", "assets/preprocessor/vocabulary.txt", "extra"])
def test_a_bomb_in_a_keras_file(member, made, mark, tmp_path, temporary):
    """Keras itself reads the first two into memory, unless they are larger than 4 GiB."""
    with zipfile.ZipFile(tmp_path / "it.keras", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name, content in members_of(made).items():
            if name != member:
                file.writestr(name, content)
        with file.open(member, "w") as opened:
            for _ in range(70):
                opened.write(bytes(1 << 20))
    assert "unpacks to more than 10 times its size" in refused(lambda: Task.load(tmp_path / "it.keras"), mark)
    with pytest.raises(ValueError, match=r"cannot be loaded: it\.keras is refused: it unpacks to more than 10 times"):
        load_task(str(tmp_path / "it.keras"))
    assert list(temporary.iterdir()) == []


def bad_checksum(path: Path) -> None:
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as file:
        info = next(info for info in file.infolist() if info.filename.endswith("vocabulary.txt"))
    data[info.header_offset + 30 + len(info.filename) + 7] ^= 1
    path.write_bytes(data)


def without(name: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with zipfile.ZipFile(path) as file:
            kept = {other: file.read(other) for other in file.namelist() if other != name}
        write(path, kept)

    return change


def other_weights(path: Path) -> None:
    without("model.weights.h5")(path)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("model.weights.h5", b"\x89HDF")


DAMAGES = {
    "checksum": (bad_checksum, r"it.keras is damaged or not an archive \(Bad CRC-32"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "damaged or not an archive .File is not a zip"),
    "no configuration": (without("config.json"), "it.keras is not a Keras model: it holds no config.json"),
    "no weights": (without("model.weights.h5"), "weights in .*it.keras cannot be read: Expected a model.weights.h5"),
    "other weights": (other_weights, "weights in .*it.keras cannot be read: .*signature"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_keras_file_leaves_no_folder(damage, made, tmp_path, temporary):
    change, message = DAMAGES[damage]
    change(Path(shutil.copy(made / "task.keras", tmp_path / "it.keras")))
    with pytest.raises(ValueError, match=message):
        Task.load(tmp_path / "it.keras")
    assert list(temporary.iterdir()) == []


def huge(file: h5py.File, name: str) -> None:
    del file[name]
    file.create_dataset(name, shape=(10**6, 10**6), dtype="float32", chunks=(1000, 1000))


def outside(file: h5py.File, name: str) -> None:
    shape = file[name].shape
    del file[name]
    Path("secret").write_bytes(bytes(10**5))
    file.create_dataset(name, shape=shape, dtype="float32", external=[("secret", 0, h5py.h5f.UNLIMITED)])


def linked(file: h5py.File, name: str) -> None:
    with h5py.File("other.h5", "w") as other:
        other["x"] = np.zeros(file[name].shape)
    del file[name]
    file[name] = h5py.ExternalLink("other.h5", "x")


def first_dataset(path: Path) -> str:
    names: list[str] = []
    with h5py.File(path) as file:
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return names[0]


WEIGHTS = {"huge": huge, "outside": outside, "linked": linked}


@pytest.mark.parametrize("attack", WEIGHTS)
def test_weights_of_a_keras_file(attack, made, mark, tmp_path):
    members, weights = members_of(made), tmp_path / "weights.h5"
    weights.write_bytes(members["model.weights.h5"])
    with h5py.File(weights, "a") as file:
        WEIGHTS[attack](file, first_dataset(weights))
    write(tmp_path / "it.keras", {**members, "model.weights.h5": weights.read_bytes()})
    for load in (keras.saving.load_model, Task.load):
        assert "Not allowed" in refused(lambda load=load: load(tmp_path / "it.keras"), mark)


@pytest.fixture
def preset(made, tmp_path) -> Path:
    return Path(shutil.copytree(made / "preset", tmp_path / "preset"))


@pytest.mark.parametrize("file", ["model.weights.h5", "task.weights.h5"])
@pytest.mark.parametrize("attack", WEIGHTS)
def test_weights_of_a_preset(attack, file, preset, mark):
    name = KERNEL if file == "task.weights.h5" else first_dataset(preset / file)
    with h5py.File(preset / file, "a") as opened:
        WEIGHTS[attack](opened, name)
    message = refused(lambda: TextClassifier.from_preset(preset), mark)
    assert file in message or "Not allowed" in message


def test_code_in_a_preset(preset, mark):
    """Even where Keras was told to trust files: a preset's parts are built by us, from our classes alone."""
    preprocessor = json.loads((preset / "preprocessor.json").read_text())
    config = json.loads((preset / "config.json").read_text())
    keras.config.enable_unsafe_deserialization()
    try:
        for attack in attacks(mark).values():
            for file, content in (
                ("preprocessor.json", replaced(preprocessor, ("config", "tokenizer"), attack)),
                ("preprocessor.json", attack),
                ("config.json", attack),
                ("config.json", replaced(config, ("config", "activation"), attack)),
            ):
                before = (preset / file).read_text()
                (preset / file).write_text(json.dumps(content))
                message = refused(lambda: TextClassifier.from_preset(preset), mark)
                assert file in message or "BertBackbone: unhashable" in message
                (preset / file).write_text(before)
    finally:
        keras.backend.clear_session()  # which makes it distrustful again
    assert isinstance(TextClassifier.from_preset(preset), TextClassifier)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"registered_name": "lmzoo>BertBackbone"}, "names no tokenizer of lmzoo: 'lmzoo>BertBackbone'"),
        ({"config": {"shell": "sh"}}, "does not describe a preprocessor of lmzoo: .*shell"),
        ({"config": None}, "does not describe a preprocessor of lmzoo"),
    ],
)
def test_what_is_no_tokenizer(change, message, preset):
    stored = json.loads((preset / "preprocessor.json").read_text())
    stored["config"]["tokenizer"] |= change
    (preset / "preprocessor.json").write_text(json.dumps(stored))
    with pytest.raises(PresetError, match=message):
        TextClassifier.from_preset(preset)


def test_a_keras_file_is_no_preset(made):
    with pytest.raises(PresetError, match=r"It is a file, and a preset is a directory \(`keras.saving.load_model`"):
        TextClassifier.from_preset(made / "task.keras")
