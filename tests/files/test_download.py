"""Files from web servers, against a real one that cuts, stalls, lies and changes its mind."""

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
    """Where the file goes."""
    monkeypatch.setattr(module, "TIMEOUT", 0.3)
    return tmp_path / "weights"


def known(url: str) -> RemoteFile:
    return RemoteFile(url, len(BODY), SHA256)


def test_a_file(web, path):
    download(path, known(web.serve("/w", web.content(BODY))))
    assert path.read_bytes() == BODY
    assert [request for request, _ in web.asked] == ["GET /w"]


@pytest.mark.parametrize("etag", ['"1"', None])
def test_a_cut_is_mended_at_once(web, path, etag):
    url = web.serve("/w", web.content(BODY, stop=HALF, etag=etag), web.content(BODY, etag=etag))
    download(path, known(url))
    assert path.read_bytes() == BODY
    assert web.ranges == [None, f"bytes={HALF}-"]
    assert web.asked[1][1].get("If-Range") == etag


def test_a_cut_without_end(web, path):
    stops = [1000 * n for n in range(1, 8)]
    url = web.serve("/w", *(web.content(BODY, stop=stop) for stop in stops))
    with pytest.raises(ConnectionError, match=rf"{url} was cut off after 5000 of {len(BODY)} bytes"):
        download(path, known(url))
    assert web.ranges == [None, *(f"bytes={stop}-" for stop in stops[:4])]
    web.serve("/w", web.content(BODY))
    download(path, known(url))  # and what was there is not fetched again
    assert path.read_bytes() == BODY
    assert web.ranges[5:] == ["bytes=5000-"]


def test_nothing_more_comes(web, path):
    url = web.serve("/w", web.content(BODY, stop=HALF))
    with pytest.raises(ConnectionError, match=f"cut off after {HALF} of"):
        download(path, known(url))
    assert len(web.asked) == 2


def test_a_chunked_answer_that_is_cut(web, path):
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


def test_a_server_without_ranges(web, path):
    download(path, known(web.serve("/w", web.content(BODY, stop=HALF), web.content(BODY, ranges=False))))
    assert path.read_bytes() == BODY
    assert web.ranges == [None, f"bytes={HALF}-"]


def test_a_file_that_changed_meanwhile_is_not_spliced(web, path):
    other = BODY[::-1]
    url = web.serve("/w", web.content(BODY, stop=HALF), web.content(other, etag='"2"'))
    download(path, RemoteFile(url))
    assert path.read_bytes() == other
    assert web.asked[1][1]["If-Range"] == '"1"'


@pytest.mark.parametrize("etag", [None, 'W/"1"'])
def test_nothing_is_resumed_that_cannot_be_checked(web, path, etag):
    url = web.serve("/w", web.content(BODY, stop=HALF, etag=etag), web.content(BODY[::-1], etag=etag))
    download(path, RemoteFile(url, len(BODY)))
    assert path.read_bytes() == BODY[::-1]
    assert web.ranges == [None, None]


def test_the_version_is_that_of_the_bytes(web, path):
    """A second cut, after the file has changed: it goes on with the new one."""
    other = BODY[::-1]
    url = web.serve(
        "/w",
        web.content(BODY, stop=HALF),
        web.content(other, stop=HALF + 1, etag='"2"'),
        web.content(other, etag='"2"'),
    )
    download(path, RemoteFile(url))
    assert path.read_bytes() == other
    assert web.asked[2][1]["If-Range"] == '"2"'


def test_a_splice_is_found_by_its_digest(web, path):
    path.write_bytes(BODY[: HALF - 1] + b"?")
    url = web.serve("/w", web.content(BODY, etag=None))
    with pytest.raises(ValueError, match=rf"{url} is not the expected file: .*sha256 is [0-9a-f]{{64}}, not {SHA256}"):
        download(path, known(url))
    assert web.ranges == [f"bytes={HALF}-"]
    assert not path.exists()
    download(path, known(url))
    assert path.read_bytes() == BODY


def test_another_part_than_asked_for(web, path):
    def answer(request):
        request.send_response(206)
        request.send_header("Content-Range", f"bytes 0-{len(BODY) - 1}/{len(BODY)}")
        request.send_header("Content-Length", str(len(BODY)))
        request.end_headers()
        request.wfile.write(BODY)

    download(path, known(web.serve("/w", web.content(BODY, stop=HALF), answer, web.content(BODY))))
    assert path.read_bytes() == BODY
    assert web.ranges == [None, f"bytes={HALF}-", None]


def test_a_file_that_became_shorter(web, path):
    url = web.serve("/w", web.content(BODY, stop=HALF), web.content(BODY[:HALF]))
    download(path, RemoteFile(url))
    assert path.read_bytes() == BODY[:HALF]
    assert web.ranges == [None, f"bytes={HALF}-", None]


def test_what_is_complete_is_not_asked_for(web, path):
    path.write_bytes(BODY)
    download(path, known(web.serve("/w", web.fail(500))))
    assert web.asked == []


@pytest.mark.parametrize("length", [len(BODY) - 1, len(BODY) + 1, 10**15])
def test_a_wrong_length(web, path, length):
    url = web.serve("/w", web.content(BODY, length=length))
    with pytest.raises(ValueError, match=f"{url} is not the expected file: .*it has {length} bytes, not {len(BODY)}"):
        download(path, known(url))
    assert not path.exists()


def test_a_wrong_length_of_the_rest(web, path):
    path.write_bytes(BODY[:HALF])
    url = web.serve("/w", web.content(BODY + b"?"))
    with pytest.raises(ValueError, match=f"it has {len(BODY) + 1} bytes, not {len(BODY)}"):
        download(path, known(url))
    assert web.ranges == [f"bytes={HALF}-"]
    assert not path.exists()


def test_a_length_that_lies(web, path):
    """The server announces the expected number of bytes, but its file has one less."""
    url = web.serve("/w", web.content(BODY[:-1], length=len(BODY)), web.content(BODY[:-1]))
    with pytest.raises(ValueError, match=f"it has {len(BODY) - 1} bytes, not {len(BODY)}"):
        download(path, known(url))
    assert web.ranges == [None, f"bytes={len(BODY) - 1}-", None]
    assert not path.exists()
    web.serve("/w", web.content(BODY[:-1], length=len(BODY)))
    with pytest.raises(ConnectionError, match=f"cut off after {len(BODY) - 1} of {len(BODY)} bytes"):
        download(path, known(url))
    assert len(web.asked) == 3 + 5


def test_no_length(web, path):
    download(path, known(web.serve("/w", web.content(BODY, length=-1))))
    assert path.read_bytes() == BODY


def test_a_stream_without_end(web, path):
    def answer(request):
        request.send_response(200)
        request.end_headers()
        while not web.closing.is_set():
            request.wfile.write(BODY)

    with pytest.raises(ValueError, match=rf"it has \d+ bytes, not {len(BODY)}"):
        download(path, known(web.serve("/w", answer)))
    assert not path.exists()


def test_altered_content(web, path):
    altered = b"?" + BODY[1:]
    url = web.serve("/w", web.content(altered))
    with pytest.raises(ValueError, match=f"sha256 is {hashlib.sha256(altered).hexdigest()}, not {SHA256}"):
        download(path, known(url))
    assert not path.exists()


@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_errors(web, path, status):
    with pytest.raises(OSError, match=f"{status} (Client|Server) Error"):
        download(path, known(web.serve("/w", web.fail(status))))
    assert len(web.asked) == 1
    assert not path.exists()


def test_a_web_page(web, path):
    url = web.serve("/w", web.content(b"<html>Log in", ranges=False, Content_Type="text/html; charset=utf-8"))
    path.write_bytes(BODY[:HALF])
    with pytest.raises(ValueError, match=f"{url} is a web page"):
        download(path, known(url))
    assert path.read_bytes() == BODY[:HALF]


def test_redirects(web, path):
    url = web.serve("/w", web.fail(302, Location="/moved"))
    web.serve("/moved", web.fail(307, Location=f"{web.url}/here"))
    web.serve("/here", web.content(BODY, stop=HALF), web.content(BODY))
    download(path, known(url))
    assert path.read_bytes() == BODY
    assert [request for request, _ in web.asked] == ["GET /w", "GET /moved", "GET /here"] * 2
    assert web.ranges[3:] == [f"bytes={HALF}-"] * 3


@pytest.mark.parametrize(
    "target",
    ["http://example.org/w", "http://localhost:80@example.org/w", "//example.org/w", "ftp://127.0.0.1/w", "file:///w"],
)
def test_redirects_that_are_refused(web, path, target):
    with pytest.raises((ValueError, OSError), match="only https://"):
        download(path, known(web.serve("/w", web.fail(302, Location=target))))
    assert not path.exists()


def test_a_file_is_not_decompressed(web, path):
    """Its digest is that of the bytes on the server, whatever the server says of them."""
    download(path, known(web.serve("/w.gz", web.content(BODY, Content_Encoding="gzip"))))
    assert path.read_bytes() == BODY
    assert web.asked[0][1]["Accept-Encoding"] == "identity"


def test_nobody_is_there(path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(OSError, match="refused"):
        download(path, known(f"http://127.0.0.1:{port}/w"))


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
def test_silence(web, path, parts, pause):
    url = web.serve("/w", silent_after(web, *parts, pause=pause))
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=f"{url} has sent next to nothing for"):
        download(path, known(url))
    assert time.monotonic() - start < 2
    assert len(web.asked) == 1


def test_slow_is_not_silent(web, path):
    """Longer than the limit altogether, but never quiet for so long."""
    step = len(BODY) // 8 + 1
    parts = [BODY[start : start + step] for start in range(0, len(BODY), step)]
    download(path, known(web.serve("/w", silent_after(web, HEAD + b"\r\n", *parts, pause=0.06))))
    assert path.read_bytes() == BODY


def test_progress(web, path, monkeypatch, capsys):
    url = web.serve("/w", web.content(BODY))
    download(path, known(url))
    assert capsys.readouterr() == ("", "")
    path.unlink()
    path = path.with_name("[bold]weights")  # no markup
    monkeypatch.setattr(progress, "_DELAY_SECONDS", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    download(path, known(url))
    out, err = capsys.readouterr()
    assert out == ""
    assert "[bold]weights" in err
    assert "0.3 of 0.3 MB" in err
