"""Files from web servers: resumed after a cut, verified, and given up when nothing comes."""

from __future__ import annotations

import hashlib
import http.client
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TIMEOUT = 10.0  # seconds that a server may be silent
_SLOWEST = 1000  # bytes a second; a server that sends less for that long counts as silent
_TRIES = 5  # connections for one file, as long as each brings a part of it
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
    """Fetches a file, or what an earlier attempt has left to fetch, and verifies it.

    Args:
        path: where to. `<path>.etag` beside it says which version of the file it is.
        file: where from, and what to expect.

    Raises:
        ValueError: if it is not the file that was expected; what has come of it is deleted.
        OSError, http.client.HTTPException: if the server fails, is silent or too slow; what has come stays.
    """
    for tries_left in reversed(range(_TRIES)):
        before = _size(path)
        try:
            _receive(path, file)
            break
        except (ConnectionError, http.client.IncompleteRead):
            if not tries_left or _size(path) == before:
                raise
    try:
        verify(path, file)
    except ValueError:
        path.unlink()
        raise


def verify(path: Path, file: RemoteFile) -> None:
    """Raises ValueError unless what is at `path` has the size and digest of `file`, as far as they are known."""
    what, found, expected = "size", str(_size(path)), file.size and str(file.size)
    if expected in (None, found) and file.sha256:
        with path.open("rb") as content:
            what, found, expected = "sha256", hashlib.file_digest(content, "sha256").hexdigest(), file.sha256
    if expected not in (None, found):
        raise ValueError(f"{file.url} is not the file that was expected: its {what} is {found}, not {expected}.")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _receive(path: Path, file: RemoteFile) -> None:
    """Sends one request, for the rest of a file that was cut, and writes the answer."""
    have, tag_file = _size(path), path.with_name(f"{path.name}.etag")
    if have and have == file.size:
        return
    headers = {"User-Agent": "lmzoo"}
    tag = tag_file.read_text() if tag_file.exists() else ""
    if have and (tag or file.sha256):  # or else nothing would tell if the file has changed since
        headers |= {"Range": f"bytes={have}-", **({"If-Range": tag} if tag else {})}
    try:
        with _answer(urllib.request.Request(file.url, headers=headers)) as answer:
            _write(answer, path, tag_file, file)
    except (TimeoutError, urllib.error.URLError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                path.unlink(missing_ok=True)
                raise ConnectionError(f"{file.url} does not go on after {have} bytes.") from None
        if isinstance(getattr(error, "reason", error), TimeoutError):
            raise TimeoutError(f"{file.url} has sent next to nothing for {TIMEOUT:.0f} seconds.") from error
        raise


def _write(answer: http.client.HTTPResponse, path: Path, tag_file: Path, file: RemoteFile) -> None:
    have, rest = _size(path), answer.status == http.HTTPStatus.PARTIAL_CONTENT
    if answer.headers.get_content_type() == "text/html":
        raise ValueError(f"{answer.url} is a web page, not a file.")
    if rest and not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
        path.unlink(missing_ok=True)
        raise ConnectionError(f"{file.url} was answered with another part than was asked for.")
    if not rest:
        have = 0
    total = file.size if answer.length is None else have + answer.length
    if file.size not in (None, total):
        path.unlink(missing_ok=True)
        raise ValueError(f"{file.url} is not the file that was expected: it has {total} bytes, not {file.size}.")
    with path.open("ab" if rest else "wb") as out, _progress(path.name, have, total) as show:
        if not rest:
            tag = answer.headers.get("ETag", "")
            tag_file.write_text(tag if tag.startswith('"') else "")  # weak ones do not promise equal bytes
        for block in _blocks(answer):
            out.write(block)
            have += len(block)
            show(have)
            if total is not None and have > total:
                break
    if total is not None and have < total:
        raise ConnectionError(f"{file.url} was cut after {have} of {total} bytes.")


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Any:
        try:
            check_address(newurl)
        except ValueError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def check_address(url: str) -> None:
    """Raises ValueError unless the address is https://, or http:// on this machine."""
    address = urlsplit(url)
    if address.scheme != "https" and (address.scheme != "http" or address.hostname not in _THIS_MACHINE):
        raise ValueError(f"{url} is refused: only https:// keeps others on the way from altering it.")


def _answer(request: urllib.request.Request) -> http.client.HTTPResponse:
    """The headers of the answer; a time limit on sockets covers neither a name server nor headers that trickle in."""
    opener = urllib.request.build_opener(_Redirects)
    answer = background(lambda: opener.open(request, timeout=TIMEOUT))
    if not wait([answer], TIMEOUT).done:
        answer.add_done_callback(lambda late: late.exception() or late.result().close())
        raise TimeoutError
    return answer.result()


def _blocks(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    since, received = time.monotonic(), 0
    while block := answer.read1(_BLOCK):
        yield block
        received += len(block)
        if (passed := time.monotonic() - since) >= TIMEOUT:
            if received < _SLOWEST * passed:
                raise TimeoutError
            since, received = time.monotonic(), 0


@contextmanager
def _progress(name: str, done: int, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal, if there is one; call the function with the number of bytes that are there."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    title, speed, left = TextColumn("{task.description}", markup=False), TransferSpeedColumn(), TimeRemainingColumn()
    columns = (title, BarColumn(), DownloadColumn(), speed, left)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, completed=done, total=total)
        yield lambda done: progress.update(task, completed=done)


def background(function: Callable[[], Any]) -> Future[Any]:
    """Runs `function` in a thread that does not keep the process alive."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
