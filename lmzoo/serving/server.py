"""A uvicorn server for `RestApi`, in the foreground for `lmzoo serve` or in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

try:
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from lmzoo.serving.rest_api import RestApi
except ModuleNotFoundError as error:
    raise ImportError(f"Serving needs {error.name}: pip install 'lmzoo[serve]'.") from error

_BACKLOG = 1024  # number of clients that may wait for a connection


class _Protocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with three improvements.

    Connections with an incomplete request time out; the time runs from the first byte of the request. A malformed body
    gets at most one response. A response body is sent without waiting for the client to acknowledge the headers; the
    wait would take 40 ms on persistent connections, and asyncio prevents it only for sockets that it creates itself.
    """

    _first_byte = 0.0  # time at which the next request began to arrive; 0 until then

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._start_request_timeout()

    def data_received(self, data: bytes) -> None:
        self._first_byte = self._first_byte or self.loop.time()
        super().data_received(data)
        self._start_request_timeout()

    def on_response_complete(self) -> None:
        self._first_byte = 0.0
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None:
            self.cycle.disconnected = True  # so that the application's response is not sent as well
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _start_request_timeout(self) -> None:
        """Start the timeout for the next request, unless a request is being answered or a timeout is running."""
        if (self.cycle is None or self.cycle.response_complete) and self.timeout_keep_alive_task is None:
            deadline = (self._first_byte or self.loop.time()) + self.timeout_keep_alive
            self.timeout_keep_alive_task = self.loop.call_at(deadline, self.timeout_keep_alive_handler)


@contextlib.contextmanager
def listening(host: str = "localhost", port: int = 0) -> Iterator[socket.socket]:
    """Yield a socket to which clients can connect before a server runs.

    Args:
        host: str, address to listen at; other machines cannot reach the default.
        port: int, port to listen at; 0 for any free port.

    Raises:
        OSError: If the socket cannot listen, for example because the port is in use.
    """
    try:
        listener = socket.create_server((host, port), backlog=_BACKLOG)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]
        raise OSError(f"Cannot listen at {host}, port {port}: {reason}. Choose another port.") from None
    with listener:
        yield listener


def make_server(api: RestApi, idle_seconds: float = 10.0) -> uvicorn.Server:
    """Return a uvicorn server that logs only errors, and closes idle connections after `idle_seconds`."""
    return uvicorn.Server(
        uvicorn.Config(
            api,
            loop="asyncio",
            http=_Protocol,
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="error",
            access_log=False,
            backlog=_BACKLOG,
            timeout_keep_alive=idle_seconds,  # type: ignore[arg-type]
            timeout_graceful_shutdown=5,
        )
    )


def serve(api: RestApi, listener: socket.socket) -> None:
    """Serve requests on a socket until Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt):
        make_server(api).run([listener])


@contextlib.contextmanager
def running_server(api: RestApi, idle_seconds: float = 10.0) -> Iterator[str]:
    """Serve requests in a thread while the block runs; close idle connections after `idle_seconds`.

    Yields:
        The URL of the server, without a trailing slash.

    Example:

    ```python
    import json, urllib.request
    import lmzoo
    from lmzoo.serving.rest_api import RestApi
    from lmzoo.serving.server import running_server

    lmzoo.models.MaskedLM.from_preset("bert_nano_en_uncased").export("serving/words/1", verbose=False)
    with running_server(RestApi("serving/words")) as url:
        body = json.dumps({"inputs": {"text": ["She opened the [MASK]."]}}).encode()
        answer = json.load(urllib.request.urlopen(f"{url}/v1/models/words:predict", body))
    answer["outputs"]["token"]  # [[[..., ..., ..., ..., ...]]]
    ```
    """
    with listening() as listener:
        server = make_server(api, idle_seconds)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield f"http://localhost:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
