"""Fetching presets from Hugging Face and Kaggle through their own clients, without hanging."""

from __future__ import annotations

import functools
import threading
import urllib.request
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

from lmzoo.presets.store import PresetError

_IMPATIENT_AFTER = 3.0  # seconds before we ask whether the server is there at all
_TIMEOUT = 10.0  # seconds that it then has to answer
_KAGGLE = "https://www.kaggle.com"

# Copies of the weights for other frameworks, which would multiply the download.
_NOT_READ = [
    "*.bin", "*.msgpack", "*.onnx", "*.onnx_data", "*.ot", "*.gguf", "*.tflite", "*.mlmodel", "tf_model.h5",
    "coreml/*", "onnx/*", "openvino/*",
]  # fmt: skip


def fetch(handle: str) -> Path:
    """Fetches `hf://org/name` or `kaggle://owner/model/framework/variation[/version]`, or finds it in the hub's cache.

    Raises:
        PresetError: for any failure, saying what was tried, why it failed and what to do.
    """
    scheme, _, name = handle.partition("://")
    if scheme not in _HUBS:
        raise PresetError(f"{handle!r} begins with an unknown scheme; known are {', '.join(f'{s}://' for s in _HUBS)}.")
    download, where, advice = _HUBS[scheme]
    try:
        return Path(download(name))
    except Exception as error:
        raise PresetError(
            f"Cannot fetch {handle!r}. Tried {where}.\n{type(error).__name__}: {error}\n{advice} "
            "Or fetch it elsewhere and pass the path of its directory."
        ) from error


def _download_hf(repository: str) -> str:
    import huggingface_hub

    download = functools.partial(
        huggingface_hub.snapshot_download, repository, etag_timeout=_TIMEOUT, ignore_patterns=_NOT_READ
    )
    try:
        return _answered(download, huggingface_hub.constants.ENDPOINT)
    except TimeoutError as silence:
        try:
            return download(local_files_only=True)
        except OSError:
            raise silence from None


def _download_kaggle(handle: str) -> str:
    import kagglehub

    return _answered(functools.partial(kagglehub.model_download, handle), _KAGGLE)


_HUBS: dict[str, tuple[Callable[[str], str], str, str]] = {
    "hf": (
        _download_hf,
        "huggingface.co and the local cache",
        "Check the name (hf://org/name) and the connection, run `hf auth login` if the repository is private or gated, "
        "and unset HF_HUB_OFFLINE if it is set.",
    ),
    "kaggle": (
        _download_kaggle,
        "kaggle.com and the local cache",
        "Check the name (kaggle://owner/model/framework/variation, with /version to use the cache without network), "
        "the connection and the Kaggle credentials.",
    ),
}


def _answered(download: Callable[[], str], server: str) -> str:
    """Runs `download`, however long it takes, as long as the server is there.

    Both clients send their first requests without a time limit, so behind a firewall that drops packets they wait for
    minutes or for ever.

    Raises:
        TimeoutError: if neither the download nor a plain request to the server has come to an end.
    """
    fetching = _background(download)
    if not wait([fetching], _IMPATIENT_AFTER).done:
        probing = _background(lambda: urllib.request.urlopen(server).close())
        if not wait([fetching, probing], _TIMEOUT, FIRST_COMPLETED).done:
            raise TimeoutError(f"{server} has not answered for {_IMPATIENT_AFTER + _TIMEOUT:.0f} seconds.")
    return fetching.result()


def _background(function: Callable[[], Any]) -> Future[Any]:
    """Runs `function` in a thread that does not keep the process alive."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
