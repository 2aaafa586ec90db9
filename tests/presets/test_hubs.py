"""Remote handles: calls of the hubs' clients, and clear, quick errors without a network."""

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

NO_SERVER = "http://127.0.0.1:9"  # refuses connections
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
    """Return the path, or the error message, of each handle."""
    package = str(Path(hubs.__file__).parents[1])
    environment = {**os.environ, "HF_HOME": str(cache), "KAGGLEHUB_CACHE": str(cache), **environment}
    # A proxy that refuses connections stands for "no network" on machines that have one.
    proxies = dict.fromkeys(["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"], NO_SERVER)
    process = subprocess.run(
        [sys.executable, "-c", CHILD, package, *handles],
        env={**environment, **proxies},
        capture_output=True,
        text=True,
        timeout=15,
        check=True,
    )
    return process.stdout.split("\0")[:-1]


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
def test_errors_without_a_network_say_what_to_do(tmp_path, environment, expected):
    messages = resolve_in_child([*expected], tmp_path, **environment)
    for message, (handle, part) in zip(messages, expected.items(), strict=True):
        assert message.startswith(f"Cannot fetch '{handle}'. Tried {'hugging' if handle[0] == 'h' else 'kaggle'}")
        assert part in message
        assert "pass the path of its directory" in message


def test_a_cached_copy_is_used_offline(tmp_path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--lmzoo--small"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    assert resolve_in_child(["hf://lmzoo/small"], tmp_path, HF_HUB_OFFLINE="1") == [f"FOUND {snapshot}"]


def serve_hub(web, revision: str, files: list[str]) -> None:
    """Serve the API and the files of a repository org/name to Hugging Face's client."""
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
    ("handle", "revision", "weights", "unread"),
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
def test_only_files_that_are_read_are_fetched(monkeypatch, hub, handle, revision, weights, unread):
    serve_hub(hub, revision, list(dict.fromkeys([*READ, *NOT_READ, *weights, *unread])))
    folder = resolve(handle)
    assert folder.name == COMMIT
    fetched = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert fetched == {*READ, *weights}
    # Without a network, the cache has all files.
    num_requests = len(hub.asked)
    for change in ({"HF_HUB_OFFLINE": True}, {"ENDPOINT": NO_SERVER, "HUGGINGFACE_CO_URL_TEMPLATE": NO_SERVER}):
        with monkeypatch.context() as patch:
            for name, value in change.items():
                patch.setattr(constants, name, value)
            assert resolve(handle) == folder
    assert len(hub.asked) == num_requests
    (folder / weights[0]).unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PresetError, match=f"^Cannot fetch '{handle}'"):
        resolve(handle)


MODULES = b"""[{"path": "", "type": "sentence_transformers.models.Transformer"},
 {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
 {"path": "2_Dense", "type": "sentence_transformers.models.Dense"},
 {"path": "3_Dense", "type": "sentence_transformers.models.Dense"}]"""


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_files_of_sentence_transformers_modules_are_fetched(hub, weights):
    """Modules may have pickled weights even if the Transformer has none."""
    pickles = [*{weights, "pytorch_model.bin"}, "2_Dense/pytorch_model.bin", "3_Dense/pytorch_model.bin"]
    read = ["config.json", "modules.json", "1_Pooling/config.json", "2_Dense/config.json", "3_Dense/config.json"]
    read += ["3_Dense/model.safetensors"]
    serve_hub(hub, "main", [*read, *pickles, *NOT_READ])
    hub.serve(f"/org/name/resolve/{COMMIT}/modules.json", hub.content(MODULES, etag='"m"', X_Repo_Commit=COMMIT))
    folder = resolve("hf://org/name")
    fetched = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert fetched == {*read, weights, "2_Dense/pytorch_model.bin"}


def test_a_broken_connection_is_retried(monkeypatch, hub):
    serve_hub(hub, "", ["config.json", "model.safetensors"])
    tree = f"/api/models/org/name/tree/{COMMIT}"
    hub.serve(tree, hub.fail(503), *hub.answers[tree])
    hub.serve("/", lambda request: request.connection.close())
    monkeypatch.setattr(hubs, "_REACHABILITY_DELAY_SECONDS", 0.2)
    assert (resolve(f"hf://org/name@{COMMIT}") / "model.safetensors").exists()
    requests = [request for request, _ in hub.asked]
    assert "HEAD /" in requests
    assert requests.count(f"GET {tree}") == 2


def test_a_published_repository_is_pinned_and_verified(tmp_path, monkeypatch):
    data = b"weights"
    expected = {"size": 7, "sha256": hashlib.sha256(data).hexdigest()}
    entry = {"handle": "hf://org/name", "revision": COMMIT, "files": {"config.json": {"size": 2}, "w.bin": expected}}
    monkeypatch.setattr(catalog, "_read_published", lambda: {"bert_big": entry})
    revisions = []
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda name, **kwargs: revisions.append(kwargs["revision"]) or str(tmp_path),
    )
    (tmp_path / "config.json").write_bytes(b"{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(PresetError, match=r"w\.bin"):
        resolve("bert_big")
    messages_by_content = {b"weight": "it has 6 bytes, not 7", b"Weights": f"sha256 is .*, not {expected['sha256']}"}
    for damaged, message in messages_by_content.items():
        (tmp_path / "w.bin").write_bytes(damaged)
        with pytest.raises(PresetError, match=rf"(?s){message}.* Delete {tmp_path}/w.bin to download it again"):
            resolve("bert_big")
    (tmp_path / "w.bin").write_bytes(data)
    assert resolve("bert_big") == tmp_path
    assert set(revisions) == {COMMIT}
    monkeypatch.setattr(hubs, "find_mismatch", None)
    assert resolve("bert_big") == tmp_path  # verified only once


@pytest.mark.parametrize(
    "handle", ["hf://", "hf://a/b/c", "hf://a/b@", "hf://@main", "kaggle://", "kaggle://owner/model"]
)
def test_malformed_handles_are_errors(handle):
    with pytest.raises(PresetError, match=r"Cannot fetch.*\n.*\nCheck the name"):
        resolve(handle)


def test_hugging_faces_client_gets_patterns_and_a_timeout(tmp_path, monkeypatch):
    arguments = {}
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda name, **kwargs: arguments.update(kwargs, name=name) or str(tmp_path),
    )
    assert resolve("hf://org/name") == tmp_path
    assert arguments["name"] == "org/name"
    assert arguments["etag_timeout"] == 10
    assert {"*.bin", "tf_model*.h5"} <= set(arguments["ignore_patterns"])
    assert not {"*.h5", "*.safetensors", "*.json"} & set(arguments["ignore_patterns"])


def test_kaggles_client_gets_the_handle(tmp_path, monkeypatch):
    handles = []
    monkeypatch.setattr(kagglehub, "model_download", lambda name: handles.append(name) or str(tmp_path))
    assert resolve("kaggle://owner/model/keras/variation/3") == tmp_path
    assert handles == ["owner/model/keras/variation/3"]


@pytest.fixture
def silent(monkeypatch):
    """Return the URL of a server that accepts connections and never responds."""
    monkeypatch.setattr(hubs, "_REACHABILITY_DELAY_SECONDS", 0.1)
    monkeypatch.setattr(hubs, "_TIMEOUT", 0.25)
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    # End the threads that wait for the server before the next test.
    for thread in threading.enumerate():
        if thread.daemon and thread.name.startswith("Thread-"):
            thread.join(5)


def test_a_silent_hugging_face_times_out(tmp_path, monkeypatch, silent):
    monkeypatch.setattr(constants, "ENDPOINT", silent)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    start = time.monotonic()
    with pytest.raises(PresetError, match=rf"ConnectionError: {silent} cannot be reached \(ReadTimeout\)"):
        resolve("hf://lmzoo/nothing")
    assert time.monotonic() - start < 5
    # A copy in the cache is used, also for PyTorch's weights.
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda name, local_files_only=False, **kwargs: (
            str(tmp_path) if local_files_only else requests.get(silent, timeout=3)
        ),
    )
    assert resolve("hf://lmzoo/nothing") == tmp_path


def test_a_silent_kaggle_times_out(monkeypatch, silent):
    monkeypatch.setattr(kagglehub, "model_download", lambda name: requests.get(silent, timeout=3))
    monkeypatch.setattr(hubs, "KAGGLE", silent)
    with pytest.raises(PresetError, match=rf"ConnectionError: {silent} cannot be reached \(ReadTimeout\)"):
        resolve("kaggle://owner/model/keras/variation")


def test_notebooks_of_kaggle_do_not_ask_for_its_site(tmp_path, monkeypatch):
    """Without internet, they reach only the proxy from which kagglehub downloads."""
    monkeypatch.setenv("KAGGLE_DATA_PROXY_URL", "https://dp.kaggle.net")
    monkeypatch.setattr(hubs, "run_while_reachable", lambda *_: pytest.fail("asks for the site"))
    monkeypatch.setattr(kagglehub, "model_download", lambda name: str(tmp_path))
    assert resolve("kaggle://owner/model/keras/variation") == tmp_path


@pytest.mark.parametrize("status", [200, 503])
def test_a_slow_download_does_not_time_out(tmp_path, monkeypatch, hub, status):
    hub.serve("/", hub.fail(status))
    monkeypatch.setattr(hubs, "_REACHABILITY_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(hubs, "_TIMEOUT", 5.0)  # a busy machine may take long to answer

    def download(name, **kwargs):
        time.sleep(0.3)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve("hf://org/slow") == tmp_path
    assert [request for request, _ in hub.asked] == ["HEAD /"]
    gc.collect()  # an open connection would give a warning


def test_a_certificate_error_of_the_check_is_ignored(tmp_path, monkeypatch):
    def head(server, timeout):
        raise requests.exceptions.SSLError(urllib3.exceptions.MaxRetryError(None, server))

    monkeypatch.setattr(requests, "head", head)
    monkeypatch.setattr(hubs, "_REACHABILITY_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(kagglehub, "model_download", lambda name: time.sleep(0.2) or str(tmp_path))
    assert resolve("kaggle://owner/model/keras/variation") == tmp_path


def test_a_download_may_end_during_the_check(tmp_path, monkeypatch):
    """Downloads from the cache do so without a network."""
    check_has_begun = threading.Event()

    def head(server, timeout):
        check_has_begun.set()
        time.sleep(0.2)
        raise requests.ConnectTimeout(urllib3.exceptions.MaxRetryError(None, server))

    monkeypatch.setattr(requests, "head", head)
    monkeypatch.setattr(hubs, "_REACHABILITY_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(kagglehub, "model_download", lambda name: str(tmp_path) if check_has_begun.wait(5) else "")
    assert resolve("kaggle://owner/model/keras/variation") == tmp_path
