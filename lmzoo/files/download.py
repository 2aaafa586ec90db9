"""Downloads over HTTP that resume after interruptions and verify the file."""

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
from lmzoo.files.manifest import find_mismatch

TIMEOUT = 10.0  # seconds that a server may be silent
_MIN_BYTES_PER_SECOND = 1000  # a server that sends less during the timeout counts as silent
_MAX_REQUESTS = 5  # per file, as long as each request receives some bytes
_BLOCK_BYTES = 1 << 16
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class RemoteFile:
    """A file on a web server.

    Attributes:
        url: str, URL that begins with https://, or with http:// for a server on this machine.
        size: int, size in bytes; None if unknown.
        sha256: str, SHA-256 digest in hexadecimal digits; None if unknown.
    """

    url: str
    size: int | None = None
    sha256: str | None = None


def download(path: Path, file: RemoteFile) -> None:
    """Download and verify a file, continuing an earlier partial download.

    The file `<path>.etag` stores the server's identifier of the file's version, so that a changed file is downloaded
    from the beginning.

    Args:
        path: path to write the file to.
        file: the file to download.

    Raises:
        ValueError: If the URL is not allowed or leads to a web page, or if the download has the wrong size or SHA-256
            digest; a wrong download is deleted.
        OSError: If the server fails, is silent or is too slow; the partial download remains for the next attempt.
    """
    for requests_left in reversed(range(_MAX_REQUESTS)):
        previous_size = _get_file_size(path)
        try:
            _request_file(path, file)
            break
        except ConnectionError:
            if not requests_left or _get_file_size(path) == previous_size:
                raise
    if problem := find_mismatch(path, file.size, file.sha256):
        path.unlink()
        raise ValueError(f"{file.url} is not the expected file: {problem}.")


def _get_file_size(path: Path) -> int:
    """Return the size of a file in bytes, or 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0


def _request_file(path: Path, remote_file: RemoteFile) -> None:
    """Request a file, or the rest of a partial download, and write the response to `path`.

    A download that already has the expected size is not requested again.
    """
    downloaded_bytes = _get_file_size(path)
    etag_file = path.with_name(f"{path.name}.etag")
    if downloaded_bytes and downloaded_bytes == remote_file.size:
        return
    headers = {"User-Agent": "lmzoo", "Accept-Encoding": "identity"}
    etag = etag_file.read_text() if etag_file.exists() else ""
    if downloaded_bytes and (etag or remote_file.sha256):  # without these, a changed file would go unnoticed
        headers |= {"Range": f"bytes={downloaded_bytes}-", **({"If-Range": etag} if etag else {})}
    try:
        with (
            _Session() as session,
            session.get(remote_file.url, headers=headers, stream=True, timeout=TIMEOUT) as response,
        ):
            _write_response(response, path, etag_file, remote_file)
    except (TimeoutError, requests.Timeout, urllib3.exceptions.TimeoutError) as error:
        raise TimeoutError(f"{remote_file.url} has sent next to nothing for {TIMEOUT:.0f} seconds.") from error


def _write_response(response: requests.Response, path: Path, etag_file: Path, remote_file: RemoteFile) -> None:
    """Write the body of a response to `path`, appending to a partial download if the server resumes the download.

    Raises:
        ConnectionError: If the download was cut off, or cannot be resumed.
        TimeoutError: If the server sends too little within the timeout.
        requests.HTTPError: If the response has an error status.
        ValueError: If the response is not the expected file.
    """
    downloaded_bytes = _get_file_size(path)
    is_partial = response.status_code == http.HTTPStatus.PARTIAL_CONTENT
    has_wrong_range = is_partial and not response.headers.get("Content-Range", "").startswith(
        f"bytes {downloaded_bytes}-"
    )
    if has_wrong_range or response.status_code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        path.unlink(missing_ok=True)
        raise ConnectionError(f"{remote_file.url} cannot be resumed after {downloaded_bytes} bytes.")
    response.raise_for_status()
    if response.headers.get("Content-Type", "").startswith("text/html"):
        raise ValueError(f"{response.url} is a web page, not a file.")
    downloaded_bytes = downloaded_bytes if is_partial else 0
    total_bytes = (
        remote_file.size if response.raw.length_remaining is None else downloaded_bytes + response.raw.length_remaining
    )
    if remote_file.size not in (None, total_bytes):
        path.unlink(missing_ok=True)
        raise ValueError(
            f"{remote_file.url} is not the expected file: it has {total_bytes} bytes, not {remote_file.size}."
        )
    with (
        path.open("ab" if is_partial else "wb") as output_file,
        progress_bar(path.name, total_bytes, "bytes") as advance,
    ):
        if not is_partial:
            etag = response.headers.get("ETag", "")
            etag_file.write_text(etag if etag.startswith('"') else "")  # weak tags do not guarantee equal bytes
        advance(downloaded_bytes)
        try:
            for block in _read_blocks(response.raw):
                output_file.write(block)
                advance(len(block))
                downloaded_bytes += len(block)
                if total_bytes is not None and downloaded_bytes > total_bytes:
                    break
        except (urllib3.exceptions.ProtocolError, urllib3.exceptions.SSLError) as error:
            raise ConnectionError(
                f"{remote_file.url} was cut off after {downloaded_bytes} of {total_bytes or '?'} bytes."
            ) from error


class _Session(requests.Session):
    """A session that sends requests, including redirects, only over https:// or to this machine."""

    def get_adapter(self, url: str) -> requests.adapters.BaseAdapter:
        address = urlsplit(url)
        if address.scheme != "https" and (address.scheme != "http" or address.hostname not in _LOCAL_HOSTS):
            raise ValueError(f"{url} is refused: only https:// protects a file from changes on the way.")
        return super().get_adapter(url)


def _read_blocks(body: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Yield the blocks of a response's body.

    Raises:
        TimeoutError: If the server sends too little within the timeout.
    """
    started_at = time.monotonic()
    received_bytes = 0
    while block := body.read1(_BLOCK_BYTES):
        yield block
        received_bytes += len(block)
        if (seconds := time.monotonic() - started_at) >= TIMEOUT:
            if received_bytes < _MIN_BYTES_PER_SECOND * seconds:
                raise TimeoutError
            started_at = time.monotonic()
            received_bytes = 0
