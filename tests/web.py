"""A local web server whose responses the tests define."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

Answer = Callable[[BaseHTTPRequestHandler], None]


class Web(ThreadingHTTPServer):
    """A server whose responses are in `answers`; each path gives its responses in turn and then repeats the last.

    Attributes:
        answers: Functions that answer a request, by path.
        asked: The requests so far, each as "GET /path" and its headers.
        closing: Event that is set when the test is over, for responses that hang.
    """

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.closing = threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def serve(self, path: str, *answers: Answer) -> str:
        self.answers[path] = list(answers)
        return self.url + path

    @property
    def ranges(self) -> list[str | None]:
        return [headers.get("Range") for _, headers in self.asked]

    def handle_error(self, request, client_address) -> None:
        """Do nothing: some tests hang up on purpose."""


class Handler(BaseHTTPRequestHandler):
    server: Web

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append((f"{self.command} {path}", dict(self.headers)))
        answers = self.server.answers.get(path, [fail(404)])
        (answers.pop(0) if len(answers) > 1 else answers[0])(self)

    do_HEAD = do_POST = do_GET  # noqa: N815

    def log_message(self, *_) -> None:
        pass


def content(
    body: bytes,
    *,
    ranges: bool = True,
    etag: str | None = '"1"',
    stop: int | None = None,
    length: int | None = None,
    **more: str,
) -> Answer:
    """Return a response with a file, or with the requested range of it.

    Args:
        body: Content of the file.
        ranges: Whether the server supports ranges.
        etag: Version of the file.
        stop: Number of bytes after which the server hangs up.
        length: Content length to claim, or -1 for none.
        **more: Further headers, with _ in place of -.
    """

    def answer(request: BaseHTTPRequestHandler) -> None:
        requested_range = request.headers.get("Range")
        condition = request.headers.get("If-Range")
        start = int(requested_range.removeprefix("bytes=").removesuffix("-")) if requested_range and ranges else 0
        if condition not in (None, etag):
            start = 0
        if start >= len(body) > 0:
            fail(416)(request)
            return
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if length != -1:
            request.send_header("Content-Length", str(len(body) - start if length is None else length))
        for name, value in {"ETag": etag, **more}.items():
            if value is not None:
                request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body[start:stop])

    return answer


def fail(status: int, **headers: str) -> Answer:
    """Return a response with an error status or a redirect."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()

    return answer


@pytest.fixture
def web(monkeypatch) -> Iterator[Web]:
    """Run a server; `web.content` and `web.fail` make responses."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Web() as server:
        server.content, server.fail = content, fail
        thread = threading.Thread(target=functools.partial(server.serve_forever, poll_interval=0.02))
        thread.start()
        yield server
        server.closing.set()
        server.shutdown()
        thread.join()
