"""`make` refuses foreign environments and wrong options before it installs anything, and rotates the slow tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def checkout(root: Path, tmp_path: Path) -> Path:
    """Return a directory with the Makefile and a fake environment, beside another directory with an environment."""
    for name in ("it", "other"):
        folder = tmp_path / name / "environment"
        (folder / "bin").mkdir(parents=True)
        (folder / "bin/python").write_text("#!/bin/sh\necho ran $0\n")
        (folder / "bin/python").chmod(0o755)
    shutil.copy(root / "Makefile", tmp_path / "it")
    (tmp_path / "it/pyproject.toml").touch()
    return tmp_path / "it"


def make(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Options of the `make` that runs the tests, such as VENV, must not reach this one.
    env = {name: value for name, value in os.environ.items() if name != "VENV" and not name.startswith("MAKE")}
    return subprocess.run(["make", *arguments], cwd=checkout, env=env, capture_output=True, text=True, check=False)


@needs_make
def test_an_environment_of_another_checkout_is_refused(checkout: Path) -> None:
    (checkout / ".venv").symlink_to("../other/environment")
    for stamps in ([], [".installed-dev", ".installed-quickstart", ".installed-docs"]):
        for stamp in stamps:
            (checkout / ".venv" / stamp).touch()
        for target in ("install", "quickstart", "docs"):
            process = make(checkout, target)
            assert process.returncode == 2
            assert (
                f".venv is a link to {checkout.parent / 'other/environment'}, outside of this folder" in process.stdout
            )
            assert "ran" not in process.stdout
    assert make(checkout, "help").returncode == 0


@needs_make
@pytest.mark.parametrize("arguments", [[], ["VENV={parent}/other/environment"]], ids=["a link inside", "VENV is given"])
def test_a_link_inside_and_a_given_environment_are_used(checkout: Path, arguments: list[str]) -> None:
    (checkout / ".venv").symlink_to("environment")
    process = make(checkout, "quickstart", *(argument.format(parent=checkout.parent) for argument in arguments))
    assert process.returncode == 0, process.stdout
    assert "ran" in process.stdout


@needs_make
def test_tenth_must_be_a_digit(checkout: Path) -> None:
    for tenth in ("12", "x", "-1"):
        process = make(checkout, "help", f"TENTH={tenth}")
        assert process.returncode == 2
        assert f'TENTH must be a digit from 0 to 9, got "{tenth}"' in process.stderr
    for arguments in (["TENTH=9"], []):
        assert make(checkout, "help", *arguments).returncode == 0


def test_the_tenths_together_hold_every_slow_test_once(
    root: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each slow test runs on one day in ten, and each quick test runs every day."""
    marks = re.search(r"^MARKS \?= (.+)$", (root / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert marks is not None
    pytester.makeini("[pytest]\nmarkers = slow\n    tenth\naddopts = -p no:cacheprovider")
    pytester.makeconftest("from tests.conftest import pytest_addoption, pytest_collection_modifyitems")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("i", range(7))
        def test_quick(i): ...

        @pytest.mark.slow
        @pytest.mark.parametrize("i", range(97))
        def test_slow(i): ...
        """
    )
    runs = []
    for tenth in range(10):
        monkeypatch.setenv("TENTH", str(tenth))
        collected = pytester.inline_run("--collect-only", "--quiet", "-m", marks[1])
        runs.append({item.nodeid for item in collected.getcall("pytest_collection_finish").session.items})
    quick = set.intersection(*runs)
    assert len(quick) == 7
    assert sum(len(run - quick) for run in runs) == len(set.union(*runs) - quick) == 97
