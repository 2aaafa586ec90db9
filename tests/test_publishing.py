"""Publishing: workflows, release tags, the citation, the list of dependencies, and the page on PyPI."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_scripts_and_pinned_actions_with_few_permissions(path: Path) -> None:
    text = path.read_text("utf-8")
    workflow = yaml.safe_load(text)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert workflow["permissions"] == {}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 180
        assert "read-all" not in str(job["permissions"])
        for step in job["steps"]:
            if "run" in step:
                script, *arguments = step["run"].removeprefix("bash ").split()
                assert (ROOT / script).is_file(), step["run"]
                if script == ".ci/run" and arguments != ['"$TARGET"']:
                    assert {word for word in arguments if "=" not in word} <= targets, step["run"]
            else:
                assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"])
    assert set(re.findall(r"uses: (.+)", text)) == set(re.findall(r"uses: (\S+@\S{40} # v\d+\.\d+\.\d+.*)", text))


def test_each_action_has_one_version() -> None:
    uses = {use for path in WORKFLOWS for use in re.findall(r"uses: (\S+ # v\S+)", path.read_text("utf-8"))}
    assert len({use.partition("@")[0] for use in uses}) == len(uses) > 5


def test_release_targets_exist() -> None:
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text("utf-8"))
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in release["jobs"]["test"]["strategy"]["matrix"]["target"]:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    uploads = [release["jobs"][name] for name in ("testpypi", "pypi")]
    assert [job["permissions"] for job in uploads] == [{"id-token": "write"}] * 2
    assert "secrets." not in str(release)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a directory with the files that `check_tag.sh` reads, ready for version 7.5.3."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/check_tag.sh", tmp_path / ".ci")
    (tmp_path / "lmzoo").mkdir()
    (tmp_path / "lmzoo/version.py").write_text('__version__ = "7.5.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [7.5.3] - 2027-11-13\n")
    (tmp_path / "CITATION.cff").write_text("version: 7.5.3\ndate-released: 2027-11-13\n")
    (tmp_path / "pyproject.toml").write_text("[tool.lmzoo]\non-pypi = true\n")
    (tmp_path / "tests/saved_models/7.5.3").mkdir(parents=True)
    return tmp_path


def check_tag(checkout: Path, tag: str) -> str:
    process = subprocess.run(["bash", checkout / ".ci/check_tag.sh", tag], capture_output=True, text=True, check=False)
    assert (process.returncode == 0) == ("can be released" in process.stdout)
    return process.stdout


def test_a_matching_tag_can_be_released(checkout: Path) -> None:
    assert check_tag(checkout, "v7.5.3") == "v7.5.3 can be released\n"
    assert check_tag(checkout, "7.5.3") == "the tag must be v and a version, got 7.5.3\n"
    assert check_tag(checkout, "v7.5").startswith("lmzoo/version.py: the version is not 7.5")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lmzoo/version.py", '__version__ = "7.5.31"\n'),
        ("CHANGELOG.md", "## [Unreleased]\n"),
        ("CITATION.cff", "version: 7.5.2\ndate-released: 2027-11-13\n"),
        ("CITATION.cff", "version: 7.5.3\n"),
        ("CITATION.cff", "version: 7.5.3\ndate-released: 2027-11-12\n"),  # the changelog has another date
        ("pyproject.toml", "on-pypi = false\n"),
    ],
)
def test_a_tag_that_a_file_contradicts_is_refused(checkout: Path, name: str, text: str) -> None:
    (checkout / name).write_text(text)
    assert check_tag(checkout, "v7.5.3").startswith(f"{name}: ")


def test_a_tag_without_saved_models_is_refused(checkout: Path) -> None:
    (checkout / "tests/saved_models/7.5.3").rmdir()
    assert check_tag(checkout, "v7.5.3").startswith("tests/saved_models/7.5.3 is missing")


def test_the_citation_matches_the_project() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == runpy.run_path(str(ROOT / "lmzoo/version.py"))["__version__"]
    assert citation["license"] == PROJECT["project"]["license"]
    assert citation["repository-code"] == PROJECT["project"]["urls"]["Repository"]


def read_table(page: str, title: str) -> list[list[str]]:
    """Return the cells of each row of the table whose first column has the given title."""
    table = page.partition(f"\n| {title} |")[2].partition("\n\n")[0]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_the_page_lists_all_dependencies() -> None:
    page = (ROOT / "docs/dependencies.md").read_text("utf-8")
    required = dict(re.fullmatch(r"([\w-]+)(.+)", text).groups() for text in PROJECT["project"]["dependencies"])
    rows = read_table(page, "package")
    assert {name: versions for name, versions, *_ in rows} == required
    assert len(rows) == len(required)
    assert all(float(cells[2].replace(",", "")) > 0 and cells[3] and cells[4] for cells in rows)
    extras = {name: packages for name, packages, _ in read_table(page, "extra")}
    documented_extras = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/index.md").read_text("utf-8"), re.MULTILINE)
    assert set(extras) == set(documented_extras)
    for extra, packages in extras.items():
        for requirement in PROJECT["project"]["optional-dependencies"][extra]:
            assert re.match(r"[\w-]+", requirement)[0] in packages


def test_the_switch_for_pypi_selects_the_install_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / ".ci/write_registry.py"))
    command = "\n$ pip install lmzoo\n"
    for switch in ("false", "true"):
        text = re.sub("on-pypi = .*", f"on-pypi = {switch}", (ROOT / "pyproject.toml").read_text("utf-8"))
        (tmp_path / "pyproject.toml").write_text(text, "utf-8")
        monkeypatch.setitem(script["make_install_commands"].__globals__, "ROOT", tmp_path)
        commands = script["make_install_commands"]()
        assert (command in commands) == (switch == "true")
        assert ("git+https://github.com/lmzoo/lmzoo" in commands) == (switch == "false")


def test_the_page_on_pypi_has_no_links_into_the_repository() -> None:
    (rule,) = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]
    readme = re.sub(rule["pattern"], rule["replacement"], (ROOT / "README.md").read_text("utf-8"))
    links = re.findall(r"\]\(([^)]+)\)", readme)
    assert len(links) > 20
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
