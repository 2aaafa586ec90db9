"""`.keras` files, presets and checkpoints that were made to do something else than to be loaded."""

from __future__ import annotations

import base64
import functools
import json
import marshal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest

from tests.faults.ground import Ground
from tests.faults.keras_files import (
    DAMAGES,
    PLACES,
    WEIGHTS,
    attacks,
    bomb,
    edit,
    first_dataset,
    members_of,
    replaced,
    write,
)

KERNEL = "classifier/logits/kernel"


@pytest.mark.parametrize("place", PLACES)
def test_code_in_a_keras_file(place: str, ground: Ground) -> None:
    file = ground.copy("keras")
    members = members_of(file)
    for attack in attacks(ground.folder / "RAN").values():
        config = replaced(json.loads(members["config.json"]), PLACES[place], attack)
        write(file, {**members, "config.json": json.dumps(config).encode()})
        ground.refused("with_lmzoo", file)
        ground.refused("with_keras", file)


def test_the_attacks_would_work(tmp_path: Path) -> None:
    """Built by somebody who trusts them, they do what they are made for: what is refused above is not harmless."""
    code = attacks(tmp_path / "RAN")["lambda"]["config"]["function"]["config"]["code"]
    eval(marshal.loads(base64.b64decode(code))).close()
    assert (tmp_path / "RAN").exists()


@pytest.mark.parametrize("name", ["../RAN", "assets/../../RAN", "{}/RAN"])
def test_members_outside_of_a_keras_file(name: str, ground: Ground) -> None:
    """Keras leaves them out, lmzoo refuses the file."""
    file = ground.copy("keras")
    write(file, {**members_of(file), name.format(ground.folder): b"x"})
    assert ground.load("with_keras", file).ended == "done"
    ground.refused("with_lmzoo", file, "only relative paths inside it")


@pytest.mark.parametrize("member", ["config.json", "model.weights.h5", "assets/preprocessor/vocabulary.txt", "extra"])
def test_a_bomb_in_a_keras_file(member: str, ground: Ground) -> None:
    """Keras itself reads the first two into memory, unless they are larger than 4 GiB."""
    file = ground.copy("keras")
    bomb(file, members_of(file), member)
    ground.refused("with_lmzoo", file, "unpacks to more than 10 times its size")
    ground.refused("on_the_command_line", file, r"cannot be loaded: model\.keras is refused: it unpacks to more than")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_keras_file(damage: str, ground: Ground) -> None:
    change, message = DAMAGES[damage]
    file = ground.copy("keras").rename(ground.folder / "it.keras")
    change(file)
    ground.refused("with_lmzoo", file, message)


@pytest.mark.parametrize("attack", WEIGHTS)
def test_weights_of_a_keras_file(attack: str, ground: Ground) -> None:
    file, weights = ground.copy("keras"), ground.folder / "weights.h5"
    members = members_of(file)
    weights.write_bytes(members["model.weights.h5"])
    with h5py.File(weights, "a") as opened:
        WEIGHTS[attack](opened, first_dataset(weights))
    write(file, {**members, "model.weights.h5": weights.read_bytes()})
    for load in ("with_lmzoo", "with_keras"):
        ground.refused(load, file, "Not allowed")


@pytest.mark.parametrize("attack", WEIGHTS)
@pytest.mark.parametrize("file", ["model.weights.h5", "task.weights.h5"])
def test_weights_of_a_preset(attack: str, file: str, ground: Ground) -> None:
    preset = ground.copy("preset without manifest")
    with h5py.File(preset / file, "a") as opened:
        WEIGHTS[attack](opened, KERNEL if file == "task.weights.h5" else first_dataset(preset / file))
    ground.refused("preset", preset, f"{file}|Not allowed")


@pytest.mark.parametrize("attack", WEIGHTS)
@pytest.mark.parametrize("kind", ["tf_model", "sharded tf_model"])
def test_weights_for_tensorflow(attack: str, kind: str, ground: Ground) -> None:
    folder = ground.copy(kind)
    file = min(folder.glob("*.h5"))
    with h5py.File(file, "a") as opened:
        WEIGHTS[attack](opened, first_dataset(file))
    ground.refused("tf_model", folder, file.name)


@pytest.mark.quick_cases("tokenizer")
@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("preprocessor.json", ("config", "tokenizer")),
        ("preprocessor.json", ()),
        ("config.json", ()),
        ("config.json", ("config", "activation")),
    ],
    ids=["tokenizer", "preprocessor", "backbone", "activation"],
)
def test_code_in_a_preset(file: str, place: tuple[str, ...], ground: Ground) -> None:
    preset = ground.copy("preset without manifest")
    stored = (preset / file).read_text()
    for attack in attacks(ground.folder / "RAN").values():
        (preset / file).write_text(json.dumps(replaced(json.loads(stored), place, attack)))
        ground.refused("trusted_preset", preset, f"{file}|BertBackbone: unhashable")
    (preset / file).write_text(stored)
    assert ground.load("preset", preset).ended == "done"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"registered_name": "lmzoo>BertBackbone"}, "names no tokenizer of lmzoo: 'lmzoo>BertBackbone'"),
        ({"config": {"shell": "sh"}}, "does not describe a preprocessor of lmzoo: .*shell"),
        ({"config": None}, "does not describe a preprocessor of lmzoo"),
    ],
)
def test_what_is_no_tokenizer(change: dict[str, Any], message: str, ground: Ground) -> None:
    preset = ground.copy("preset without manifest")
    edit(preset / "preprocessor.json", lambda stored: stored["config"]["tokenizer"].update(change))
    ground.refused("preset", preset, message)


def test_a_keras_file_is_no_preset(ground: Ground) -> None:
    ground.refused("preset", ground.copy("keras"), r"It is a file, and a preset is a directory \(`keras.saving.load_m")


@pytest.mark.parametrize("kind", ["hf", "preset without manifest"])
@pytest.mark.parametrize(
    "name",
    ["os>system", "builtins>eval", "subprocess>Popen", "keras>Lambda", "lmzoo>TextClassifier", "eval", "", None, 7],
)
def test_classes_outside_of_the_package(kind: str, name: Any, ground: Ground) -> None:
    """Repositories may name code of their own: it is neither imported nor fetched."""
    folder = ground.copy(kind)
    (folder / "modeling_own.py").write_text("open('RAN', 'w')")
    names = {"registered_name": name, "class_name": name, "module": "modeling_own", "model_type": name}
    if kind == "preset without manifest":
        del names["model_type"]
    edit(folder / "config.json", lambda stored: stored.update({**names, "architectures": [name]}))
    ground.refused("backbone", folder, "config.json")


def symbolic_link(folder: Path, name: str) -> None:
    (folder / name).rename(folder.parent / "secret")
    (folder / name).symlink_to("../secret")


def index_to(name: str, file: str = "model.safetensors") -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / file).unlink()
        (folder / f"{file}.index.json").write_text(json.dumps({"weight_map": {"a": name}}))

    return change


def header(length: int) -> Callable[[Path], None]:
    return lambda folder: void((folder / "model.safetensors").write_bytes(length.to_bytes(8, "little") + b"{" * 1000))


def void(_: object) -> None:
    """Nothing."""


def text(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: void((folder / name).write_text(content))


def configured(*path: str, **values: Any) -> Callable[[Path], None]:
    """Changes the values in a folder's configuration, or in a part of it."""

    def change(folder: Path) -> None:
        file = folder / ("config.json" if (folder / "config.json").exists() else "options.json")
        edit(file, lambda stored: functools.reduce(lambda inside, key: inside[key], path, stored).update(values))

    return change


def manifest_out(folder: Path) -> None:
    edit(folder / "manifest.json", lambda m: m["files"].update({"../secret": {"sha256": "0" * 64, "size": 1}}))


POINTER = "version https://git-lfs.github.com/spec/v1"
HOSTILE_FOLDERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a linked file": ("hf", lambda folder: symbolic_link(folder, "model.safetensors")),
    "an index to a folder above": ("hf", index_to("../secret")),
    "an index to a path": ("hf", index_to("/etc/passwd")),
    "an index to itself": ("hf", index_to("model.safetensors.index.json")),
    "a linked file for TensorFlow": ("tf_model", lambda folder: symbolic_link(folder, "tf_model.h5")),
    "an index to a folder above for TensorFlow": ("tf_model", index_to("../secret", "tf_model.h5")),
    "an index to itself for TensorFlow": ("tf_model", index_to("tf_model.h5.index.json", "tf_model.h5")),
    "an endless header": ("hf", header(1 << 62)),
    "a header beyond the file": ("hf", header(10_000)),
    "a header of brackets": ("hf", header(1000)),
    "nested configuration": ("hf", text("config.json", '{"a":' * 100_000)),
    "nested tokenizer": ("hf", text("tokenizer.json", "[" * 100_000)),
    "a web page": ("hf", text("model.safetensors", "<html>")),
    "a pointer": ("hf", text("model.safetensors", POINTER)),
    "a model of a million layers": ("hf", configured(num_hidden_layers=10**6)),
    "a model of a huge width": ("hf", configured(hidden_size=7 * 10**9)),
    "a huge vocabulary": ("hf", configured(vocab_size=10**12)),
    "a million positions": ("hf", configured(max_position_embeddings=10**12)),
    "negative layers": ("hf", configured(num_hidden_layers=-1)),
    "layers as code": ("hf", configured(num_hidden_layers="__import__('os')")),
    "a negative epsilon": ("hf", configured(layer_norm_eps=-5)),
    "an activation by path": ("hf", configured(hidden_act="os.system")),
    "KerasHub's of a million layers": ("keras_hub", configured("config", num_layers=10**6)),
    "KerasHub's of a huge width": ("keras_hub", configured("config", hidden_dim=7 * 10**9)),
    "an ELMo of a huge width": ("bilm", configured("lstm", dim=10**9)),
    "an ELMo of many filters": ("bilm", configured("char_cnn", filters=[[1, 10**9]])),
    "a linked ELMo": ("bilm", lambda folder: symbolic_link(folder, "weights.hdf5")),
    "a preset of a million layers": ("preset without manifest", configured("config", num_layers=10**6)),
    "a preset of a huge width": ("preset without manifest", configured("config", hidden_dim=7 * 10**9)),
    "a manifest to a folder above": ("preset", manifest_out),
}


@pytest.mark.parametrize("name", HOSTILE_FOLDERS)
def test_hostile_folders(name: str, ground: Ground) -> None:
    kind, change = HOSTILE_FOLDERS[name]
    (ground.folder / "secret").write_bytes(b"secret")
    folder = ground.copy(kind)
    change(folder)
    ground.refused({"hf": "checkpoint", "tf_model": "tf_model"}.get(kind, "backbone"), folder)


# === Sentence Transformers ===


def entry(number: int, **values: Any) -> Callable[[Path], None]:
    """Changes the values in an entry of `modules.json`."""
    return lambda folder: edit(folder / "modules.json", lambda entries: entries[number].update(values))


def linked(name: str) -> Callable[[Path], None]:
    """A folder, or a file in one, that leads to one outside."""

    def change(folder: Path) -> None:
        secret = folder.parent / "secret"
        secret.unlink()
        (folder / name).rename(secret)
        (folder / name).symlink_to(secret)

    return change


def values_of(name: str, **values: Any) -> Callable[[Path], None]:
    return lambda folder: edit(folder / name, lambda stored: stored.update(values))


DENSE = "3_Dense/config.json"
HOSTILE_MODULES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a path above": (entry(3, path="../secret"), "name of a folder inside"),
    "a path through the folder": (entry(3, path="1_Pooling/../../secret"), "name of a folder inside"),
    "an absolute path": (entry(3, path="/proc/self"), "name of a folder inside"),
    "a linked module": (linked("3_Dense"), "is a link to"),
    "linked weights": (linked("3_Dense/model.safetensors"), "is a link to"),
    "a linked list": (linked("modules.json"), "is a link to"),
    "linked prompts": (linked("config_sentence_transformers.json"), "is a link to"),
    "code of the folder": (entry(3, type="modeling_own.Dense"), "No code of a folder is run"),
    "code of the system": (entry(3, type="os.system"), "No code of a folder is run"),
    "code of the package": (entry(3, type="sentence_transformers.util.misc.import_from_string"), "is not supported"),
    "an activation": (values_of(DENSE, activation_function="modeling_own.run"), "`activation_function` must be"),
    "an activation of torch": (values_of(DENSE, activation_function="torch.hub.load"), "`activation_function` must be"),
    "many modules": (text("modules.json", "[" + "{}," * 10**5 + "{}]"), "lists 100,001 modules"),
    "nested modules": (text("modules.json", "[" * 10**5), "cannot be read as JSON"),
    "a huge layer": (
        lambda folder: (
            values_of(DENSE, out_features=10**12)(folder),
            values_of("4_LayerNorm/config.json", dimension=10**12)(folder),
        )[0],
        "Nothing was built",
    ),
    "a huge input": (values_of(DENSE, in_features=10**12), "must take vectors of width"),
    "a program in place of weights": (text("3_Dense/model.safetensors", "#!/bin/sh"), "model.safetensors"),
}


@pytest.mark.parametrize("name", HOSTILE_MODULES)
def test_hostile_modules(name: str, ground: Ground) -> None:
    change, message = HOSTILE_MODULES[name]
    (ground.folder / "secret").write_bytes(b"secret")
    folder = ground.copy("sentence transformers")
    (folder / "modeling_own.py").write_text("open('RAN', 'w')")
    change(folder)
    ground.refused("embedder", folder, message)


def test_pickled_weights_of_a_module(ground: Ground) -> None:
    torch = pytest.importorskip("torch")
    folder = ground.copy("sentence transformers")
    weights = folder / "3_Dense/model.safetensors"
    torch.save({"linear.weight": torch.zeros(11, 3), "linear.bias": Path}, weights.with_name("pytorch_model.bin"))
    weights.unlink()
    ground.refused("embedder", folder, "asks for 'pathlib.Path', which weights do not need")


# === Corpora ===


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index["tokenizer"].update(name="os>system"), "does not name a tokenizer"),
        (lambda index: index["tokenizer"].update(name="lmzoo>TextClassifier"), "does not name a tokenizer"),
        (lambda index: index["tokenizer"].update(config={"shell": "sh"}), "tokenizer of .*corpus"),
        (lambda index: index["shards"][0].update(name="../secret"), "corpus.json|secret"),
        (lambda index: index["shards"][0].update(name="/etc/passwd"), "corpus.json|passwd"),
        (lambda index: index["shards"][0].update(tokens=10**15, size=10**15), "corpus"),
        (lambda index: index["shards"][0].update(documents=-5), "corpus"),
        (lambda index: index["shards"][0].update(documents=10**15), "corpus"),
        (lambda index: index.update(dtype="object"), "corpus.json"),
        (lambda index: index.update(dtype="float64"), "corpus.json"),
        (lambda index: index.update(shards=7), "corpus.json"),
        (lambda index: index.update(shards=[7]), "corpus.json"),
        (lambda index: index.update(format=[]), "corpus.json"),
        (lambda index: index.update(tokenizer=None), "corpus.json"),
    ],
)  # fmt: skip
def test_hostile_corpora(change: Callable[[dict[str, Any]], object], message: str, ground: Ground) -> None:
    folder = ground.copy("corpus")
    (ground.folder / "secret").write_bytes((folder / "shard-00000.bin").read_bytes())
    edit(folder / "corpus.json", change)
    ground.refused("corpus", folder, message)
