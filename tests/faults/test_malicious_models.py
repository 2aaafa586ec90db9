"""Malicious `.keras` files, presets, checkpoints and corpora are refused with an error that names the cause."""

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

from tests.faults.keras_files import (
    DAMAGES,
    PLACES,
    WEIGHTS,
    attacks,
    edit_json,
    first_dataset,
    read_members,
    replace_part,
    write_archive,
    write_bomb,
)
from tests.faults.sandbox import Sandbox

KERNEL = "classifier/logits/kernel"


@pytest.mark.parametrize("place", PLACES)
def test_a_keras_file_with_code_is_refused(place: str, sandbox: Sandbox) -> None:
    file = sandbox.copy("keras")
    members = read_members(file)
    for attack in attacks(sandbox.folder / "RAN").values():
        config = replace_part(json.loads(members["config.json"]), PLACES[place], attack)
        write_archive(file, {**members, "config.json": json.dumps(config).encode()})
        sandbox.assert_refused("with_lmzoo", file)
        sandbox.assert_refused("with_keras", file)


def test_the_code_in_the_attacks_runs_if_trusted(tmp_path: Path) -> None:
    """What the tests above see refused is not harmless."""
    code = attacks(tmp_path / "RAN")["lambda"]["config"]["function"]["config"]["code"]
    eval(marshal.loads(base64.b64decode(code))).close()
    assert (tmp_path / "RAN").exists()


@pytest.mark.parametrize("name", ["../RAN", "assets/../../RAN", "{}/RAN"])
def test_a_keras_file_with_paths_outside_is_refused(name: str, sandbox: Sandbox) -> None:
    """Keras skips such members; lmzoo refuses the file."""
    file = sandbox.copy("keras")
    write_archive(file, {**read_members(file), name.format(sandbox.folder): b"x"})
    assert sandbox.load("with_keras", file).ended == "done"
    sandbox.assert_refused("with_lmzoo", file, "only relative paths inside it")


@pytest.mark.parametrize("member", ["config.json", "model.weights.h5", "assets/preprocessor/vocabulary.txt", "extra"])
def test_a_keras_file_that_unpacks_to_far_more_than_its_size_is_refused(member: str, sandbox: Sandbox) -> None:
    """Keras itself would read the first two members into memory, up to 4 GiB."""
    file = sandbox.copy("keras")
    write_bomb(file, read_members(file), member)
    sandbox.assert_refused("with_lmzoo", file, "unpacks to more than 10 times its size")
    sandbox.assert_refused(
        "on_the_command_line", file, r"cannot be loaded: model\.keras is refused: it unpacks to more than"
    )


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_keras_file_is_refused(damage: str, sandbox: Sandbox) -> None:
    change, message = DAMAGES[damage]
    file = sandbox.copy("keras").rename(sandbox.folder / "it.keras")
    change(file)
    sandbox.assert_refused("with_lmzoo", file, message)


@pytest.mark.parametrize("attack", WEIGHTS)
def test_a_keras_file_with_malicious_weights_is_refused(attack: str, sandbox: Sandbox) -> None:
    file, weights = sandbox.copy("keras"), sandbox.folder / "weights.h5"
    members = read_members(file)
    weights.write_bytes(members["model.weights.h5"])
    with h5py.File(weights, "a") as opened:
        WEIGHTS[attack](opened, first_dataset(weights))
    write_archive(file, {**members, "model.weights.h5": weights.read_bytes()})
    for load in ("with_lmzoo", "with_keras"):
        sandbox.assert_refused(load, file, "Not allowed")


@pytest.mark.parametrize("attack", WEIGHTS)
@pytest.mark.parametrize("file", ["model.weights.h5", "task.weights.h5"])
def test_a_preset_with_malicious_weights_is_refused(attack: str, file: str, sandbox: Sandbox) -> None:
    preset = sandbox.copy("preset without manifest")
    with h5py.File(preset / file, "a") as opened:
        WEIGHTS[attack](opened, KERNEL if file == "task.weights.h5" else first_dataset(preset / file))
    sandbox.assert_refused("preset", preset, f"{file}|Not allowed")


@pytest.mark.parametrize("attack", WEIGHTS)
@pytest.mark.parametrize("kind", ["tf_model", "sharded tf_model"])
def test_tensorflow_weights_with_malicious_datasets_are_refused(attack: str, kind: str, sandbox: Sandbox) -> None:
    folder = sandbox.copy(kind)
    file = min(folder.glob("*.h5"))
    with h5py.File(file, "a") as opened:
        WEIGHTS[attack](opened, first_dataset(file))
    sandbox.assert_refused("tf_model", folder, file.name)


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
def test_a_preset_with_code_is_refused(file: str, place: tuple[str, ...], sandbox: Sandbox) -> None:
    preset = sandbox.copy("preset without manifest")
    stored = (preset / file).read_text()
    for attack in attacks(sandbox.folder / "RAN").values():
        (preset / file).write_text(json.dumps(replace_part(json.loads(stored), place, attack)))
        sandbox.assert_refused("trusted_preset", preset, f"{file}|BertBackbone: unhashable")
    (preset / file).write_text(stored)
    assert sandbox.load("preset", preset).ended == "done"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"registered_name": "lmzoo>BertBackbone"}, "names no tokenizer of lmzoo: 'lmzoo>BertBackbone'"),
        ({"config": {"shell": "sh"}}, "does not describe a preprocessor of lmzoo: .*shell"),
        ({"config": None}, "does not describe a preprocessor of lmzoo"),
    ],
)
def test_a_preset_with_another_object_as_tokenizer_is_refused(
    change: dict[str, Any], message: str, sandbox: Sandbox
) -> None:
    preset = sandbox.copy("preset without manifest")
    edit_json(preset / "preprocessor.json", lambda stored: stored["config"]["tokenizer"].update(change))
    sandbox.assert_refused("preset", preset, message)


def test_a_keras_file_is_refused_as_a_preset(sandbox: Sandbox) -> None:
    sandbox.assert_refused(
        "preset", sandbox.copy("keras"), r"It is a file, and a preset is a directory \(`keras.saving.load_m"
    )


@pytest.mark.parametrize("kind", ["hf", "preset without manifest"])
@pytest.mark.parametrize(
    "name",
    ["os>system", "builtins>eval", "subprocess>Popen", "keras>Lambda", "lmzoo>TextClassifier", "eval", "", None, 7],
)
def test_classes_outside_the_package_are_refused(kind: str, name: Any, sandbox: Sandbox) -> None:
    """A repository may name code of its own: lmzoo neither imports nor fetches it."""
    folder = sandbox.copy(kind)
    (folder / "modeling_own.py").write_text("open('RAN', 'w')")
    names = {"registered_name": name, "class_name": name, "module": "modeling_own", "model_type": name}
    if kind == "preset without manifest":
        del names["model_type"]
    edit_json(folder / "config.json", lambda stored: stored.update({**names, "architectures": [name]}))
    sandbox.assert_refused("backbone", folder, "config.json")


def replace_by_link(folder: Path, name: str) -> None:
    (folder / name).rename(folder.parent / "secret")
    (folder / name).symlink_to("../secret")


def write_index(name: str, file: str = "model.safetensors") -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / file).unlink()
        (folder / f"{file}.index.json").write_text(json.dumps({"weight_map": {"a": name}}))

    return change


def write_header(length: int) -> Callable[[Path], object]:
    return lambda folder: (folder / "model.safetensors").write_bytes(length.to_bytes(8, "little") + b"{" * 1000)


def write_text(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


def configure(*path: str, **values: Any) -> Callable[[Path], object]:
    """Return a function that changes values in a directory's configuration, or in a part of it."""

    def change(folder: Path) -> None:
        file = folder / ("config.json" if (folder / "config.json").exists() else "options.json")
        edit_json(file, lambda stored: functools.reduce(lambda part, key: part[key], path, stored).update(values))

    return change


def add_outside_path(folder: Path) -> None:
    edit_json(folder / "manifest.json", lambda m: m["files"].update({"../secret": {"sha256": "0" * 64, "size": 1}}))


POINTER = "version https://git-lfs.github.com/spec/v1"
HOSTILE_FOLDERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a linked file": ("hf", lambda folder: replace_by_link(folder, "model.safetensors")),
    "an index to a folder above": ("hf", write_index("../secret")),
    "an index to a path": ("hf", write_index("/etc/passwd")),
    "an index to itself": ("hf", write_index("model.safetensors.index.json")),
    "a linked file for TensorFlow": ("tf_model", lambda folder: replace_by_link(folder, "tf_model.h5")),
    "an index to a folder above for TensorFlow": ("tf_model", write_index("../secret", "tf_model.h5")),
    "an index to itself for TensorFlow": ("tf_model", write_index("tf_model.h5.index.json", "tf_model.h5")),
    "an endless header": ("hf", write_header(1 << 62)),
    "a header beyond the file": ("hf", write_header(10_000)),
    "a header of brackets": ("hf", write_header(1000)),
    "nested configuration": ("hf", write_text("config.json", '{"a":' * 100_000)),
    "nested tokenizer": ("hf", write_text("tokenizer.json", "[" * 100_000)),
    "a web page": ("hf", write_text("model.safetensors", "<html>")),
    "a pointer": ("hf", write_text("model.safetensors", POINTER)),
    "a model of a million layers": ("hf", configure(num_hidden_layers=10**6)),
    "a model of a huge width": ("hf", configure(hidden_size=7 * 10**9)),
    "a huge vocabulary": ("hf", configure(vocab_size=10**12)),
    "a million positions": ("hf", configure(max_position_embeddings=10**12)),
    "negative layers": ("hf", configure(num_hidden_layers=-1)),
    "layers as code": ("hf", configure(num_hidden_layers="__import__('os')")),
    "a negative epsilon": ("hf", configure(layer_norm_eps=-5)),
    "an activation by path": ("hf", configure(hidden_act="os.system")),
    "KerasHub's of a million layers": ("keras_hub", configure("config", num_layers=10**6)),
    "KerasHub's of a huge width": ("keras_hub", configure("config", hidden_dim=7 * 10**9)),
    "an ELMo of a huge width": ("bilm", configure("lstm", dim=10**9)),
    "an ELMo of many filters": ("bilm", configure("char_cnn", filters=[[1, 10**9]])),
    "a linked ELMo": ("bilm", lambda folder: replace_by_link(folder, "weights.hdf5")),
    "a preset of a million layers": ("preset without manifest", configure("config", num_layers=10**6)),
    "a preset of a huge width": ("preset without manifest", configure("config", hidden_dim=7 * 10**9)),
    "a manifest to a folder above": ("preset", add_outside_path),
}


@pytest.mark.parametrize("name", HOSTILE_FOLDERS)
def test_a_hostile_directory_is_refused(name: str, sandbox: Sandbox) -> None:
    kind, change = HOSTILE_FOLDERS[name]
    (sandbox.folder / "secret").write_bytes(b"secret")
    folder = sandbox.copy(kind)
    change(folder)
    sandbox.assert_refused({"hf": "checkpoint", "tf_model": "tf_model"}.get(kind, "backbone"), folder)


# === Sentence Transformers ===


def change_dense_module(**values: Any) -> Callable[[Path], object]:
    """Return a function that changes values in the entry of the dense layer in `modules.json`."""
    return lambda folder: edit_json(folder / "modules.json", lambda entries: entries[3].update(values))


def make_dense_module_huge(folder: Path) -> None:
    edit_json(folder / "3_Dense/config.json", lambda stored: stored.update(out_features=10**12))
    edit_json(folder / "4_LayerNorm/config.json", lambda stored: stored.update(dimension=10**12))


# `tests/checkpoints/test_sentence_folders.py` has many more; the tests here also watch the process.
HOSTILE_MODULES: dict[str, tuple[Callable[[Path], object], str]] = {
    "an absolute path": (change_dense_module(path="/proc/self"), "name of a folder inside"),
    "code of the folder": (change_dense_module(type="modeling_own.Dense"), "No code of a folder is run"),
    "code of the package": (
        change_dense_module(type="sentence_transformers.util.misc.import_from_string"),
        "is not supported",
    ),
    "a huge layer": (make_dense_module_huge, "Nothing was built"),
    "a program in place of weights": (write_text("3_Dense/model.safetensors", "#!/bin/sh"), "model.safetensors"),
}


@pytest.mark.parametrize("name", HOSTILE_MODULES)
def test_a_hostile_module_is_refused(name: str, sandbox: Sandbox) -> None:
    change, message = HOSTILE_MODULES[name]
    folder = sandbox.copy("sentence transformers")
    (folder / "modeling_own.py").write_text("open('RAN', 'w')")
    change(folder)
    sandbox.assert_refused("embedder", folder, message)


def test_pickled_objects_in_the_weights_of_a_module_are_refused(sandbox: Sandbox) -> None:
    torch = pytest.importorskip("torch")
    folder = sandbox.copy("sentence transformers")
    weights = folder / "3_Dense/model.safetensors"
    torch.save({"linear.weight": torch.zeros(11, 3), "linear.bias": Path}, weights.with_name("pytorch_model.bin"))
    weights.unlink()
    sandbox.assert_refused("embedder", folder, "asks for 'pathlib.Path', which weights do not need")


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
def test_a_hostile_corpus_is_refused(
    change: Callable[[dict[str, Any]], object], message: str, sandbox: Sandbox
) -> None:
    folder = sandbox.copy("corpus")
    (sandbox.folder / "secret").write_bytes((folder / "shard-00000.bin").read_bytes())
    edit_json(folder / "corpus.json", change)
    sandbox.assert_refused("corpus", folder, message)
