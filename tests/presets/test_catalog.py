"""Names, handles and paths of presets."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

import lmzoo
from lmzoo.files.manifest import read_version
from lmzoo.presets import PresetError, catalog, hubs, list_presets, open_preset, resolve, write_manifest

METADATA = {
    "family": "bert",
    "parameter_count": 4_386_178,
    "languages": ["en", "de"],
    "license": "CC0-1.0",
    "description": "A small one.",
    "lmzoo_version": "0.1.0",
    "keras_version": "3.15.1",
    "date_saved": "2026-01-01",
}

find_shipped_root = catalog._find_shipped_root  # the fixture below replaces it


def write_preset(root: Path, family: str, name: str, version: int | None = None, **metadata) -> Path:
    directory = root / family / name
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "metadata.json").write_text(json.dumps({**METADATA, "family": family, **metadata}))
    write_manifest(directory, version)
    return directory


@pytest.fixture(autouse=True)
def shipped(tmp_path, monkeypatch):
    """Return a repository of two presets that replaces the real one."""
    root = tmp_path / "repository" / "presets"
    write_preset(root, "bert", "bert_nano_en_uncased")
    write_preset(root, "albert", "albert_micro_en", parameter_count=1_000_003, languages=["en"])
    monkeypatch.setattr(catalog, "_find_shipped_root", lambda: root)
    monkeypatch.setattr(catalog, "_read_published", dict)
    monkeypatch.delenv("LMZOO_PRESETS", raising=False)
    return root


def test_presets_are_listed(shipped):
    presets = list_presets()
    assert list(presets) == ["albert_micro_en", "bert_nano_en_uncased"]
    directory = shipped / "bert" / "bert_nano_en_uncased"
    size = (directory / "config.json").stat().st_size + (directory / "metadata.json").stat().st_size
    assert presets["bert_nano_en_uncased"] == lmzoo.PresetInfo(
        name="bert_nano_en_uncased",
        family="bert",
        parameters=4_386_178,
        languages=("en", "de"),
        size_bytes=size,
        license="CC0-1.0",
        shipped=True,
        description="A small one.",
        handle="bert_nano_en_uncased",
    )
    assert lmzoo.list_presets is list_presets


def test_presets_in_other_directories_are_found(shipped, tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    first_preset = write_preset(first, "bert", "mine")
    write_preset(second, "bert", "mine")
    write_preset(second, "bert", "bert_nano_en_uncased")
    write_preset(second, "bert", ".unfinished.12ab.tmp")
    second_preset = write_preset(second, "elmo", "other")
    write_preset(tmp_path / "here", "bert", "in_the_working_directory")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("LMZOO_PRESETS", os.pathsep.join([str(first), "", str(tmp_path / "absent"), str(second)]))
    assert resolve("mine") == first_preset
    assert resolve("other") == second_preset
    assert resolve("bert_nano_en_uncased") == shipped / "bert" / "bert_nano_en_uncased"
    presets = list_presets()
    assert sorted(presets) == ["albert_micro_en", "bert_nano_en_uncased", "mine", "other"]
    assert presets["bert_nano_en_uncased"].shipped
    assert not presets["mine"].shipped
    assert presets["mine"].handle == "mine"


def test_metadata_may_be_incomplete_or_old(tmp_path, monkeypatch):
    directory = write_preset(tmp_path / "more", "bert", "mine")
    monkeypatch.setenv("LMZOO_PRESETS", str(tmp_path / "more"))
    (directory / "metadata.json").write_text('{"parameter_count": 7}')
    info = list_presets()["mine"]
    assert (info.parameters, info.license, info.languages) == (7, "unknown", ())
    (directory / "metadata.json").write_text('{"licence": "MIT"}')
    assert list_presets()["mine"].license == "MIT"


@pytest.mark.parametrize("broken", ["metadata.json", "manifest.json"])
def test_a_broken_preset_does_not_hide_the_others(shipped, broken):
    (shipped / "bert" / "bert_nano_en_uncased" / broken).write_text("{")
    with pytest.warns(UserWarning, match=rf"'bert_nano_en_uncased' is left out.*{broken}"):
        assert list(list_presets()) == ["albert_micro_en"]
    with pytest.raises(PresetError, match=broken):
        open_preset("bert_nano_en_uncased")


def test_shipped_presets_are_found_in_a_wheel_and_in_a_clone(tmp_path, monkeypatch):
    root = tmp_path / "site-packages"
    package = root / "lmzoo" / "presets"
    inside, beside = package / "shipped", root / "presets"
    (beside / "bert").mkdir(parents=True)
    package.mkdir(parents=True)
    monkeypatch.setattr(catalog, "_PACKAGE", package)
    assert find_shipped_root() == inside  # somebody else's site-packages/presets is not ours
    (root / "pyproject.toml").write_text("")
    assert find_shipped_root() == beside
    inside.mkdir()
    assert find_shipped_root() == inside


def test_shipped_presets_are_found_in_this_checkout(root):
    assert find_shipped_root() in (root / "presets", Path(catalog.__file__).parent / "shipped")


def test_paths_are_resolved(shipped, tmp_path, monkeypatch):
    directory = shipped / "bert" / "bert_nano_en_uncased"
    assert resolve(directory) == resolve(str(directory)) == resolve(f"{directory}/") == directory
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(shipped))
    assert resolve("~/bert/bert_nano_en_uncased") == directory
    assert resolve("repository/presets/bert/bert_nano_en_uncased") == directory
    (tmp_path / "bert_nano_en_uncased").mkdir()
    assert resolve("bert_nano_en_uncased") == directory
    assert resolve("./bert_nano_en_uncased") == tmp_path / "bert_nano_en_uncased"
    assert resolve(Path("bert_nano_en_uncased")) == tmp_path / "bert_nano_en_uncased"


@pytest.mark.parametrize(
    ("preset", "message"),
    [
        ("bert_nano_en_uncase", "Did you mean 'bert_nano_en_uncased'?"),
        ("BERT_NANO_EN_UNCASED", "Did you mean 'bert_nano_en_uncased'?"),
        ("zzz", "Expected one of albert_micro_en, bert_nano_en_uncased, one of the 0 published"),
        ("", "Unknown preset ''"),
        ("\0", "Unknown preset"),
        ("x" * 5000, "Unknown preset"),
        ("./albert_micro_en", "There is no directory"),
        ("~/nowhere/at/all", "nowhere/at/all. Expected"),
        ("google-bert/bert-base-uncased", "Write 'hf://google-bert/bert-base-uncased'"),
        ("s3://bucket/preset", "unknown scheme; known are hf://, kaggle://"),
    ],
)
def test_unknown_presets_are_errors(preset, message):
    with pytest.raises(ValueError, match=r"preset|scheme") as caught:
        open_preset(preset)
    assert isinstance(caught.value, PresetError)
    assert message in str(caught.value)


@pytest.mark.parametrize("preset", ["bert_nanoo", "bert-nano", "bert_nan0_en"])
def test_names_with_a_similar_beginning_are_suggested_first(preset, shipped):
    """Suffixes for language and case, which the user left out, do not count."""
    write_preset(shipped, "roberta", "roberta_nano_en")
    with pytest.raises(PresetError, match="Did you mean 'bert_nano_en_uncased' or"):
        resolve(preset)


def test_a_file_is_not_a_preset(tmp_path):
    (tmp_path / "model.keras").write_text("")
    with pytest.raises(PresetError, match=r"It is a file.*load_model"):
        resolve(tmp_path / "model.keras")


@pytest.mark.parametrize("preset", [None, 3, ["bert_nano_en_uncased"], b"bert"])
def test_a_name_must_be_text_or_a_path(preset):
    with pytest.raises(TypeError, match="name, a handle or a path, got"):
        resolve(preset)


def test_published_presets_are_listed_and_resolved(shipped, monkeypatch):
    entry = {**METADATA, "size_bytes": 17, "handle": "hf://org/bert_big"}
    shipped_name = {**entry, "handle": "hf://somebody/else"}
    monkeypatch.setattr(catalog, "_read_published", lambda: {"bert_big": entry, "bert_nano_en_uncased": shipped_name})
    monkeypatch.setitem(hubs._HUBS, "hf", (lambda name: shipped / "bert" if name == "org/bert_big" else "", "", ""))
    info = list_presets()["bert_big"]
    assert (info.shipped, info.size_bytes, info.handle) == (False, 17, "hf://org/bert_big")
    assert list_presets()["bert_nano_en_uncased"].shipped
    assert resolve("bert_big") == shipped / "bert"
    with pytest.raises(PresetError, match="Did you mean 'bert_big'"):
        resolve("bert_bigg")


def test_versions_are_resolved_by_number(shipped, tmp_path, monkeypatch):
    """The newest version has the plain name; older ones are loaded by number and are not listed."""
    newest = shipped / "bert/bert_nano_en_uncased"
    write_manifest(newest, 3)
    first, second = (write_preset(shipped, "bert", f"bert_nano_en_uncased@{number}", number) for number in (1, 2))
    mine = write_preset(tmp_path / "more", "bert", "mine", 2)
    write_preset(tmp_path / "more", "bert", "mine@1")
    only_version = write_preset(tmp_path / "more", "bert", "alone@7", 7)
    monkeypatch.setenv("LMZOO_PRESETS", str(tmp_path / "more"))
    directories = {"": newest, "@3": newest, "@2": second, "@1": first}
    assert {number: open_preset(f"bert_nano_en_uncased{number}") for number in directories} == directories
    assert resolve("albert_micro_en@1") == shipped / "albert/albert_micro_en"
    assert resolve("mine@2") == resolve("mine") == mine
    assert resolve("alone@7") == only_version
    presets = list_presets()
    assert sorted(presets) == ["albert_micro_en", "alone@7", "bert_nano_en_uncased", "mine"]
    assert [presets[name].version for name in ("albert_micro_en", "bert_nano_en_uncased", "mine")] == [1, 3, 2]
    versions = ", ".join(f"bert_nano_en_uncased@{number}" for number in (1, 2, 3))
    for preset, message in (
        ("bert_nano_en_uncased@4", f"no bert_nano_en_uncased@4. Its versions on this machine are {versions}."),
        ("albert_micro_en@2", "no albert_micro_en@2. Its versions on this machine are albert_micro_en@1. The package"),
        ("albert_micro@1", "Did you mean 'albert_micro_en'"),
        ("albert_micro_en@", "Unknown preset"),
        ("albert_micro_en@0", "Unknown preset"),
    ):
        with pytest.raises(PresetError, match=re.escape(message)):
            resolve(preset)
    with pytest.raises(PresetError, match="Expected one of albert_micro_en, bert_nano_en_uncased, alone@7, mine"):
        resolve("zzz")
    (tmp_path / "albert_micro_en@2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve("albert_micro_en@2") == tmp_path / "albert_micro_en@2"  # a directory of that name
    write_manifest(newest)  # keeps the version
    assert resolve("bert_nano_en_uncased@3") == newest
    (newest / "manifest.json").write_text('{"version": "two", "format": 1, "files": {}}')
    with pytest.raises(PresetError, match="the version must be an integer of at least 1, got 'two'"):
        resolve("bert_nano_en_uncased@3")
    with pytest.raises(ValueError, match="`version` must be an integer of at least 1, got 0"):
        write_manifest(newest, 0)
    write_manifest(newest)  # replaces a damaged manifest
    assert resolve("bert_nano_en_uncased@1") == first


def test_shipped_presets_are_small_and_numbered(root):
    """Older versions have a smaller number; each preset fits into 16 MB, and the package into 64 MB."""
    folders = [path.parent for path in (root / "presets").glob("*/*/metadata.json")]
    assert len(folders) >= 4
    for folder in folders:
        assert sum(path.stat().st_size for path in folder.rglob("*")) <= 16e6
        name, at, number = folder.name.partition("@")
        if at:
            assert read_version(folder) == int(number) < read_version(folder.with_name(name))
    files = [path for path in (root / "presets").rglob("*") if path.is_file() and "@" not in str(path)]
    assert sum(path.stat().st_size for path in files) <= 64_000_000


def test_presets_without_a_manifest_are_logged_once(shipped, tmp_path, monkeypatch, caplog):
    """Most checkpoints of other libraries have none, so it is no warning."""
    folders = [tmp_path / name for name in ("mine", "downloaded", "published")]
    for folder in folders:
        folder.mkdir()
    monkeypatch.setattr(catalog, "_read_published", lambda: {"bert_big": {**METADATA, "handle": "hf://org/published"}})
    monkeypatch.setitem(hubs._HUBS, "hf", (lambda name: tmp_path / name.removeprefix("org/"), "", ""))
    with caplog.at_level("INFO", "lmzoo"):
        for preset in (folders[0], str(folders[0]), "hf://org/downloaded", "bert_big", "bert_nano_en_uncased"):
            open_preset(preset)
    messages = [record.getMessage() for record in caplog.records]
    assert [message.split(" has no manifest.json")[0] for message in messages] == list(map(str, folders[:2]))
