"""Uploads of presets: through Hugging Face's client to a server of our own, and through a stand-in for Kaggle's."""

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

# What an earlier upload, of a preset with other files, has left.
EARLIER = ["config.json", "old_model.txt", "assets/tokenizer/old.model", "tokenizer.json"]
METADATA = {"library_name": "keras", "pipeline_tag": "text-classification", "tags": ["lmzoo", "bert"]}
HANDLE = "kaggle://me/reviews/keras/tiny"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
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
def accepting(hub, monkeypatch):
    """A hub that accepts uploads; the requests that it gets, and the files of its commit."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    requests, files, deleted = [], {}, []

    def answer(reply):
        def of_request(request):
            body = request.rfile.read(int(request.headers["Content-Length"]))
            requests.append((request.path.partition("?")[0], body))
            send(request, reply(body))

        return of_request

    def modes(body):
        return {
            "files": [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(body)["files"]]
        }

    def commit(body):
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            if line["key"] == "deletedFile":
                deleted.append(line["value"]["path"])
        return {"commitUrl": f"{hub.url}/me/reviews/commit/1", "commitOid": "1", "success": True}

    hub.serve("/api/repos/create", answer(lambda body: {"url": f"{hub.url}/me/reviews", "name": "me/reviews"}))
    hub.serve("/api/validate-yaml", answer(lambda body: {"errors": [], "warnings": []}))
    hub.serve("/api/models/me/reviews/preupload/main", answer(modes))
    hub.serve("/api/models/me/reviews/commit/main", answer(commit))
    listed = [{"type": "file", "path": name, "size": 3, "oid": "0" * 40} for name in EARLIER]
    hub.serve("/api/models/me/reviews/tree/main", lambda request: send(request, listed))
    return requests, files, deleted


def is_private(requests) -> bool:
    """Whether the first request asks for a private repository, in either of the forms that the client has had."""
    body = json.loads(requests[0][1])
    return body["private"] if "private" in body else body["visibility"] == "private"


def test_hugging_face_gets_the_preset_and_a_card(saved, accepting, tmp_path):
    requests, files, deleted = accepting
    lmzoo.upload_preset("hf://me/reviews", saved)
    assert is_private(requests)
    assert deleted == ["assets/tokenizer/old.model"]
    for name, content in files.items():
        target = tmp_path / "downloaded" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    assert files.keys() == {p.relative_to(saved).as_posix() for p in saved.rglob("*") if p.is_file()} - {
        "notes.txt"
    } | {"README.md"}
    assert TextClassifier.from_preset(tmp_path / "downloaded").labels == ("bad", "good")
    card = huggingface_hub.ModelCard(files["README.md"].decode())
    assert card.data.to_dict() == METADATA
    (snippet,) = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    assert 'lmzoo.models.TextClassifier.from_preset("hf://me/reviews")' in snippet
    names: dict[str, object] = {}
    exec(snippet.replace("hf://me/reviews", str(tmp_path / "downloaded")), names)
    assert names["model"].labels == ("bad", "good")
    assert not (saved / "README.md").exists()


def test_public_repositories_and_own_cards(saved, accepting, tmp_path):
    (copy := tmp_path / "copy").symlink_to(saved)
    (saved / "README.md").write_text("# My own card")
    try:
        lmzoo.upload_preset("hf://me/reviews", copy, private=False)
    finally:
        (saved / "README.md").unlink()
    requests, files, _ = accepting
    assert not is_private(requests)
    metadata = "library_name: keras\npipeline_tag: text-classification\ntags:\n- lmzoo\n- bert"
    assert files["README.md"].decode() == f"---\n{metadata}\n---\n\n# My own card"


@pytest.mark.parametrize("card", ["# Figures\n\n| accuracy | 0.9 |\n", "---\nlicense: mit\n---\n\n# Figures\n"])
def test_cards_in_the_manifest(card, saved, accepting, tmp_path):
    """As `lmzoo pretrain` writes them: they get metadata if they have none, and the preset can still be loaded."""
    _, files, _ = accepting
    shutil.copytree(saved, tmp_path / "own")
    (tmp_path / "own/README.md").write_text(card)
    write_manifest(tmp_path / "own", version=3)
    manifest = (tmp_path / "own/manifest.json").read_bytes()
    lmzoo.upload_preset("hf://me/reviews", tmp_path / "own")
    assert files["README.md"].decode().endswith(card)
    data = huggingface_hub.ModelCard(files["README.md"].decode()).data
    assert data.to_dict() == ({"license": "mit"} if card.startswith("---") else METADATA)
    for name, content in files.items():
        target = tmp_path / "downloaded" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    assert verify_manifest(tmp_path / "downloaded")
    assert read_version(tmp_path / "downloaded") == 3
    assert (tmp_path / "own/README.md").read_text() == card
    assert (tmp_path / "own/manifest.json").read_bytes() == manifest


def test_kaggle_gets_the_same_files(saved, monkeypatch):
    seen = {}
    upload = create_autospec(
        kagglehub.model_upload,
        side_effect=lambda handle, folder: seen.update((p.name, p.read_bytes()) for p in Path(folder).rglob("*.*")),
    )
    monkeypatch.setattr(kagglehub, "model_upload", upload)
    lmzoo.upload_preset(HANDLE, saved)
    assert upload.call_args.args[0] == HANDLE.removeprefix("kaggle://")
    assert seen.keys() >= {"config.json", "manifest.json", "task.weights.h5", "README.md"}
    assert "notes.txt" not in seen


def test_uploads_that_cannot_succeed(saved, hub, tmp_path, monkeypatch):
    def refuse(handle: str, local_model_dir: str) -> None:
        raise PermissionError("not your model")

    monkeypatch.setattr(kagglehub, "model_upload", refuse)
    hub.serve("/api/repos/create", hub.fail(401))
    (broken := tmp_path / "broken").mkdir()
    for file in ("config.json", "manifest.json"):
        (broken / file).write_bytes((saved / file).read_bytes())
    cases = {
        ("s3://me/reviews", saved): "Presets are uploaded to hf://name/preset or kaggle",
        ("reviews", saved): "Presets are uploaded to hf://name/preset or kaggle",
        ("hf://me/reviews", tmp_path): "is not a preset of lmzoo .* `save_to_preset`",
        ("hf://me/reviews", tmp_path / "nowhere"): "is not a preset of lmzoo",
        ("hf://me/reviews", broken): "is missing, although manifest.json lists it",
        ("hf://me/reviews", saved): r"(?s)Cannot upload .*401.*hf auth login",
        (HANDLE, saved): r"(?s)Cannot upload .*PermissionError: not your model\n.*`kagglehub.login\(\)`",
    }
    for (uri, folder), message in cases.items():
        with pytest.raises(PresetError, match=message):
            lmzoo.upload_preset(uri, folder)
    with pytest.raises(PresetError, match="leave out `private=False`"):
        lmzoo.upload_preset(HANDLE, saved, private=False)
