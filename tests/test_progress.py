"""The progress bar, on a terminal of strings and a clock that is set by hand."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from lmzoo.common import progress
from lmzoo.common.progress import progress_bar, progress_over


class Screen(io.StringIO):
    """A terminal, and the time there."""

    def __init__(self):
        super().__init__()
        self.time = 100.0
        self.terminal = True

    def console(self, stderr):
        assert stderr
        return Console(file=self, force_terminal=self.terminal, width=120, get_time=lambda: self.time)


@pytest.fixture
def screen(monkeypatch):
    found = Screen()
    monkeypatch.setattr(progress, "Console", found.console)
    return found


def count(screen, times=5, **arguments):
    with progress_bar("Reading", **arguments) as advance:
        for _ in range(times):
            screen.time += 0.5
            advance(1000)
    return screen.getvalue()


def test_a_bar_with_an_end(screen):
    shown = count(screen, total=5000, unit="documents")
    assert "Reading" in shown
    assert "5,000 of 5,000 documents, 2,000 documents/s" in shown


def test_a_bar_without_an_end(screen):
    shown = count(screen, unit="tokens")
    assert "5,000 tokens, 2,000 tokens/s" in shown
    assert "of" not in shown


def test_bytes_are_megabytes(screen):
    with progress_bar("weights", 3e6, "bytes") as advance:
        advance(1e6)
        screen.time += 2
        advance(1.5e6)
    assert "2.5 of 3.0 MB, 0.8 MB/s" in screen.getvalue()


def test_the_first_second_is_quiet(screen):
    assert count(screen, times=2, total=5000) == ""
    assert "3,000" in count(screen, times=3, total=5000)


def test_only_a_terminal_has_a_bar(screen):
    screen.terminal = False
    assert count(screen, total=5000) == ""
    screen.terminal = True
    assert count(screen, total=5000, show=False) == ""


def test_a_note(screen):
    with progress_bar("Training", 3, "steps") as advance:
        screen.time += 2
        advance(1, "loss [1.5]")
    assert "loss [1.5]" in screen.getvalue()


def test_an_error_ends_the_bar(screen):
    def fail():
        with progress_bar("Reading", 3) as advance:
            screen.time += 2
            advance(1)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert screen.getvalue().endswith("\x1b[?25h")  # the cursor is back


@pytest.mark.parametrize(("items", "shown"), [(range(7), "7 of 7 files"), (iter(range(7)), "7 files")])
def test_items(screen, items, shown):
    found = []
    with progress_over(items, "Reading", "files") as counted:
        for item in counted:
            screen.time += 0.5
            found.append(item)
    assert found == list(range(7))
    assert shown in screen.getvalue()
