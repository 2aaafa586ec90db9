"""Remote handles: what is asked of the hubs' clients, and clear, quick failures where there is no network."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import huggingface_hub
import kagglehub
import pytest
import requests

from lmzoo.presets import PresetError, hubs, resolve

# Resolves one handle without importing the rest of lmzoo, which would take most of the time.
CHILD = """
import sys, types
package, handle = sys.argv[1:]
for name, path in {"lmzoo": package, "lmzoo.presets": package + "/presets"}.items():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from lmzoo.presets.catalog import resolve
from lmzoo.presets.store import PresetError
try:
    print("FOUND", resolve(handle))
except PresetError as error:
    print(error)
"""


def resolve_in_child(handle: str, cache: Path, **environment: str) -> str:
    package = str(Path(hubs.__file__).parents[1])
    environment = {**os.environ, "HF_HOME": str(cache), "KAGGLEHUB_CACHE": str(cache), **environment}
    # A proxy that refuses connections stands for "no network" on machines that have one.
    proxies = dict.fromkeys(["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"], "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-c", CHILD, package, handle],
        env={**environment, **proxies},
        capture_output=True,
        text=True,
        timeout=15,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize(
    ("handle", "environment", "expected"),
    [
        ("hf://lmzoo/nothing", {"HF_HUB_OFFLINE": "1"}, "unset HF_HUB_OFFLINE"),
        ("hf://lmzoo/nothing", {}, "hf auth login"),
        ("kaggle://lmzoo/bert/keras/nothing", {}, "with /version to use the cache without network"),
    ],
)
def test_no_network(tmp_path, handle, environment, expected):
    message = resolve_in_child(handle, tmp_path, **environment)
    assert message.startswith(f"Cannot fetch '{handle}'. Tried {'hugging' if handle[0] == 'h' else 'kaggle'}")
    assert expected in message
    assert "pass the path of its directory" in message


def test_offline_with_a_cached_copy(tmp_path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--lmzoo--small"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    assert resolve_in_child("hf://lmzoo/small", tmp_path, HF_HUB_OFFLINE="1") == f"FOUND {snapshot}\n"


@pytest.mark.parametrize("handle", ["hf://", "hf://a/b/c", "kaggle://", "kaggle://owner/model"])
def test_malformed_handles(handle):
    with pytest.raises(PresetError, match=r"Cannot fetch.*\n.*\nCheck the name"):
        resolve(handle)


def test_what_is_asked_of_hugging_face(tmp_path, monkeypatch):
    asked = {}
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **kwargs: asked.update(kwargs, name=name) or str(tmp_path)
    )
    assert resolve("hf://org/name") == tmp_path
    assert asked["name"] == "org/name"
    assert asked["etag_timeout"] == 10
    assert {"*.bin", "tf_model.h5"} <= set(asked["ignore_patterns"])
    assert not {"*.h5", "*.safetensors", "*.json"} & set(asked["ignore_patterns"])


def test_what_is_asked_of_kaggle(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(kagglehub, "model_download", lambda name: asked.append(name) or str(tmp_path))
    assert resolve("kaggle://owner/model/keras/variation/3") == tmp_path
    assert asked == ["owner/model/keras/variation/3"]


@pytest.fixture
def silent(monkeypatch):
    """The address of a server that accepts connections and never says a word."""
    monkeypatch.setattr(hubs, "_IMPATIENT_AFTER", 0.2)
    monkeypatch.setattr(hubs, "_TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    # The threads that waited for it end now, before the next test.
    for thread in threading.enumerate():
        if thread.daemon and thread.name.startswith("Thread-"):
            thread.join(5)


def test_a_silent_hugging_face(tmp_path, monkeypatch, silent):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", silent)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    start = time.monotonic()
    with pytest.raises(PresetError, match=f"TimeoutError: {silent} has not answered"):
        resolve("hf://lmzoo/nothing")
    assert time.monotonic() - start < 5
    # A copy in the cache is as good.
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda name, local_files_only=False, **kwargs: (
            str(tmp_path) if local_files_only else requests.get(silent, timeout=3)
        ),
    )
    assert resolve("hf://lmzoo/nothing") == tmp_path


def test_a_silent_kaggle(monkeypatch, silent):
    monkeypatch.setattr(kagglehub, "model_download", lambda name: requests.get(silent, timeout=3))
    monkeypatch.setattr(hubs, "_KAGGLE", silent)
    with pytest.raises(PresetError, match="TimeoutError"):
        resolve("kaggle://owner/model/keras/variation")


def test_a_slow_download_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(hubs, "_IMPATIENT_AFTER", 0.01)
    monkeypatch.setattr(hubs, "_TIMEOUT", 0.3)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "data:,there")  # answers at once

    def download(name, etag_timeout, ignore_patterns):
        time.sleep(0.6)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve("hf://org/slow") == tmp_path
