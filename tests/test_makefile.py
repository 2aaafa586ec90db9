"""What `make` refuses before it installs anything, and which tests it leaves out."""

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
    """A folder with the Makefile, whose environment seems to be complete; another one next to it has one, too."""
    for name in ("it", "other"):
        folder = tmp_path / name / "environment"
        (folder / "bin").mkdir(parents=True)
        (folder / "bin/python").write_text("#!/bin/sh\necho ran $0\n")
        (folder / "bin/python").chmod(0o755)
    shutil.copy(root / "Makefile", tmp_path / "it")
    (tmp_path / "it/pyproject.toml").touch()
    return tmp_path / "it"


def make(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # What this run of `make` was given, such as VENV, is not for that one.
    env = {name: value for name, value in os.environ.items() if name != "VENV" and not name.startswith("MAKE")}
    return subprocess.run(["make", *arguments], cwd=checkout, env=env, capture_output=True, text=True, check=False)


@needs_make
def test_an_environment_of_another_checkout_is_refused(checkout: Path) -> None:
    (checkout / ".venv").symlink_to("../other/environment")
    for stamps in ([], [".installed-dev", ".installed-quickstart", ".installed-docs"]):
        for stamp in stamps:
            (checkout / ".venv" / stamp).touch()
        for target in ("install", "quickstart", "docs"):
            done = make(checkout, target)
            assert done.returncode == 2
            assert f".venv is a link to {checkout.parent / 'other/environment'}, outside of this folder" in done.stdout
            assert "ran" not in done.stdout
    assert make(checkout, "help").returncode == 0


@needs_make
@pytest.mark.parametrize("arguments", [[], ["VENV={parent}/other/environment"]], ids=["a link inside", "VENV is given"])
def test_other_environments_are_used(checkout: Path, arguments: list[str]) -> None:
    (checkout / ".venv").symlink_to("environment")
    done = make(checkout, "quickstart", *(part.format(parent=checkout.parent) for part in arguments))
    assert done.returncode == 0, done.stdout
    assert "ran" in done.stdout


@needs_make
def test_a_tenth_is_a_digit(checkout: Path) -> None:
    for tenth in ("12", "x", "-1"):
        done = make(checkout, "help", f"TENTH={tenth}")
        assert done.returncode == 2
        assert f'TENTH must be a digit from 0 to 9, got "{tenth}"' in done.stderr
    for arguments in (["TENTH=9"], []):
        assert make(checkout, "help", *arguments).returncode == 0


def test_the_tenths_are_what_make_test_leaves_out(
    root: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each slow test runs on one day in ten, and each other test on every day."""
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
