"""Remote handles: what is asked of the hubs' clients, and clear, quick failures where there is no network."""

from __future__ import annotations

import gc
import hashlib
import json
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
import urllib3
from huggingface_hub import constants

from lmzoo.presets import PresetError, catalog, hubs, resolve

NOBODY = "http://127.0.0.1:9"  # refuses connections
COMMIT = "89abcdef0123456789abcdef0123456789abcdef"

# Resolves handles without importing the rest of lmzoo, which would take most of the time.
CHILD = """
import sys, types
package, *handles = sys.argv[1:]
for name, path in {"lmzoo": package, "lmzoo.presets": package + "/presets"}.items():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from lmzoo.presets.catalog import resolve
from lmzoo.errors import PresetError
for handle in handles:
    try:
        print("FOUND", resolve(handle), end="\\0")
    except PresetError as error:
        print(error, end="\\0")
"""


def resolve_in_child(handles: list[str], cache: Path, **environment: str) -> list[str]:
    """What is found, or the error's message, for each handle in turn."""
    package = str(Path(hubs.__file__).parents[1])
    environment = {**os.environ, "HF_HOME": str(cache), "KAGGLEHUB_CACHE": str(cache), **environment}
    # A proxy that refuses connections stands for "no network" on machines that have one.
    proxies = dict.fromkeys(["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"], NOBODY)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, package, *handles],
        env={**environment, **proxies},
        capture_output=True,
        text=True,
        timeout=15,
        check=True,
    )
    return done.stdout.split("\0")[:-1]


@pytest.mark.quick_cases("offline")
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HF_HUB_OFFLINE": "1"}, {"hf://lmzoo/nothing": "unset HF_HUB_OFFLINE"}),
        (
            {},
            {
                "hf://lmzoo/nothing": "hf auth login",
                f"hf://lmzoo/nothing@{COMMIT}": "ConnectionError: https://huggingface.co cannot be reached (Proxy",
                "kaggle://lmzoo/bert/keras/nothing": "with /version to use the cache without network",
            },
        ),
    ],
    ids=["offline", "nobody there"],
)
def test_no_network(tmp_path, environment, expected):
    messages = resolve_in_child([*expected], tmp_path, **environment)
    for message, (handle, part) in zip(messages, expected.items(), strict=True):
        assert message.startswith(f"Cannot fetch '{handle}'. Tried {'hugging' if handle[0] == 'h' else 'kaggle'}")
        assert part in message
        assert "pass the path of its directory" in message


def test_offline_with_a_cached_copy(tmp_path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--lmzoo--small"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    assert resolve_in_child(["hf://lmzoo/small"], tmp_path, HF_HUB_OFFLINE="1") == [f"FOUND {snapshot}"]


def serve_hub(web, revision: str, files: list[str]) -> None:
    """What Hugging Face's client asks for, of a repository org/name with these files."""
    entries = [{"type": "file", "path": name, "size": len(name), "oid": f"{n:040x}"} for n, name in enumerate(files)]
    answers = {f"revision/{revision}": {"id": "org/name", "sha": COMMIT}, f"tree/{COMMIT}": entries}
    for path, answer in answers.items():
        body = json.dumps(answer).encode()
        web.serve(f"/api/models/org/name/{path}", web.content(body, Content_Type="application/json"))
    for entry in entries:
        file = web.content(entry["path"].encode(), etag=f'"{entry["oid"]}"', X_Repo_Commit=COMMIT)
        web.serve(f"/org/name/resolve/{COMMIT}/{entry['path']}", file)


READ = ["config.json", "vocab.txt"]
NOT_READ = [
    "tf_model.h5", "flax_model.msgpack", "onnx/model.onnx", "optimizer.pt", "training_args.bin", "checkpoint-7/x.json",
]  # fmt: skip


@pytest.mark.parametrize(
    ("handle", "revision", "weights", "beside"),
    [
        ("hf://org/name", "main", ["pytorch_model.bin"], []),
        ("hf://org/name@v1.0", "v1.0", ["model.safetensors"], ["pytorch_model.bin"]),
        (f"hf://org/name@{COMMIT}", "", ["pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json"], []),
        ("hf://org/name", "main", ["model.weights.h5", "assets/tokenizer/vocabulary.txt"], ["pytorch_model.bin"]),
        ("hf://org/name", "main", ["tf_model.h5"], []),
        ("hf://org/name", "main", ["pytorch_model.bin"], ["tf_model-00001-of-00001.h5"]),
    ],
    ids=["pytorch", "tag", "commit", "keras", "tensorflow", "both"],
)
def test_which_files_are_fetched(monkeypatch, hub, handle, revision, weights, beside):
    serve_hub(hub, revision, list(dict.fromkeys([*READ, *NOT_READ, *weights, *beside])))
    folder = resolve(handle)
    assert folder.name == COMMIT
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {*READ, *weights}
    # Without a network all of it comes from the cache.
    asked = len(hub.asked)
    for change in ({"HF_HUB_OFFLINE": True}, {"ENDPOINT": NOBODY, "HUGGINGFACE_CO_URL_TEMPLATE": NOBODY}):
        with monkeypatch.context() as patch:
            for name, value in change.items():
                patch.setattr(constants, name, value)
            assert resolve(handle) == folder
    assert len(hub.asked) == asked
    (folder / weights[0]).unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PresetError, match=f"^Cannot fetch '{handle}'"):
        resolve(handle)


MODULES = b"""[{"path": "", "type": "sentence_transformers.models.Transformer"},
 {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
 {"path": "2_Dense", "type": "sentence_transformers.models.Dense"},
 {"path": "3_Dense", "type": "sentence_transformers.models.Dense"}]"""


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_which_files_of_sentence_transformers_are_fetched(hub, weights):
    """Modules may have pickled weights where the Transformer has not."""
    pickles = [*{weights, "pytorch_model.bin"}, "2_Dense/pytorch_model.bin", "3_Dense/pytorch_model.bin"]
    read = ["config.json", "modules.json", "1_Pooling/config.json", "2_Dense/config.json", "3_Dense/config.json"]
    read += ["3_Dense/model.safetensors"]
    serve_hub(hub, "main", [*read, *pickles, *NOT_READ])
    hub.serve(f"/org/name/resolve/{COMMIT}/modules.json", hub.content(MODULES, etag='"m"', X_Repo_Commit=COMMIT))
    folder = resolve("hf://org/name")
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {*read, weights, "2_Dense/pytorch_model.bin"}


def test_a_network_that_breaks_off_is_tried_again(monkeypatch, hub):
    serve_hub(hub, "", ["config.json", "model.safetensors"])
    tree = f"/api/models/org/name/tree/{COMMIT}"
    hub.serve(tree, hub.fail(503), *hub.answers[tree])
    hub.serve("/", lambda request: request.connection.close())
    monkeypatch.setattr(hubs, "_REACHABILITY_DELAY_SECONDS", 0.2)
    assert (resolve(f"hf://org/name@{COMMIT}") / "model.safetensors").exists()
    asked = [request for request, _ in hub.asked]
    assert "HEAD /" in asked
    assert asked.count(f"GET {tree}") == 2


def test_a_published_repository_is_pinned_and_verified(tmp_path, monkeypatch):
    data = b"weights"
    known = {"size": 7, "sha256": hashlib.sha256(data).hexdigest()}
    entry = {"handle": "hf://org/name", "revision": COMMIT, "files": {"config.json": {"size": 2}, "w.bin": known}}
    monkeypatch.setattr(catalog, "_read_published", lambda: {"bert_big": entry})
    asked = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **kwargs: asked.append(kwargs["revision"]) or str(tmp_path)
    )
    (tmp_path / "config.json").write_bytes(b"{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(PresetError, match=r"w\.bin"):
        resolve("bert_big")
    problems = {b"weight": "it has 6 bytes, not 7", b"Weights": f"sha256 is .*, not {known['sha256']}"}
    for damaged, message in problems.items():
        (tmp_path / "w.bin").write_bytes(damaged)
        with pytest.raises(PresetError, match=rf"(?s){message}.* Delete {tmp_path}/w.bin to download it again"):
            resolve("bert_big")
    (tmp_path / "w.bin").write_bytes(data)
    assert resolve("bert_big") == tmp_path
    assert set(asked) == {COMMIT}
    monkeypatch.setattr(hubs, "mismatch", None)
    assert resolve("bert_big") == tmp_path  # once is enough


@pytest.mark.parametrize(
    "handle", ["hf://", "hf://a/b/c", "hf://a/b@", "hf://@main", "kaggle://", "kaggle://owner/model"]
)
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
    assert {"*.bin", "tf_model*.h5"} <= set(asked["ignore_patterns"])
    assert not {"*.h5", "*.safetensors", "*.json"} & set(asked["ignore_patterns"])


def test_what_is_asked_of_kaggle(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(kagglehub, "model_download", lambda name: asked.append(name) or str(tmp_path))
    assert resolve("kaggle://owner/model/keras/variation/3") == tmp_path
    assert asked == ["owner/model/keras/variation/3"]


@pytest.fixture
def silent(monkeypatch):
    """The address of a server that accepts connections and never says a word."""
    monkeypatch.setattr(hubs, "_REACHABILITY_DELAY_SECONDS", 0.1)
    monkeypatch.setattr(hubs, "_TIMEOUT", 0.25)
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    # The threads that waited for it end now, before the next test.
    for thread in threading.enumerate():
        if thread.daemon and thread.name.startswith("Thread-"):
            thread.join(5)


def test_a_silent_hugging_face(tmp_path, monkeypatch, silent):
    monkeypatch.setattr(constants, "ENDPOINT", silent)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    start = time.monotonic()
    with pytest.raises(PresetError, match=rf"ConnectionError: {silent} cannot be reached \(ReadTimeout\)"):
        resolve("hf://lmzoo/nothing")
    assert time.monotonic() - start < 5
    # A copy in the cache is as good, and is asked for PyTorch's weights there, too.
    (tmp_path / "config.json").write_text("{}")
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
    monkeypatch.setattr(hubs, "KAGGLE", silent)
    with pytest.raises(PresetError, match=rf"ConnectionError: {silent} cannot be reached \(ReadTimeout\)"):
        resolve("kaggle://owner/model/keras/variation")


@pytest.mark.parametrize("status", [200, 503])
def test_a_slow_download_is_waited_for(tmp_path, monkeypatch, hub, status):
    hub.serve("/", hub.fail(status))
    monkeypatch.setattr(hubs, "_REACHABILITY_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(hubs, "_TIMEOUT", 5.0)  # a busy machine may take long to answer

    def download(name, **kwargs):
        time.sleep(0.3)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve("hf://org/slow") == tmp_path
    assert [request for request, _ in hub.asked] == ["HEAD /"]
    gc.collect()  # a connection that was left open would warn


def test_a_certificate_that_only_the_client_knows(tmp_path, monkeypatch):
    def head(server, timeout):
        raise requests.exceptions.SSLError(urllib3.exceptions.MaxRetryError(None, server))

    monkeypatch.setattr(requests, "head", head)
    monkeypatch.setattr(hubs, "_REACHABILITY_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(kagglehub, "model_download", lambda name: time.sleep(0.2) or str(tmp_path))
    assert resolve("kaggle://owner/model/keras/variation") == tmp_path


def test_a_download_that_ends_while_the_server_is_looked_for(tmp_path, monkeypatch):
    """As one from the cache does, without a network."""
    done = threading.Event()

    def head(server, timeout):
        done.set()
        time.sleep(0.2)
        raise requests.ConnectTimeout(urllib3.exceptions.MaxRetryError(None, server))

    monkeypatch.setattr(requests, "head", head)
    monkeypatch.setattr(hubs, "_REACHABILITY_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(kagglehub, "model_download", lambda name: str(tmp_path) if done.wait(5) else "")
    assert resolve("kaggle://owner/model/keras/variation") == tmp_path
