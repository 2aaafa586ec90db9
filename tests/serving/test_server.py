"""Robustness of the server: endless bodies, clients that leave or wait, many clients, and new versions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.tf_only

from lmzoo.serving import server  # noqa: E402
from lmzoo.serving.rest_api import RestApi  # noqa: E402
from lmzoo.serving.server import listening, running_server  # noqa: E402
from tests.serving.artifacts import write_echo  # noqa: E402

PREDICT = "/v1/models/echo:predict"


@pytest.fixture(scope="session")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_echo(tmp_path_factory.mktemp("served") / "echo")


@pytest.fixture(scope="module")
def api(echo: Path) -> RestApi:
    return RestApi(echo, max_texts=5, max_body_bytes=2000)


@pytest.fixture(scope="module")
def url(api: RestApi):
    with running_server(api) as url:
        yield url


class Client:
    """Client of an application without a network.

    Attributes:
        parts: Number of parts of the body that were received.
    """

    def __init__(self, api: RestApi) -> None:
        self.api, self.parts = api, 0

    def ask(self, path: str, body=None, headers=(), method: str = "", stop_after: int = -1):
        """Return the status and the response to `body`: JSON, or messages of which the last is repeated."""
        if not isinstance(body, list):
            body = [{"type": "http.request", "body": b"" if body is None else json.dumps(body).encode()}]
        return asyncio.run(
            self._ask(path, body, list(headers), method or ("GET" if path[-8:] != ":predict" else "POST"), stop_after)
        )

    async def _ask(self, path, messages, headers, method, stop_after):
        sent, tasks = [], []

        async def receive():
            if self.parts == stop_after:
                tasks[0].cancel()
                await asyncio.sleep(0)
            self.parts += 1
            assert self.parts < 100, "the application never stops receiving"
            message = messages[min(self.parts, len(messages)) - 1]
            if message is None:
                await asyncio.Event().wait()
            return message

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "headers": headers, "query_string": b""}
        tasks.append(asyncio.create_task(self.api(scope, receive, send)))
        await tasks[0]
        body = sent[1]["body"].decode()
        return sent[0]["status"], json.loads(body) if body[:1] == "{" else body


@pytest.fixture
def client(api: RestApi) -> Client:
    return Client(api)


def send_bytes(url: str, *parts: bytes) -> bytes:
    """Send bytes and return everything that the server sends until it closes the connection."""
    with socket.create_connection(("localhost", int(url.rpartition(":")[2])), timeout=60) as connection:
        for part in parts:
            connection.sendall(part)
        return b"".join(iter(lambda: connection.recv(4096), b""))


def make_part(size: int, more: bool = True) -> dict:
    return {"type": "http.request", "body": b"x" * size, "more_body": more}


def test_surrogates_become_replacement_characters(client: Client) -> None:
    body = [
        make_part(0),
        {"type": "http.request", "body": rb'{"inputs": ["a\ud800b", "\ud83d\ude00", "\udc00\ud800"]}'},
    ]
    answer = client.ask(PREDICT, body)[1]["outputs"]
    assert answer == {"text": ["a\ufffdb", "\U0001f600", "\ufffd\ufffd"], "bytes": [5, 4, 6]}


def test_a_long_body_is_refused_by_its_header(client: Client) -> None:
    status, answer = client.ask(PREDICT, [make_part(1)], [(b"content-length", b"2001")])
    assert (status, client.parts) == (413, 0)
    assert answer["error"] == "A body may have 2000 bytes."


def test_an_endless_body_is_refused_while_it_arrives(client: Client) -> None:
    status, answer = client.ask(PREDICT, [make_part(300)], [(b"content-length", b"7")])
    assert (status, client.parts) == (413, 7)
    assert answer["error"] == "A body may have 2000 bytes."


def test_a_body_that_stops_arriving_times_out(echo: Path) -> None:
    status, answer = Client(RestApi(echo, body_seconds=0.01)).ask(PREDICT, [make_part(1), None])
    assert (status, answer["error"]) == (408, "The body did not arrive within 0.01 seconds.")


def test_clients_that_leave_leave_no_traceback(client: Client) -> None:
    assert client.ask(PREDICT, [make_part(1), {"type": "http.disconnect"}])[0] == 499


def test_a_stopping_server_is_unavailable(client: Client) -> None:
    status, answer = client.ask(PREDICT, [make_part(1)], stop_after=1)
    assert (status, answer["error"]) == (503, "The server is stopping.")


def test_the_number_of_texts_is_limited(client: Client) -> None:
    assert client.ask(PREDICT, {"instances": ["a"] * 5})[0] == 200
    status, answer = client.ask(PREDICT, {"instances": ["a"] * 6})
    assert (status, answer["error"]) == (413, "A request may have 5 texts, and `text` has 6: send them in parts.")
    assert client.ask(PREDICT, {"signature_name": "tokens", "inputs": [[1] * 8] * 5})[0] == 200
    assert client.ask(PREDICT, {"signature_name": "tokens", "inputs": [[1] * 8] * 6})[0] == 413


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([[1], [2**32]], "4294967296 is out of range (`ids[1][0]`)"),
        ([[7]], "The model cannot take this: assertion failed"),
        (eval("[" * 90 + "]" * 90), "too many brackets"),
        ([[1], [[2]]], "too many brackets"),
        ([[None]], "unsupported type"),
        ([["1"]], "must be int32"),
        (3, "must have shape"),
    ],
)
def test_wrong_rows_of_ids_are_refused(client: Client, inputs, message: str) -> None:
    status, answer = client.ask(PREDICT, {"signature_name": "tokens", "inputs": inputs})
    assert status == 400
    assert message in answer["error"]


@pytest.mark.parametrize("body", [b"\xff", b"[" * 1900, b"1" * 1900 + b"e", b'{"inputs": ["\\ud8"]}'])
def test_wrong_json_is_refused(client: Client, body: bytes) -> None:
    status, answer = client.ask(PREDICT, [{"type": "http.request", "body": body}])
    assert status == 400
    assert "The body is not JSON" in answer["error"]


@pytest.mark.parametrize("name", [["a"], 3, {"b": 1}])
def test_wrong_signature_names_are_refused(client: Client, name) -> None:
    status, answer = client.ask(PREDICT, {"signature_name": name, "inputs": ["a"]})
    assert status == 400
    assert f"no signature {name!r}" in answer["error"]


def test_a_version_of_many_digits_is_not_found(client: Client) -> None:
    assert client.ask(f"/v1/models/echo/versions/{'1' * 5000}")[0] == 404


def test_the_root_describes_the_api(client: Client) -> None:
    answer = client.ask("/")[1]
    assert answer["model"] == "echo"
    assert answer["versions"] == [1]
    assert answer["signatures"]["serving_default"] == {"inputs": ["text"], "outputs": ["bytes", "text"]}
    assert answer["limits"] == {"texts": 5, "bytes": 2000}
    call = answer["predict"]
    assert client.ask(call["path"], call["body"], method=call["method"])[0] == 200
    for path in answer["see_also"]:
        assert Client(client.api).ask(path)[0] == 200


def test_the_request_to_try_fits_any_name_of_a_model(echo: Path) -> None:
    with running_server(RestApi(echo, name="my échos (1)")) as url:
        path = json.load(urllib.request.urlopen(url))["predict"]["path"]
        assert path == "/v1/models/my%20%C3%A9chos%20%281%29:predict"
        assert json.load(urllib.request.urlopen(url + path, b'{"inputs": ["a"]}'))["outputs"]["text"] == ["a"]


def test_metrics_count_requests_and_seconds(echo: Path) -> None:
    api = RestApi(echo, 'my "echo"')
    path = '/v1/models/my "echo":predict'
    assert [Client(api).ask(path, {"inputs": x})[0] for x in (["a"], ["b"], [3])] == [200, 200, 400]
    lines = Client(api).ask("/metrics")[1].splitlines()
    assert 'lmzoo_requests_total{status="200"} 2' in lines
    assert 'lmzoo_requests_total{status="400"} 1' in lines
    assert 'lmzoo_predict_seconds_bucket{le="+Inf"} 2' in lines
    assert "lmzoo_predict_seconds_count 2" in lines
    assert r'lmzoo_model_version{model="my \"echo\""} 1' in lines
    (seconds,) = (float(line.split()[1]) for line in lines if line.startswith("lmzoo_predict_seconds_sum"))
    assert seconds > 0
    counts = [int(line.split()[1]) for line in lines if line.startswith("lmzoo_predict_seconds_bucket")]
    assert counts == sorted(counts)
    assert len(counts) == 12


def test_versions_are_loaded_and_unloaded(echo: Path, tmp_path: Path) -> None:
    folder = tmp_path / "echo"
    shutil.copytree(echo / "1", folder / "1")
    api = RestApi(folder)
    shutil.copytree(echo / "1", folder / ".3.ab12.tmp")
    (folder / "2").mkdir()
    whole = (echo / "1" / "saved_model.pb").read_bytes()
    (folder / "2" / "saved_model.pb").write_bytes(whole[: len(whole) // 2])
    with pytest.warns(UserWarning, match=r"echo/2 cannot be loaded"):
        api.versions.refresh()
    api.versions.refresh()  # without a second warning
    assert list(api.versions.loaded) == [1]
    shutil.copytree(echo / "1", folder / "2", dirs_exist_ok=True)
    (folder / ".3.ab12.tmp").rename(folder / "3")
    api.versions.refresh()
    assert sorted(api.versions.loaded) == [1, 2, 3]
    assert api.versions.get() is api.versions.get(3)
    for version in "123":
        shutil.rmtree(folder / version)
        api.versions.refresh()
    assert list(api.versions.loaded) == [3]  # the last version stays


def test_the_server_polls_for_new_versions(echo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api, refreshed = RestApi(echo, poll_seconds=0.001), threading.Semaphore(0)

    def refresh():
        refreshed.release()
        raise FileNotFoundError("a file that went")

    monkeypatch.setattr(api.versions, "refresh", refresh)
    with running_server(api):
        assert all(refreshed.acquire(timeout=60) for _ in range(2))


def test_many_clients_are_served_at_once(echo: Path, url: str) -> None:
    with listening() as listener:
        waiting = [socket.create_connection(listener.getsockname(), timeout=5) for _ in range(64)]
        for connection in waiting:
            connection.close()
    start = threading.Barrier(64)

    def ask(number: int):
        start.wait()
        body = json.dumps({"inputs": [str(number)]}).encode()
        with urllib.request.urlopen(f"{url}{PREDICT}", body, timeout=60) as answer:
            return json.load(answer)["outputs"]["text"]

    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(ask, range(64))) == [[str(number)] for number in range(64)]


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/models/echo:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 3000\r\n\r\n{",
    ],
)
def test_idle_connections_are_closed(api: RestApi, request_: bytes) -> None:
    with running_server(api, idle_seconds=0.01) as url:
        send_bytes(url, request_)


def test_a_request_that_trickles_in_times_out(api: RestApi) -> None:
    """Each byte alone arrives in time."""
    with running_server(api, idle_seconds=0.1) as url:
        connection = socket.create_connection(("localhost", int(url.rpartition(":")[2])), timeout=60)

        def trickle() -> None:
            for _ in range(100):
                connection.sendall(b"G")
                time.sleep(0.02)

        with connection, pytest.raises(ConnectionError):
            trickle()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 100_000,
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000,
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: a\r\n" * 20_000,
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"a" * 100_000,
    ],
    ids=range(7),
)
def test_wrong_http_is_refused(url: str, head: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.suppress(ConnectionError):  # the server may close the connection before it has read everything
        assert b"400 Bad Request" in send_bytes(url, head)
    assert caplog.records == []


def test_wrong_http_after_a_response_closes_the_connection(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_connection(("localhost", int(url.rpartition(":")[2])), timeout=60) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 405")
        connection.sendall(b"-1\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"HTTP" not in b"".join(iter(lambda: connection.recv(4096), b""))
    assert caplog.records == []


def test_responses_do_not_wait_for_acknowledgements(api: RestApi, monkeypatch: pytest.MonkeyPatch) -> None:
    options = []

    def record_option(protocol: object, data: bytes, receive: object = server._Protocol.data_received) -> None:
        options.append(protocol.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        receive(protocol, data)

    monkeypatch.setattr(server._Protocol, "data_received", record_option)
    with running_server(api) as url:
        urllib.request.urlopen(url).close()
    assert options
    assert all(options)


@pytest.mark.slow
def test_the_command_serves_until_interrupted(echo: Path) -> None:
    command = [sys.executable, "-m", "lmzoo_cli", "serve", str(echo), "--port", "0", "--max-texts", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        match = None
        while match is None:
            match = re.match(r"(http://localhost:\d+) answers, versions 1; Ctrl-C stops it.", process.stderr.readline())
        url = f"{match[1]}{PREDICT}"
        assert process.stderr.readline() == f'Try: curl -d \'{{"instances": ["Some text."]}}\' {url}\n'
        with urllib.request.urlopen(url, b'{"inputs": ["a"]}') as answer:
            assert json.load(answer)["outputs"]["text"] == ["a"]
        with pytest.raises(urllib.error.HTTPError, match="413"):
            urllib.request.urlopen(url, b'{"inputs": ["a", "b"]}')
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "stopped\n"
    assert process.returncode == 0


def test_clients_that_hang_up_are_not_logged(url: str, caplog: pytest.LogCaptureFixture) -> None:
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n".encode()
    for sent in (head, head + b"{", head + b'{"inputs": ["a"]}   '):
        with socket.create_connection(("localhost", int(url.rpartition(":")[2]))) as connection:
            connection.sendall(sent)
    urllib.request.urlopen(url).close()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
