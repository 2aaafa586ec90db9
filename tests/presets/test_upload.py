"""Uploads of presets: with Hugging Face's client to our own server, and with a stand-in for Kaggle's client."""

from __future__ import annotations

import base64
import json
import re
import shutil
from pathlib import Path
from unittest.mock import create_autospec

import huggingface_hub
import kagglehub
import pytest

import lmzoo
from lmzoo.errors import PresetError
from lmzoo.families.bert import FAMILY
from lmzoo.files.manifest import read_version, verify_manifest, write_manifest
from lmzoo.models import TextClassifier
from lmzoo.testing import tiny_task

# Files of an earlier upload of another preset.
EARLIER_FILES = ["config.json", "old_model.txt", "assets/tokenizer/old.model", "tokenizer.json"]
METADATA = {"library_name": "keras", "pipeline_tag": "text-classification", "tags": ["lmzoo", "bert"]}
HANDLE = "kaggle://me/reviews/keras/tiny"


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "reviews"
    tiny_task(TextClassifier, FAMILY, num_classes=None, labels=["bad", "good"]).save_to_preset(folder)
    (folder / "notes.txt").write_text("for myself")
    return folder


def send(request, answer) -> None:
    text = json.dumps(answer).encode()
    request.send_response(200)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(text)))
    request.end_headers()
    request.wfile.write(text)


@pytest.fixture
def upload_hub(hub, monkeypatch):
    """Return the requests to a hub that accepts uploads, and the added and deleted files of the commit."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    requests, files, deleted = [], {}, []

    def answer(reply):
        def handle(request):
            body = request.rfile.read(int(request.headers["Content-Length"]))
            requests.append((request.path.partition("?")[0], body))
            send(request, reply(body))

        return handle

    def upload_modes(body):
        files = json.loads(body)["files"]
        return {"files": [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in files]}

    def commit(body):
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            if line["key"] == "deletedFile":
                deleted.append(line["value"]["path"])
        return {"commitUrl": f"{hub.url}/me/reviews/commit/1", "commitOid": "1", "success": True}

    hub.serve("/api/repos/create", answer(lambda body: {"url": f"{hub.url}/me/reviews", "name": "me/reviews"}))
    hub.serve("/api/validate-yaml", answer(lambda body: {"errors": [], "warnings": []}))
    hub.serve("/api/models/me/reviews/preupload/main", answer(upload_modes))
    hub.serve("/api/models/me/reviews/commit/main", answer(commit))
    listed = [{"type": "file", "path": name, "size": 3, "oid": "0" * 40} for name in EARLIER_FILES]
    hub.serve("/api/models/me/reviews/tree/main", lambda request: send(request, listed))
    return requests, files, deleted


def write_files(files, folder: Path) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def is_private(requests) -> bool:
    """Return whether the first request creates a private repository, in the form of any version of the client."""
    body = json.loads(requests[0][1])
    return body["private"] if "private" in body else body["visibility"] == "private"


def test_hugging_face_gets_the_preset_and_a_card(preset, upload_hub, tmp_path):
    requests, files, deleted = upload_hub
    lmzoo.upload_preset("hf://me/reviews", preset)
    assert is_private(requests)
    assert deleted == ["assets/tokenizer/old.model"]
    write_files(files, tmp_path / "downloaded")
    preset_files = {path.relative_to(preset).as_posix() for path in preset.rglob("*") if path.is_file()}
    assert files.keys() == preset_files - {"notes.txt"} | {"README.md"}
    assert TextClassifier.from_preset(tmp_path / "downloaded").labels == ("bad", "good")
    card = huggingface_hub.ModelCard(files["README.md"].decode())
    assert card.data.to_dict() == METADATA
    (snippet,) = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    assert 'lmzoo.models.TextClassifier.from_preset("hf://me/reviews")' in snippet
    names: dict[str, object] = {}
    exec(snippet.replace("hf://me/reviews", str(tmp_path / "downloaded")), names)
    assert names["model"].labels == ("bad", "good")
    assert not (preset / "README.md").exists()


def test_repositories_may_be_public_and_have_their_own_card(preset, upload_hub, tmp_path):
    (copy := tmp_path / "copy").symlink_to(preset)
    (preset / "README.md").write_text("# My own card")
    try:
        lmzoo.upload_preset("hf://me/reviews", copy, private=False)
    finally:
        (preset / "README.md").unlink()
    requests, files, _ = upload_hub
    assert not is_private(requests)
    metadata = "library_name: keras\npipeline_tag: text-classification\ntags:\n- lmzoo\n- bert"
    assert files["README.md"].decode() == f"---\n{metadata}\n---\n\n# My own card"


@pytest.mark.parametrize("card", ["# Figures\n\n| accuracy | 0.9 |\n", "---\nlicense: mit\n---\n\n# Figures\n"])
def test_cards_in_the_manifest_get_metadata(card, preset, upload_hub, tmp_path):
    """`lmzoo pretrain` writes such cards; the preset can still be loaded."""
    _, files, _ = upload_hub
    shutil.copytree(preset, tmp_path / "own")
    (tmp_path / "own/README.md").write_text(card)
    write_manifest(tmp_path / "own", version=3)
    manifest = (tmp_path / "own/manifest.json").read_bytes()
    lmzoo.upload_preset("hf://me/reviews", tmp_path / "own")
    assert files["README.md"].decode().endswith(card)
    data = huggingface_hub.ModelCard(files["README.md"].decode()).data
    assert data.to_dict() == ({"license": "mit"} if card.startswith("---") else METADATA)
    write_files(files, tmp_path / "downloaded")
    assert verify_manifest(tmp_path / "downloaded")
    assert read_version(tmp_path / "downloaded") == 3
    assert (tmp_path / "own/README.md").read_text() == card
    assert (tmp_path / "own/manifest.json").read_bytes() == manifest


def test_kaggle_gets_the_same_files(preset, monkeypatch):
    files = {}
    upload = create_autospec(
        kagglehub.model_upload,
        side_effect=lambda handle, folder: files.update((p.name, p.read_bytes()) for p in Path(folder).rglob("*.*")),
    )
    monkeypatch.setattr(kagglehub, "model_upload", upload)
    lmzoo.upload_preset(HANDLE, preset)
    assert upload.call_args.args[0] == HANDLE.removeprefix("kaggle://")
    assert files.keys() >= {"config.json", "manifest.json", "task.weights.h5", "README.md"}
    assert "notes.txt" not in files


def test_failed_uploads_say_what_to_do(preset, hub, tmp_path, monkeypatch):
    def refuse(handle: str, local_model_dir: str) -> None:
        raise PermissionError("not your model")

    monkeypatch.setattr(kagglehub, "model_upload", refuse)
    hub.serve("/api/repos/create", hub.fail(401))
    (broken := tmp_path / "broken").mkdir()
    for file in ("config.json", "manifest.json"):
        (broken / file).write_bytes((preset / file).read_bytes())
    cases = {
        ("s3://me/reviews", preset): "Presets are uploaded to hf://name/preset or kaggle",
        ("reviews", preset): "Presets are uploaded to hf://name/preset or kaggle",
        ("hf://me/reviews", tmp_path): "is not a preset of lmzoo .* `save_to_preset`",
        ("hf://me/reviews", tmp_path / "nowhere"): "is not a preset of lmzoo",
        ("hf://me/reviews", broken): "is missing, although manifest.json lists it",
        ("hf://me/reviews", preset): r"(?s)Cannot upload .*401.*hf auth login",
        (HANDLE, preset): r"(?s)Cannot upload .*PermissionError: not your model\n.*`kagglehub.login\(\)`",
    }
    for (uri, folder), message in cases.items():
        with pytest.raises(PresetError, match=message):
            lmzoo.upload_preset(uri, folder)
    with pytest.raises(PresetError, match="leave out `private=False`"):
        lmzoo.upload_preset(HANDLE, preset, private=False)
