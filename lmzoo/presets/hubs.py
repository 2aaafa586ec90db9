"""Downloads presets: from Hugging Face and Kaggle with their own clients, from web servers into our cache."""

from __future__ import annotations

import contextlib
import functools
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
from lmzoo.files.manifest import mismatch

_Result = TypeVar("_Result")

_PATIENCE = 1.0  # seconds until we check whether a client's server can be reached
KAGGLE = "https://www.kaggle.com"

# Copies of the weights for other frameworks, which would multiply the download, and files left over from training.
_NOT_READ = [
    "*.bin", "*.msgpack", "*.onnx", "*.onnx_data", "*.ot", "*.gguf", "*.tflite", "*.mlmodel", "tf_model*.h5",
    "coreml/*", "onnx/*", "openvino/*", "optimizer.pt", "scaler.pt", "scheduler.pt", "*.pth", "checkpoint-*/*",
    "runs/*", ".gitattributes",
]  # fmt: skip
# Weights of repositories and of modules of Sentence Transformers. PyTorch's are fetched only without any of the first
# kinds, TensorFlow's only without any others.
_FIRST = ("*.safetensors", "*.weights.h5")
_PICKLED = "pytorch_model*.bin"
_TENSORFLOW = "tf_model*.h5"


class PublishedFile(TypedDict, total=False):
    """What is known about a file of a published preset: its size, its digest, and its address if it has its own."""

    url: str
    size: int
    sha256: str


class PublishedPreset(TypedDict, total=False):
    """An entry of published.json.

    The fields from `family` to `description` are those of a preset's metadata.json. `revision` is for Hugging Face
    repositories, `size` and `sha256` are for archives. `files` holds files by name: those with a `url` are downloaded
    from there instead of an archive; the others are verified.
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
    """Return the directory with the files of a preset, downloaded unless they are in a cache.

    Args:
        handle: `hf://org/name[@revision]`, `kaggle://owner/model/framework/variation[/version]`, or the address of an
            archive, `https://host/path/name.zip`, `.tar.gz` or `.tgz`.
        published: what is known about the preset; any field may be missing.

    Raises:
        PresetError: for any failure; says what was tried, why it failed and what to do.
    """
    scheme, _, name = handle.partition("://")
    entry = published or {}
    if "revision" in entry:
        name += f"@{entry['revision']}"
    if scheme in ("https", "http"):
        download: Callable[[str], str | Path] = functools.partial(_download_web, entry=entry)
        name, where = handle, f"the server and {cache_directory()}"
        advice = "Check the address and the connection, and unset HF_HUB_OFFLINE if it is set."
    elif scheme in _HUBS:
        download, where, advice = _HUBS[scheme]
    else:
        schemes = ", ".join(f"{scheme}://" for scheme in (*_HUBS, "https"))
        raise PresetError(f"{handle!r} begins with an unknown scheme; known are {schemes}.")
    try:
        folder = Path(download(name))
        for file, known in entry.get("files", {}).items():
            if "url" not in known:
                _verify_once(folder / file, **known)
        return folder
    except Exception as error:
        raise PresetError(
            f"Cannot fetch {handle!r}. Tried {where}.\n{type(error).__name__}: {error}\n{advice} "
            "Or download it elsewhere and pass the path of its directory."
        ) from error


@functools.cache
def _verify_once(path: Path, size: int | None = None, sha256: str | None = None) -> None:
    if problem := mismatch(path, size, sha256):
        raise ValueError(f"{path} is not the published file: {problem}. Delete {path.resolve()} to download it again.")


def _download_web(url: str, entry: PublishedPreset) -> Path:
    name = PurePosixPath(urlsplit(url).path).name
    if "files" in entry:
        return fetch_files(name, {file: RemoteFile(**known) for file, known in entry["files"].items()})
    if not name.endswith(ARCHIVES):
        raise ValueError(f"{url} is not an archive: its path must end in one of {', '.join(ARCHIVES)}.")
    return fetch_files(name, {name: RemoteFile(url, entry.get("size"), entry.get("sha256"))})


def _download_hf(handle: str) -> str:
    repository, at, revision = handle.partition("@")
    if at and not revision:
        raise ValueError("No revision follows the @.")

    def download(local_files_only: bool = False) -> str:
        snapshot = functools.partial(
            huggingface_hub.snapshot_download, repository, etag_timeout=_TIMEOUT, local_files_only=local_files_only
        )
        folder = Path(snapshot(ignore_patterns=_NOT_READ, revision=revision or None))
        for pattern, earlier in ((_PICKLED, _FIRST), (_TENSORFLOW, (*_FIRST, _PICKLED))):
            if parts := _parts_without(earlier, folder):
                # The folder is named after the snapshot's commit. The same patterns find it offline, too.
                patterns = [(part / pattern).as_posix() for part in parts]
                snapshot(allow_patterns=patterns, revision=folder.name)
        return str(folder)

    try:
        return while_reachable(download, constants.ENDPOINT)
    except ConnectionError as failure:
        try:
            return download(local_files_only=True)
        except OSError:
            raise failure from None


def _parts_without(patterns: Iterable[str], folder: Path) -> list[Path]:
    """Return the parts of a downloaded repository that need weights but have no such file, relative to its folder."""
    parts = [folder]
    if (folder / "modules.json").exists():
        from lmzoo.checkpoints.sentence_transformers.modules import read_modules  # which imports Keras

        with contextlib.suppress(PresetError):  # which is raised again when the folder is read
            parts = [module.directory for module in read_modules(folder) if module.has_weights]
    return [
        part.relative_to(folder)
        for part in parts
        if (part / "config.json").exists() and not any(any(part.glob(pattern)) for pattern in patterns)
    ]


def _download_kaggle(handle: str) -> str:
    import kagglehub  # a slow import

    return while_reachable(functools.partial(kagglehub.model_download, handle), KAGGLE)


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


def while_reachable(transfer: Callable[[], _Result], server: str) -> _Result:
    """Run a hub's client, for as long as it takes, provided that its server can be reached.

    The clients send some requests without a time limit and repeat others for half a minute. Without a network, or
    behind a firewall that drops packets, they would take minutes or never return.

    Raises:
        ConnectionError: if the client does not finish soon and the server does not answer a request of ours.
    """
    done: Future[_Result] = Future()

    def run() -> None:
        try:
            done.set_result(transfer())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()  # an executor's thread would keep the process alive
    if not wait([done], _PATIENCE).done:
        try:
            requests.head(server, timeout=_TIMEOUT)
        except requests.exceptions.SSLError:
            pass  # the server is there, and the client may know its certificate
        except (requests.ConnectionError, requests.Timeout) as error:
            answered = isinstance(error.args[0], urllib3.exceptions.ProtocolError)  # a server cut the connection
            if not answered and not done.done():
                raise ConnectionError(f"{server} cannot be reached ({type(error).__name__}).") from error
    return done.result()
