"""Progress bars, on a terminal that is a string and with a clock that the tests advance."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from lmzoo.common import progress
from lmzoo.common.progress import progress_bar, progress_over


class Screen(io.StringIO):
    """A terminal with a clock of its own."""

    def __init__(self):
        super().__init__()
        self.time = 100.0
        self.terminal = True

    def console(self, stderr):
        assert stderr
        return Console(file=self, force_terminal=self.terminal, width=120, get_time=lambda: self.time)


@pytest.fixture
def screen(monkeypatch):
    screen = Screen()
    monkeypatch.setattr(progress, "Console", screen.console)
    return screen


def count(screen, times=5, **arguments):
    with progress_bar("Reading", **arguments) as advance:
        for _ in range(times):
            screen.time += 0.5
            advance(1000)
    return screen.getvalue()


def test_a_bar_with_a_total_shows_the_fraction_and_the_speed(screen):
    output = count(screen, total=5000, unit="documents")
    assert "Reading" in output
    assert "5,000 of 5,000 documents, 2,000 documents/s" in output


def test_a_bar_without_a_total_shows_the_count_and_the_speed(screen):
    output = count(screen, unit="tokens")
    assert "5,000 tokens, 2,000 tokens/s" in output
    assert "of" not in output


def test_bytes_are_shown_in_megabytes(screen):
    with progress_bar("weights", 3e6, "bytes") as advance:
        advance(1e6)
        screen.time += 2
        advance(1.5e6)
    assert "2.5 of 3.0 MB, 0.8 MB/s" in screen.getvalue()


def test_no_bar_is_shown_in_the_first_second(screen):
    assert count(screen, times=2, total=5000) == ""
    assert "3,000" in count(screen, times=3, total=5000)


def test_a_bar_is_shown_only_on_a_terminal_and_unless_switched_off(screen):
    screen.terminal = False
    assert count(screen, total=5000) == ""
    screen.terminal = True
    assert count(screen, total=5000, show=False) == ""


def test_a_note_follows_the_bar(screen):
    with progress_bar("Training", 3, "steps") as advance:
        screen.time += 2
        advance(1, "loss [1.5]")
    assert "loss [1.5]" in screen.getvalue()


def test_an_error_restores_the_cursor(screen):
    def fail():
        with progress_bar("Reading", 3) as advance:
            screen.time += 2
            advance(1)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert screen.getvalue().endswith("\x1b[?25h")  # shows the cursor


@pytest.mark.parametrize(("items", "expected"), [(range(7), "7 of 7 files"), (iter(range(7)), "7 files")])
def test_progress_over_yields_every_item(screen, items, expected):
    results = []
    with progress_over(items, "Reading", "files") as counted_items:
        for item in counted_items:
            screen.time += 0.5
            results.append(item)
    assert results == list(range(7))
    assert expected in screen.getvalue()
