"""Downloads over HTTP: resumed after an interruption, verified, and aborted when the server goes silent."""

from __future__ import annotations

import http
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import requests
import urllib3

from lmzoo.common.progress import progress_bar
from lmzoo.files.manifest import mismatch

TIMEOUT = 10.0  # seconds that a server may be silent
_SLOWEST = 1000  # bytes per second; a server that sends less for that long counts as silent
_TRIES = 5  # requests for one file, as long as each of them receives a part
_BLOCK = 1 << 16
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class RemoteFile:
    """A file on a web server.

    Attributes:
        url: https://...; http:// for this machine only.
        size: its length in bytes, if known.
        sha256: its digest as hexadecimal digits, if known.
    """

    url: str
    size: int | None = None
    sha256: str | None = None


def download(path: Path, file: RemoteFile) -> None:
    """Download a file, or the rest that an earlier attempt left, and verify it.

    `<path>.etag` records which version of the file it is.

    Raises:
        ValueError: if it is not the expected file (the download is then deleted), or the address is not allowed.
        OSError: if the server fails, is silent or too slow; the downloaded part is kept for the next attempt.
    """
    for tries_left in reversed(range(_TRIES)):
        before = _size(path)
        try:
            _request(path, file)
            break
        except ConnectionError:
            if not tries_left or _size(path) == before:
                raise
    if problem := mismatch(path, file.size, file.sha256):
        path.unlink()
        raise ValueError(f"{file.url} is not the expected file: {problem}.")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _request(path: Path, file: RemoteFile) -> None:
    """Request the file, or its rest if a part is there, and write the answer."""
    have, tag_file = _size(path), path.with_name(f"{path.name}.etag")
    if have and have == file.size:
        return
    headers = {"User-Agent": "lmzoo", "Accept-Encoding": "identity"}
    tag = tag_file.read_text() if tag_file.exists() else ""
    if have and (tag or file.sha256):  # otherwise nothing would tell that the file has changed since
        headers |= {"Range": f"bytes={have}-", **({"If-Range": tag} if tag else {})}
    try:
        with _Session() as session, session.get(file.url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
            _write(answer, path, tag_file, file)
    except (TimeoutError, requests.Timeout, urllib3.exceptions.TimeoutError) as error:
        raise TimeoutError(f"{file.url} has sent next to nothing for {TIMEOUT:.0f} seconds.") from error


def _write(answer: requests.Response, path: Path, tag_file: Path, file: RemoteFile) -> None:
    have, partial = _size(path), answer.status_code == http.HTTPStatus.PARTIAL_CONTENT
    misplaced = partial and not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
    if misplaced or answer.status_code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        path.unlink(missing_ok=True)
        raise ConnectionError(f"{file.url} cannot be resumed after {have} bytes.")
    answer.raise_for_status()
    if answer.headers.get("Content-Type", "").startswith("text/html"):
        raise ValueError(f"{answer.url} is a web page, not a file.")
    have = have if partial else 0
    total = file.size if answer.raw.length_remaining is None else have + answer.raw.length_remaining
    if file.size not in (None, total):
        path.unlink(missing_ok=True)
        raise ValueError(f"{file.url} is not the expected file: it has {total} bytes, not {file.size}.")
    with path.open("ab" if partial else "wb") as out, progress_bar(path.name, total, "bytes") as advance:
        if not partial:
            tag = answer.headers.get("ETag", "")
            tag_file.write_text(tag if tag.startswith('"') else "")  # weak ones do not promise equal bytes
        advance(have)
        try:
            for block in _blocks(answer.raw):
                out.write(block)
                advance(len(block))
                have += len(block)
                if total is not None and have > total:
                    break
        except (urllib3.exceptions.ProtocolError, urllib3.exceptions.SSLError) as error:
            raise ConnectionError(f"{file.url} was cut off after {have} of {total or '?'} bytes.") from error


class _Session(requests.Session):
    """A session that sends every request, also after a redirect, over https:// or to this machine."""

    def get_adapter(self, url: str) -> requests.adapters.BaseAdapter:
        address = urlsplit(url)
        if address.scheme != "https" and (address.scheme != "http" or address.hostname not in _THIS_MACHINE):
            raise ValueError(f"{url} is refused: only https:// protects a file from changes on the way.")
        return super().get_adapter(url)


def _blocks(body: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    since, received = time.monotonic(), 0
    while block := body.read1(_BLOCK):
        yield block
        received += len(block)
        if (passed := time.monotonic() - since) >= TIMEOUT:
            if received < _SLOWEST * passed:
                raise TimeoutError
            since, received = time.monotonic(), 0
