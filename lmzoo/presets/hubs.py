"""Fetching presets: from Hugging Face and Kaggle through their own clients, from web servers through our cache."""

from __future__ import annotations

import errno
import functools
import socket
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

from lmzoo.errors import PresetError
from lmzoo.files.cache import cache_directory, fetch_archive, fetch_files
from lmzoo.files.download import TIMEOUT as _TIMEOUT
from lmzoo.files.download import RemoteFile, background, verify

_IMPATIENT_AFTER = 3.0  # seconds before we ask whether the server is there at all; then it has _TIMEOUT to answer
_KAGGLE = "https://www.kaggle.com"

# Copies of the weights for other frameworks, which would multiply the download, and what training leaves beside them.
_NOT_READ = [
    "*.bin", "*.msgpack", "*.onnx", "*.onnx_data", "*.ot", "*.gguf", "*.tflite", "*.mlmodel", "tf_model.h5",
    "coreml/*", "onnx/*", "openvino/*", "optimizer.pt", "scaler.pt", "scheduler.pt", "*.pth", "checkpoint-*/*",
    "runs/*", ".gitattributes",
]  # fmt: skip
# PyTorch's weights, for repositories without any of the others.
_PICKLED, _OTHERS = ["pytorch_model*.bin"], ["*.safetensors", "*.weights.h5"]


def fetch(handle: str, entry: Mapping[str, Any] | None = None) -> Path:
    """The directory with the files of a preset, from the cache or from where its handle leads.

    Args:
        handle: `hf://org/name[@revision]`, `kaggle://owner/model/framework/variation[/version]`, or the address of an
            archive, `https://host/path/name.zip`, `.tar.gz` or `.tgz`.
        entry: what is known of the preset: `revision` (of a Hugging Face repository); `size` and `sha256` (of an
            archive); `files`: name -> {"size": int, "sha256": str, "url": str}, where those with a `url` are fetched
            from there, instead of an archive, and the others are verified. All of it may be missing.

    Raises:
        PresetError: for any failure, saying what was tried, why it failed and what to do.
    """
    scheme, _, name = handle.partition("://")
    entry = entry or {}
    if "revision" in entry:
        name += f"@{entry['revision']}"
    if scheme in ("https", "http"):
        name = handle
        download: Callable[[str], str | Path] = functools.partial(_download_web, entry=entry)
        where = f"the server and {cache_directory()}"
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
            "Or fetch it elsewhere and pass the path of its directory."
        ) from error


@functools.cache
def _verify_once(path: Path, **known: Any) -> None:
    try:
        verify(path, RemoteFile(str(path), **known))
    except ValueError as error:
        raise ValueError(f"{error} Delete {path.resolve()} to have it fetched again.") from None


def _download_web(url: str, entry: Mapping[str, Any]) -> Path:
    if "files" in entry:
        return fetch_files({name: RemoteFile(**file) for name, file in entry["files"].items()})
    return fetch_archive(RemoteFile(url, entry.get("size"), entry.get("sha256")))


def _download_hf(handle: str) -> str:
    import huggingface_hub
    from huggingface_hub import constants

    repository, at, revision = handle.partition("@")
    if at and not revision:
        raise ValueError("No revision follows the @.")
    snapshot = functools.partial(huggingface_hub.snapshot_download, repository, etag_timeout=_TIMEOUT)
    pinned = {"revision": revision} if at else {}

    def download(**options: Any) -> str:
        folder = Path(snapshot(ignore_patterns=_NOT_READ, **pinned, **options))
        if (folder / "config.json").exists() and not any(any(folder.glob(pattern)) for pattern in _OTHERS):
            # A snapshot's folder has the name of its commit, and asking for the same patterns finds it offline, too.
            return snapshot(allow_patterns=_PICKLED, revision=folder.name, **options)
        return str(folder)

    server = constants.ENDPOINT
    try:
        # For a pinned revision the client tries for half a minute, even where there is no network at all.
        if at and not constants.HF_HUB_OFFLINE:
            _check_network(server)
        return _answered(download, server)
    except (ConnectionError, TimeoutError) as failure:
        try:
            return download(local_files_only=True)
        except OSError:
            raise failure from None


def _download_kaggle(handle: str) -> str:
    import kagglehub

    return _answered(functools.partial(kagglehub.model_download, handle), _KAGGLE)


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


def _check_network(server: str) -> None:
    """Tries once to reach the server. An answer of any kind, or a connection that breaks, is a network.

    Raises:
        ConnectionError: if its name is not known or nobody takes the connection.
        TimeoutError: if there is no answer.
    """
    trying = _ask(server)
    if not wait([trying], _TIMEOUT).done:
        raise TimeoutError(f"{server} has not answered for {_TIMEOUT:.0f} seconds.")
    reason = getattr(trying.exception(), "reason", None)
    if isinstance(reason, (ConnectionRefusedError, socket.gaierror)) or (
        isinstance(reason, OSError) and reason.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH)
    ):
        raise ConnectionError(f"{server} cannot be reached: {reason}.")


def _ask(server: str) -> Future[None]:
    return background(lambda: urllib.request.urlopen(server).close())


def _answered(download: Callable[[], str], server: str) -> str:
    """Runs `download`, however long it takes, as long as the server is there.

    Both clients send their first requests without a time limit, so behind a firewall that drops packets they wait for
    minutes or for ever.

    Raises:
        TimeoutError: if neither the download nor a plain request to the server has come to an end.
    """
    fetching = background(download)
    finished = wait([fetching], _IMPATIENT_AFTER).done
    if not finished and not wait([fetching, _ask(server)], _TIMEOUT, FIRST_COMPLETED).done:
        raise TimeoutError(f"{server} has not answered for {_IMPATIENT_AFTER + _TIMEOUT:.0f} seconds.")
    return fetching.result()
