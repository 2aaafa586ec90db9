"""Downloads from a web server that cuts off, stalls, lies and changes its files."""

from __future__ import annotations

import hashlib
import random
import socket
import time

import pytest

from lmzoo.common import progress
from lmzoo.files import download as module
from lmzoo.files.download import RemoteFile, download

BODY = random.Random(7).randbytes(300_007)
HALF = 150_001
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Return the path of the downloaded file."""
    monkeypatch.setattr(module, "TIMEOUT", 0.3)
    return tmp_path / "weights"


def expected_file(url: str) -> RemoteFile:
    return RemoteFile(url, len(BODY), SHA256)


def test_a_file_is_downloaded(web, path):
    download(path, expected_file(web.serve("/w", web.content(BODY))))
    assert path.read_bytes() == BODY
    assert [request for request, _ in web.asked] == ["GET /w"]


@pytest.mark.parametrize("etag", ['"1"', None])
def test_a_cut_connection_is_resumed(web, path, etag):
    url = web.serve("/w", web.content(BODY, stop=HALF, etag=etag), web.content(BODY, etag=etag))
    download(path, expected_file(url))
    assert path.read_bytes() == BODY
    assert web.ranges == [None, f"bytes={HALF}-"]
    assert web.asked[1][1].get("If-Range") == etag


def test_retries_are_limited_and_bytes_are_kept(web, path):
    stops = [1000 * n for n in range(1, 8)]
    url = web.serve("/w", *(web.content(BODY, stop=stop) for stop in stops))
    with pytest.raises(ConnectionError, match=rf"{url} was cut off after 5000 of {len(BODY)} bytes"):
        download(path, expected_file(url))
    assert web.ranges == [None, *(f"bytes={stop}-" for stop in stops[:4])]
    web.serve("/w", web.content(BODY))
    download(path, expected_file(url))  # from where it stopped
    assert path.read_bytes() == BODY
    assert web.ranges[5:] == ["bytes=5000-"]


def test_a_retry_without_progress_is_the_last(web, path):
    url = web.serve("/w", web.content(BODY, stop=HALF))
    with pytest.raises(ConnectionError, match=f"cut off after {HALF} of"):
        download(path, expected_file(url))
    assert len(web.asked) == 2


def test_a_cut_chunked_response_is_resumed(web, path):
    def chunked(stop):
        def answer(request):
            request.protocol_version = "HTTP/1.1"
            request.send_response(200)
            request.send_header("Transfer-Encoding", "chunked")
            request.send_header("Connection", "close")
            request.send_header("ETag", '"1"')
            request.end_headers()
            request.wfile.write(b"%x\r\n%b" % (len(BODY), BODY[:stop]) + (b"\r\n0\r\n\r\n" if stop is None else b""))

        return answer

    url = web.serve("/w", chunked(HALF), web.content(BODY))
    download(path, RemoteFile(url))
    assert path.read_bytes() == BODY
    assert web.ranges == [None, f"bytes={HALF}-"]
    path.unlink()
    web.serve("/w", chunked(None))
    download(path, RemoteFile(url))
    assert path.read_bytes() == BODY


def test_a_server_may_ignore_ranges(web, path):
    download(path, expected_file(web.serve("/w", web.content(BODY, stop=HALF), web.content(BODY, ranges=False))))
    assert path.read_bytes() == BODY
    assert web.ranges == [None, f"bytes={HALF}-"]


def test_a_changed_file_is_not_spliced(web, path):
    new_body = BODY[::-1]
    url = web.serve("/w", web.content(BODY, stop=HALF), web.content(new_body, etag='"2"'))
    download(path, RemoteFile(url))
    assert path.read_bytes() == new_body
    assert web.asked[1][1]["If-Range"] == '"1"'


@pytest.mark.parametrize("etag", [None, 'W/"1"'])
def test_only_checkable_downloads_are_resumed(web, path, etag):
    url = web.serve("/w", web.content(BODY, stop=HALF, etag=etag), web.content(BODY[::-1], etag=etag))
    download(path, RemoteFile(url, len(BODY)))
    assert path.read_bytes() == BODY[::-1]
    assert web.ranges == [None, None]


def test_the_etag_belongs_to_the_received_bytes(web, path):
    """After a change of the file, a second cut is resumed with the new version."""
    new_body = BODY[::-1]
    url = web.serve(
        "/w",
        web.content(BODY, stop=HALF),
        web.content(new_body, stop=HALF + 1, etag='"2"'),
        web.content(new_body, etag='"2"'),
    )
    download(path, RemoteFile(url))
    assert path.read_bytes() == new_body
    assert web.asked[2][1]["If-Range"] == '"2"'


def test_the_digest_reveals_a_splice(web, path):
    path.write_bytes(BODY[: HALF - 1] + b"?")
    url = web.serve("/w", web.content(BODY, etag=None))
    with pytest.raises(ValueError, match=rf"{url} is not the expected file: .*sha256 is [0-9a-f]{{64}}, not {SHA256}"):
        download(path, expected_file(url))
    assert web.ranges == [f"bytes={HALF}-"]
    assert not path.exists()
    download(path, expected_file(url))
    assert path.read_bytes() == BODY


def test_a_wrong_range_is_discarded(web, path):
    def answer(request):
        request.send_response(206)
        request.send_header("Content-Range", f"bytes 0-{len(BODY) - 1}/{len(BODY)}")
        request.send_header("Content-Length", str(len(BODY)))
        request.end_headers()
        request.wfile.write(BODY)

    download(path, expected_file(web.serve("/w", web.content(BODY, stop=HALF), answer, web.content(BODY))))
    assert path.read_bytes() == BODY
    assert web.ranges == [None, f"bytes={HALF}-", None]


def test_a_file_may_become_shorter(web, path):
    url = web.serve("/w", web.content(BODY, stop=HALF), web.content(BODY[:HALF]))
    download(path, RemoteFile(url))
    assert path.read_bytes() == BODY[:HALF]
    assert web.ranges == [None, f"bytes={HALF}-", None]


def test_a_complete_file_is_not_requested(web, path):
    path.write_bytes(BODY)
    download(path, expected_file(web.serve("/w", web.fail(500))))
    assert web.asked == []


@pytest.mark.parametrize("length", [len(BODY) - 1, len(BODY) + 1, 10**15])
def test_a_wrong_length_is_an_error(web, path, length):
    url = web.serve("/w", web.content(BODY, length=length))
    with pytest.raises(ValueError, match=f"{url} is not the expected file: .*it has {length} bytes, not {len(BODY)}"):
        download(path, expected_file(url))
    assert not path.exists()


def test_a_wrong_length_of_the_rest_is_an_error(web, path):
    path.write_bytes(BODY[:HALF])
    url = web.serve("/w", web.content(BODY + b"?"))
    with pytest.raises(ValueError, match=f"it has {len(BODY) + 1} bytes, not {len(BODY)}"):
        download(path, expected_file(url))
    assert web.ranges == [f"bytes={HALF}-"]
    assert not path.exists()


def test_a_false_length_is_an_error(web, path):
    """The server announces the expected length, but its file has one byte less."""
    url = web.serve("/w", web.content(BODY[:-1], length=len(BODY)), web.content(BODY[:-1]))
    with pytest.raises(ValueError, match=f"it has {len(BODY) - 1} bytes, not {len(BODY)}"):
        download(path, expected_file(url))
    assert web.ranges == [None, f"bytes={len(BODY) - 1}-", None]
    assert not path.exists()
    web.serve("/w", web.content(BODY[:-1], length=len(BODY)))
    with pytest.raises(ConnectionError, match=f"cut off after {len(BODY) - 1} of {len(BODY)} bytes"):
        download(path, expected_file(url))
    assert len(web.asked) == 3 + 5


def test_a_response_may_lack_a_length(web, path):
    download(path, expected_file(web.serve("/w", web.content(BODY, length=-1))))
    assert path.read_bytes() == BODY


def test_an_endless_response_is_an_error(web, path):
    def answer(request):
        request.send_response(200)
        request.end_headers()
        while not web.closing.is_set():
            request.wfile.write(BODY)

    with pytest.raises(ValueError, match=rf"it has \d+ bytes, not {len(BODY)}"):
        download(path, expected_file(web.serve("/w", answer)))
    assert not path.exists()


def test_altered_content_is_an_error(web, path):
    altered = b"?" + BODY[1:]
    url = web.serve("/w", web.content(altered))
    with pytest.raises(ValueError, match=f"sha256 is {hashlib.sha256(altered).hexdigest()}, not {SHA256}"):
        download(path, expected_file(url))
    assert not path.exists()


@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_error_responses_are_not_retried(web, path, status):
    with pytest.raises(OSError, match=f"{status} (Client|Server) Error"):
        download(path, expected_file(web.serve("/w", web.fail(status))))
    assert len(web.asked) == 1
    assert not path.exists()


def test_a_web_page_is_an_error(web, path):
    url = web.serve("/w", web.content(b"<html>Log in", ranges=False, Content_Type="text/html; charset=utf-8"))
    path.write_bytes(BODY[:HALF])
    with pytest.raises(ValueError, match=f"{url} is a web page"):
        download(path, expected_file(url))
    assert path.read_bytes() == BODY[:HALF]


def test_redirects_are_followed(web, path):
    url = web.serve("/w", web.fail(302, Location="/moved"))
    web.serve("/moved", web.fail(307, Location=f"{web.url}/here"))
    web.serve("/here", web.content(BODY, stop=HALF), web.content(BODY))
    download(path, expected_file(url))
    assert path.read_bytes() == BODY
    assert [request for request, _ in web.asked] == ["GET /w", "GET /moved", "GET /here"] * 2
    assert web.ranges[3:] == [f"bytes={HALF}-"] * 3


@pytest.mark.parametrize(
    "target",
    ["http://example.org/w", "http://localhost:80@example.org/w", "//example.org/w", "ftp://127.0.0.1/w", "file:///w"],
)
def test_unsafe_redirects_are_refused(web, path, target):
    with pytest.raises((ValueError, OSError), match="only https://"):
        download(path, expected_file(web.serve("/w", web.fail(302, Location=target))))
    assert not path.exists()


def test_a_file_is_not_decompressed(web, path):
    """The digest is that of the bytes on the server, regardless of the header."""
    download(path, expected_file(web.serve("/w.gz", web.content(BODY, Content_Encoding="gzip"))))
    assert path.read_bytes() == BODY
    assert web.asked[0][1]["Accept-Encoding"] == "identity"


def test_a_refused_connection_is_an_error(path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(OSError, match="refused"):
        download(path, expected_file(f"http://127.0.0.1:{port}/w"))


def silent_after(web, *parts: bytes, pause: float = 10):
    def answer(request):
        for part in parts:
            request.wfile.write(part)
            if web.closing.wait(pause):
                return

    return answer


HEAD = b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n" % len(BODY)


@pytest.mark.slow_cases("at the end")
@pytest.mark.parametrize(
    ("parts", "pause"),
    [
        ([b""], 10),
        ([b"HTTP/1.0 200"], 10),
        ([HEAD, b"\r\n"], 10),
        ([HEAD + b"\r\n" + BODY[:1000]], 10),
        ([HEAD + b"\r\n", *([b"?"] * 100)], 0.05),
        ([HEAD + b"\r\n" + BODY[:HALF], *([b"?"] * 100)], 0.05),
    ],
    ids=["at all", "in the status", "in headers", "in the body", "but for the body", "at the end"],
)
def test_a_silent_server_times_out(web, path, parts, pause):
    url = web.serve("/w", silent_after(web, *parts, pause=pause))
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=f"{url} has sent next to nothing for"):
        download(path, expected_file(url))
    assert time.monotonic() - start < 2
    assert len(web.asked) == 1


def test_a_slow_server_does_not_time_out(web, path):
    """The download takes longer than the limit, but no pause does."""
    step = len(BODY) // 8 + 1
    parts = [BODY[start : start + step] for start in range(0, len(BODY), step)]
    download(path, expected_file(web.serve("/w", silent_after(web, HEAD + b"\r\n", *parts, pause=0.06))))
    assert path.read_bytes() == BODY


def test_progress_is_shown_after_a_delay(web, path, monkeypatch, capsys):
    url = web.serve("/w", web.content(BODY))
    download(path, expected_file(url))
    assert capsys.readouterr() == ("", "")
    path.unlink()
    path = path.with_name("[bold]weights")  # no markup
    monkeypatch.setattr(progress, "_DELAY_SECONDS", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    download(path, expected_file(url))
    out, err = capsys.readouterr()
    assert out == ""
    assert "[bold]weights" in err
    assert "0.3 of 0.3 MB" in err
