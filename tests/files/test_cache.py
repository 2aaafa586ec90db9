"""Presets of web servers are fetched into the cache once, despite failures and parallel processes."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from huggingface_hub import constants

from lmzoo.files import cache
from lmzoo.presets import PresetError, catalog, list_presets, open_preset, resolve, verify_manifest
from lmzoo.presets.hubs import fetch

FILES = {"bert_config.json": b"{}", "bert_model.ckpt.data": bytes(range(251)) * 401}

# Resolves one handle without importing the rest of lmzoo, which takes most of the time.
CHILD = """
import sys, types
package, handle = sys.argv[1:]
for name, path in {"lmzoo": package, "lmzoo.presets": package + "/presets"}.items():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from lmzoo.presets.hubs import fetch
print(fetch(handle))
"""


def make_zip(files, prefix="") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(prefix + name, content)
    return buffer.getvalue()


def make_tar(files, prefix="") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(prefix + name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def digest(data: bytes) -> dict:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def read_contents(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.name != "manifest.json"}


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """Return the directory of the cache, which does not exist yet."""
    monkeypatch.setenv("LMZOO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def list_entries(root: Path) -> list[str]:
    return [entry.name for entry in root.iterdir() if not entry.name.endswith(".lock")]


@pytest.fixture
def offline(monkeypatch):
    """Return a function that sets HF_HUB_OFFLINE."""
    return lambda: monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("/bert/uncased.zip", make_zip(FILES)),
        ("/bert/uncased.zip", make_zip(FILES, "uncased_L-12/")),
        ("/bert/uncased.tar.gz", make_tar(FILES, "./albert_base/")),
        ("/bert/uncased.tgz", make_tar(FILES)),
        ("/bert/uncased.zip", make_zip({**{f"u/{name}": file for name, file in FILES.items()}, "__MACOSX/u/._x": b""})),
    ],
    ids=["zip", "zip of a folder", "tar.gz of a folder", "tgz", "zip of a Mac"],
)
def test_an_archive_is_fetched_and_unpacked_once(web, root, offline, name, data):
    handle = web.serve(name, web.content(data)) + "?download=1"
    folder = resolve(handle)
    assert read_contents(folder) == FILES
    assert folder.is_relative_to(root)
    assert len(list_entries(root)) == 1
    assert list_entries(root)[0].startswith("uncased.")
    assert verify_manifest(folder)
    offline()
    assert resolve(handle) == folder
    assert len(web.asked) == 1


def test_separate_files_are_fetched_once_and_verified(web, root, monkeypatch):
    files = {"options.json": b"{}", "weights.hdf5": bytes(range(241)) * 13}
    entry = {
        "family": "elmo",
        "size_bytes": 3135,
        "handle": f"{web.url}/elmo/small/",
        "files": {
            name: {"url": web.serve(f"/elmo/small/2x1024_{name}", web.content(content)), **digest(content)}
            for name, content in files.items()
        },
    }
    monkeypatch.setattr(catalog, "_read_published", lambda: {"elmo_small_en": entry})
    info = list_presets()["elmo_small_en"]
    assert (info.handle, info.size_bytes, info.shipped) == (f"{web.url}/elmo/small/", 3135, False)
    folder = open_preset("elmo_small_en")
    assert read_contents(folder) == files
    assert list_entries(root) == [folder.name]
    assert folder.name.startswith("small-")
    assert open_preset("elmo_small_en") == folder
    assert [request for request, _ in web.asked] == [f"GET /elmo/small/2x1024_{name}" for name in files]
    (folder / "weights.hdf5").write_bytes(b"?" * 3133)
    with pytest.raises(PresetError, match=r"weights.hdf5 was altered"):
        open_preset("elmo_small_en")


def test_archives_among_files_are_unpacked(web):
    files = {"p.zip": web.content(make_zip(FILES)), "vocab.txt": web.content(b"the")}
    published = {"files": {name: {"url": web.serve(f"/{name}", answer)} for name, answer in files.items()}}
    assert read_contents(fetch(f"{web.url}/", published)) == {**FILES, "vocab.txt": b"the"}


def test_a_published_archive_is_verified(web, root, monkeypatch):
    data = make_zip(FILES)
    entry = {"size_bytes": 9, "handle": web.serve("/bert.zip", web.content(make_zip(FILES, "x"))), **digest(data)}
    monkeypatch.setattr(catalog, "_read_published", lambda: {"bert_big": entry})
    with pytest.raises(PresetError, match=rf"(?s)Cannot fetch '{entry['handle']}'.*bytes, not {len(data)}"):
        resolve("bert_big")
    web.serve("/bert.zip", web.content(data[:-1] + b"?"))
    with pytest.raises(PresetError, match=f"sha256 is .*, not {entry['sha256']}"):
        resolve("bert_big")
    assert not [path for path in root.rglob("*") if path.suffix == ".zip"]
    web.serve("/bert.zip", web.content(data))
    assert read_contents(resolve("bert_big")) == FILES


def test_fetched_files_are_kept_after_an_error(web):
    files = {"a": b"first" * 7, "b": b"second" * 5}
    entry = {"files": {name: {"url": web.serve(f"/{name}", web.content(files[name]))} for name in files}}
    web.serve("/b", web.fail(500), web.content(files["b"]))
    entry["files"]["a"] |= digest(files["a"])
    with pytest.raises(PresetError, match=f"(?s)Cannot fetch '{web.url}/'.*500"):
        fetch(f"{web.url}/", entry)
    assert read_contents(fetch(f"{web.url}/", entry)) == files
    assert [request for request, _ in web.asked] == ["GET /a", "GET /b", "GET /b"]


def test_the_manifest_of_an_archive_is_kept(web):
    manifest = b'{"format": 1, "files": {"x": {"size": 1, "sha256": "0"}}}'
    handle = web.serve("/p.zip", web.content(make_zip({"x": b"7", "manifest.json": manifest})))
    assert (resolve(handle) / "manifest.json").read_bytes() == manifest
    with pytest.raises(PresetError, match="x was altered"):
        open_preset(handle)


def test_offline_without_a_copy_is_an_error(web, root, offline):
    handle = web.serve("/p.zip", web.content(make_zip(FILES)))
    offline()
    with pytest.raises(PresetError) as caught:
        resolve(handle)
    assert str(caught.value) == (
        f"Cannot fetch '{handle}'. Tried the server and {root}.\n"
        "FileNotFoundError: It is not in the cache, and HF_HUB_OFFLINE is set.\n"
        "Check the address and the connection, and unset HF_HUB_OFFLINE if it is set. "
        "Or download it elsewhere and pass the path of its directory."
    )
    assert web.asked == []


@pytest.mark.parametrize(
    ("handle", "message"),
    [
        ("http://example.org/p.zip", "only https://"),
        ("http://127.0.0.1.example.org/p.zip", "only https://"),
        ("https://127.0.0.1/model.bin", r"must end in one of .zip, .tar.gz, .tgz"),
        ("https://127.0.0.1", "must end in one of"),
        ("https://", "must end in one of"),
        ("https://[/p.zip", "Invalid IPv6"),
    ],
)
def test_unsupported_addresses_are_errors(handle, message):
    with pytest.raises(PresetError, match=f"(?s)^Cannot fetch.*{message}"):
        resolve(handle)


@pytest.mark.parametrize("data", [make_zip({"../out": b""}), b"not an archive", make_zip(FILES)[:-30]])
def test_a_refused_archive_is_not_kept(web, root, data):
    handle = web.serve("/p.zip", web.content(data), web.content(make_zip(FILES)))
    with pytest.raises(PresetError, match=r"p\.zip (contains|is damaged)"):
        resolve(handle)
    assert not [path for path in root.rglob("*") if path.suffix in (".zip", ".tmp") or path.name == "out"]
    assert read_contents(resolve(handle)) == FILES  # the server has a whole archive now


@pytest.mark.parametrize("step", ["unpack", "write_manifest"])
def test_a_full_disk_while_unpacking_leaves_the_archive(web, root, monkeypatch, step):
    def full(*_):
        raise OSError(28, "No space left on device")

    handle = web.serve("/p.zip", web.content(make_zip(FILES)))
    monkeypatch.setattr(cache, step, full)
    with pytest.raises(PresetError, match="No space left"):
        resolve(handle)
    assert [name for name in list_entries(root) if not name.endswith(".parts")] == []
    assert [path.name for path in root.rglob("*.zip")] == ["p.zip"]


def test_the_environment_gives_the_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LMZOO_CACHE", "~/mine")
    assert cache.cache_directory() == tmp_path / "mine"
    monkeypatch.delenv("LMZOO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_directory() == tmp_path / "xdg" / "lmzoo"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache.cache_directory() == tmp_path / ".cache" / "lmzoo"


def test_directory_names_are_short_and_safe(web, root):
    for number, name in enumerate(["/.hidden.zip", "/a%20b;c.zip", f"/{'x' * 200}.zip"]):
        resolve(web.serve(name, web.content(make_zip({str(number): b""}))))
    assert sorted(name.rpartition("-")[0] for name in list_entries(root)) == ["a_20b_c.zip", "hidden.zip", "x" * 80]


def start_child(handle: str) -> subprocess.Popen[str]:
    package = str(Path(cache.__file__).parents[1])
    return subprocess.Popen([sys.executable, "-c", CHILD, package, handle], env=os.environ, stdout=-1, text=True)


def test_two_threads_fetch_once(web, root):
    handle = web.serve("/p.zip", lambda request: (web.closing.wait(0.3), web.content(make_zip(FILES))(request)))
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(resolve, [handle] * 2)
    assert first == second
    assert read_contents(first) == FILES
    assert len(web.asked) == 1
    assert list_entries(root) == [first.name]


@pytest.mark.slow
def test_two_processes_fetch_once(web, root):
    """The response takes so long that the second process also asks."""
    handle = web.serve("/p.zip", lambda request: (web.closing.wait(1), web.content(make_zip(FILES))(request)))
    with start_child(handle) as first, start_child(handle) as second:
        outputs = {first.communicate(timeout=20)[0], second.communicate(timeout=20)[0]}
    assert len(outputs) == 1
    assert read_contents(Path(outputs.pop().strip())) == FILES
    assert len(web.asked) == 1
    assert len(list_entries(root)) == 1


def test_the_download_of_a_killed_process_is_resumed(web, root):
    """Its lock and unfinished directory are removed, and the fetched bytes stay."""
    data = make_zip(FILES)
    sent = threading.Event()

    def hang(request):
        web.content(data, stop=70_001)(request)
        sent.set()
        web.closing.wait(20)

    handle = web.serve("/p.zip", hang, web.content(data))
    with start_child(handle) as child:
        assert sent.wait(20)
        while not any(path.stat().st_size == 70_001 for path in root.rglob("p.zip")):
            assert child.poll() is None
        child.kill()
    (parts,) = root.glob("*.parts")
    unfinished = root / f"{parts.name.removesuffix('.parts')}.12ab.tmp"
    unfinished.mkdir()
    folder = resolve(handle)
    assert read_contents(folder) == FILES
    assert web.ranges == [None, "bytes=70001-"]
    assert list_entries(root) == [folder.name]
