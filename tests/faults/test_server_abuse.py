"""Malformed requests, made at random: each gets a response or a closed connection, and the server keeps serving.

`tests/serving/test_server.py` checks which response a request gets.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.tf_only

from lmzoo.serving.rest_api import RestApi  # noqa: E402
from lmzoo.serving.server import running_server  # noqa: E402
from tests.faults.mutations import MUTATIONS  # noqa: E402
from tests.memory import memory_grows_less_than  # noqa: E402
from tests.serving.artifacts import write_echo  # noqa: E402

COUNT = 700
PATH = "/v1/models/echo:predict"
ODD: list[Any] = [
    None, True, -1, 2**31, 2**64, 1e400, -0.0, "", "a", "\ud800", "\0", [], {}, [[]], [None], {"b64": "!"},
    {"b64": 7}, {"text": 3}, ["a", 3], [["a"], []], "x" * 3000, [1] * 300, {"inputs": "a"}, "serving_default", "tokens",
]  # fmt: skip


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = write_echo(tmp_path_factory.mktemp("served") / "echo")
    with running_server(RestApi(folder, max_texts=5, max_body_bytes=2000, body_seconds=0.1), idle_seconds=0.1) as url:
        yield url


def request_of(body: bytes, draw: random.Random, method: str = "POST", path: str = PATH) -> bytes:
    lengths = [len(body), len(body), len(body), -1, 0, 10**12, len(body) + 7, "x", ""]
    head = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {draw.choice(lengths)}"]
    return "\r\n".join([*head, "", ""]).encode() + body


def odd_json(draw: random.Random) -> bytes:
    """Return a request with a JSON body in which a value has the wrong type or size."""
    names = ["inputs", "instances", "signature_name", "text", "ids", "", "a" * 100]
    body: Any = {draw.choice(names): draw.choice(ODD) for _ in range(draw.randrange(4))}
    if draw.random() < 0.3:
        body = {draw.choice(names[:2]): {draw.choice(names): body}}
    text = json.dumps(draw.choice([body, draw.choice(ODD), [body]]))
    return request_of(text.replace("Infinity", "1e999").encode(), draw)


def odd_path(draw: random.Random) -> bytes:
    parts = [
        "v1", "models", "echo", "versions", "1", "..", "%2e%2e", "\x7f", "1" * 500, ":predict", "metadata", "", "é",
        "?",
    ]  # fmt: skip
    path = "/" + "/".join(draw.choices(parts, k=draw.randrange(6)))
    method = draw.choice(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "get", "X" * 60])
    return request_of(b'{"inputs": ["a"]}', draw, method, path)


def mutated(draw: random.Random) -> bytes:
    """Return a valid request with some bytes damaged."""
    body = b'{"instances": ["a", "b"]}'
    request = (
        f"POST {PATH} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    return draw.choice(MUTATIONS)(request, draw)


def chunked(draw: random.Random) -> bytes:
    """Return a request with a body in chunks of wrong sizes."""
    sizes = [b"0", b"5", b"-1", b"ffffffffffffffff", b"5;x=y", b"", b"g", b"00000000000000000000000005"]
    chunks = b"".join(draw.choice(sizes) + b"\r\n" + b"12345"[: draw.randrange(6)] + b"\r\n" for _ in range(3))
    return f"POST {PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + chunks


def noise(draw: random.Random) -> bytes:
    return draw.randbytes(draw.choice([1, 100, 5000]))


KINDS: list[Callable[[random.Random], bytes]] = [odd_json, odd_path, mutated, chunked, noise]


def status_of(url: str, request: bytes) -> str:
    """Return the status code of the response, or "" if there is none, as to an incomplete request."""
    with (
        contextlib.suppress(ConnectionError, TimeoutError),
        socket.create_connection(("localhost", int(url[-5:].split(":")[-1]))) as s,
    ):
        s.settimeout(1)
        s.sendall(request)  # keeps the connection open: a client that has closed it gets no response
        return s.recv(4096)[9:12].decode()
    return ""


@pytest.mark.slow
def test_malformed_requests_never_crash_the_server(url: str, caplog: pytest.LogCaptureFixture) -> None:
    draw = random.Random(700)
    statuses = Counter[str]()
    with memory_grows_less_than(100 << 20):
        for number in range(COUNT):
            request = KINDS[number % len(KINDS)](draw)
            status = status_of(url, request)
            assert not status.startswith("5"), request
            statuses[f"{KINDS[number % len(KINDS)].__name__} {status}"] += 1
            if number % 20 == 0:
                with urllib.request.urlopen(f"{url}{PATH}", b'{"inputs": ["a"]}', timeout=30) as response:
                    assert json.load(response)["outputs"]["text"] == ["a"]
    print(dict(statuses))
    assert {status[-3:] for status in statuses} > {"200", "400", "404"}
    assert caplog.records == []
