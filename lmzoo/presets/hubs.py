"""Downloads of presets: from Hugging Face and Kaggle with their clients, and from web servers into lmzoo's cache."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from pathlib import Path, PurePosixPath
from typing import TypedDict, TypeVar
from urllib.parse import urlsplit

import huggingface_hub
import requests
import urllib3
from huggingface_hub import constants

from lmzoo.errors import PresetError
from lmzoo.files.archives import ARCHIVES
from lmzoo.files.cache import cache_directory, fetch_files
from lmzoo.files.download import TIMEOUT as _TIMEOUT
from lmzoo.files.download import RemoteFile
from lmzoo.files.manifest import find_mismatch

_Result = TypeVar("_Result")

_REACHABILITY_DELAY_SECONDS = 1.0  # how long a client may run before its server is checked
KAGGLE = "https://www.kaggle.com"

# Weights for other frameworks and training state, which would multiply the size of the download.
_UNUSED_FILES = [
    "*.bin", "*.msgpack", "*.onnx", "*.onnx_data", "*.ot", "*.gguf", "*.tflite", "*.mlmodel", "tf_model*.h5",
    "coreml/*", "onnx/*", "openvino/*", "optimizer.pt", "scaler.pt", "scheduler.pt", "*.pth", "checkpoint-*/*",
    "runs/*", ".gitattributes",
]  # fmt: skip
# Weight files, of models and of Sentence Transformers modules. PyTorch's pickled files are downloaded only if there are
# no preferred ones, TensorFlow's only if there are neither.
_PREFERRED = ("*.safetensors", "*.weights.h5")
_PICKLED = "pytorch_model*.bin"
_TENSORFLOW = "tf_model*.h5"


class PublishedFile(TypedDict, total=False):
    """The size and SHA-256 digest of a file in a published preset, and its URL if it is downloaded separately."""

    url: str
    size: int
    sha256: str


class PublishedPreset(TypedDict, total=False):
    """An entry of published.json, the list of presets that can be downloaded.

    `family`, `parameter_count`, `languages`, `license` and `description` have the same meaning as in a preset's
    metadata.json. `size_bytes` is the total size of the files. `revision` is for Hugging Face repositories. `size` and
    `sha256` describe the archive if `handle` is the URL of an archive. `files` maps file names to entries: a file with
    a `url` is downloaded from there, not as part of an archive; other files are verified after the download.
    """

    family: str
    parameter_count: int
    languages: list[str]
    license: str
    description: str
    size_bytes: int
    handle: str
    revision: str
    size: int
    sha256: str
    files: dict[str, PublishedFile]


def fetch(handle: str, published: PublishedPreset | None = None) -> Path:
    """Download a preset if it is not cached, and return the directory of its files.

    Args:
        handle: `hf://org/name[@revision]`, `kaggle://owner/model/framework/variation[/version]`, or the URL of an
            archive, `https://host/path/name.zip`, `.tar.gz` or `.tgz`.
        published: Entry of published.json, in which any field may be missing, or None.

    Raises:
        PresetError: If the download fails; the message states the places tried, the reason and what to do.
    """
    scheme, _, name = handle.partition("://")
    entry = published or {}
    if "revision" in entry:
        name += f"@{entry['revision']}"
    if scheme in ("https", "http"):
        download: Callable[[str], str | Path] = functools.partial(_download_web, entry=entry)
        name = handle
        places = f"the server and {cache_directory()}"
        advice = "Check the address and the connection, and unset HF_HUB_OFFLINE if it is set."
    elif scheme in _HUBS:
        download, places, advice = _HUBS[scheme]
    else:
        schemes = ", ".join(f"{scheme}://" for scheme in (*_HUBS, "https"))
        raise PresetError(f"{handle!r} begins with an unknown scheme; known are {schemes}.")
    try:
        directory = Path(download(name))
        for file_name, file_entry in entry.get("files", {}).items():
            if "url" not in file_entry:
                _verify_once(directory / file_name, **file_entry)
        return directory
    except Exception as error:
        raise PresetError(
            f"Cannot fetch {handle!r}. Tried {places}.\n{type(error).__name__}: {error}\n{advice} "
            "Or download it elsewhere and pass the path of its directory."
        ) from error


@functools.cache
def _verify_once(path: Path, size: int | None = None, sha256: str | None = None) -> None:
    if problem := find_mismatch(path, size, sha256):
        raise ValueError(f"{path} is not the published file: {problem}. Delete {path.resolve()} to download it again.")


def _download_web(url: str, entry: PublishedPreset) -> Path:
    name = PurePosixPath(urlsplit(url).path).name
    if "files" in entry:
        return fetch_files(name, {file: RemoteFile(**file_entry) for file, file_entry in entry["files"].items()})
    if not name.endswith(ARCHIVES):
        raise ValueError(f"{url} is not an archive: its path must end in one of {', '.join(ARCHIVES)}.")
    return fetch_files(name, {name: RemoteFile(url, entry.get("size"), entry.get("sha256"))})


def _download_hf(handle: str) -> str:
    """Download a Hugging Face repository, and return its directory in the client's cache.

    If the server cannot be reached, a cached copy is used.

    Raises:
        ValueError: If the revision is empty.
        ConnectionError: If the server cannot be reached, and there is no cached copy.
    """
    repository, separator, revision = handle.partition("@")
    if separator and not revision:
        raise ValueError("No revision follows the @.")

    def download(local_files_only: bool = False) -> str:
        snapshot = functools.partial(
            huggingface_hub.snapshot_download, repository, etag_timeout=_TIMEOUT, local_files_only=local_files_only
        )
        directory = Path(snapshot(ignore_patterns=_UNUSED_FILES, revision=revision or None))
        for pattern, preferred_patterns in ((_PICKLED, _PREFERRED), (_TENSORFLOW, (*_PREFERRED, _PICKLED))):
            if directories := _find_directories_without(preferred_patterns, directory):
                # The directory is named after the commit, so both downloads are of the same revision. The patterns also
                # work offline.
                patterns = [(path / pattern).as_posix() for path in directories]
                snapshot(allow_patterns=patterns, revision=directory.name)
        return str(directory)

    try:
        return run_while_reachable(download, constants.ENDPOINT)
    except ConnectionError as failure:
        try:
            return download(local_files_only=True)
        except OSError:
            raise failure from None


def _find_directories_without(patterns: Iterable[str], directory: Path) -> list[Path]:
    """Return the directories, relative to `directory`, that need weights but have no file matching `patterns`."""
    candidates = [directory]
    if (directory / "modules.json").exists():
        from lmzoo.checkpoints.sentence_transformers.modules import read_modules  # imports Keras

        with contextlib.suppress(PresetError):  # raised again when the checkpoint is read
            candidates = [module.directory for module in read_modules(directory) if module.has_weights]
    return [
        candidate.relative_to(directory)
        for candidate in candidates
        if (candidate / "config.json").exists() and not any(any(candidate.glob(pattern)) for pattern in patterns)
    ]


def _download_kaggle(handle: str) -> str:
    import kagglehub  # a slow import

    if "KAGGLE_DATA_PROXY_URL" in os.environ:  # in Kaggle's notebooks, only this proxy needs to be reachable
        return kagglehub.model_download(handle)
    return run_while_reachable(functools.partial(kagglehub.model_download, handle), KAGGLE)


_HUBS: dict[str, tuple[Callable[[str], str], str, str]] = {
    "hf": (
        _download_hf,
        "huggingface.co and the local cache",
        "Check the name (hf://org/name[@revision]) and the connection, run `hf auth login` if the repository is "
        "private or gated, and unset HF_HUB_OFFLINE if it is set.",
    ),
    "kaggle": (
        _download_kaggle,
        "kaggle.com and the local cache",
        "Check the name (kaggle://owner/model/framework/variation, with /version to use the cache without network), "
        "the connection and the Kaggle credentials.",
    ),
}


def run_while_reachable(transfer: Callable[[], _Result], server: str) -> _Result:
    """Run a hub's client without a time limit, but fail early if its server cannot be reached.

    The clients send some requests without a timeout and retry others for half a minute. Without a network, or behind a
    firewall that drops packets, they take minutes or never return.

    Args:
        transfer: Function that runs the client.
        server: URL of the server.

    Raises:
        ConnectionError: If the client is still running after a second and the server does not answer a request.
    """
    future: Future[_Result] = Future()

    def run() -> None:
        try:
            future.set_result(transfer())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()  # an executor's threads would keep the process alive
    if not wait([future], _REACHABILITY_DELAY_SECONDS).done:
        try:
            requests.head(server, timeout=_TIMEOUT)
        except requests.exceptions.SSLError:
            pass  # the server answers, and the client may know its certificate
        except (requests.ConnectionError, requests.Timeout) as error:
            was_reached = isinstance(error.args[0], urllib3.exceptions.ProtocolError)  # a server closed the connection
            if not was_reached and not future.done():
                raise ConnectionError(f"{server} cannot be reached ({type(error).__name__}).") from error
    return future.result()
