"""The site: its table of presets, notebooks, text version, links, pictures and API pages."""

from __future__ import annotations

import json
import re
import runpy
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

import lmzoo
from lmzoo.families.transformer import TransformerBackbone
from lmzoo.testing.tiny import public_tasks

ROOT = Path(__file__).resolve().parents[1]


class _Table(HTMLParser):
    """The cells of each row of a table, and the addresses of all links."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.links: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "a":
            self.links.append(dict(attributes)["href"])

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip()


def test_the_page_of_presets_holds_all_of_them_in_one_table(monkeypatch):
    monkeypatch.delenv("LMZOO_PRESETS", raising=False)
    hooks = runpy.run_path(str(ROOT / ".ci/mkdocs_hooks.py"))
    page = hooks["on_page_markdown"]((ROOT / "docs/published.md").read_text("utf-8"))
    html = page[page.index("<div") : page.index("</div>")]
    assert "\n\n" not in html, "a blank line ends the block of HTML"
    titles, *rows = _Table(html).rows
    presets = lmzoo.list_presets()
    assert {row[0] for row in rows} == set(presets)
    assert {len(row) for row in rows} == {len(titles)}
    by_name = {row[0]: dict(zip(titles, row, strict=True)) for row in rows}
    base = by_name["bert_base_en_uncased"]
    assert base == {**base, "family": "bert", "parameters": "109M", "license": "Apache-2.0"}
    assert base["source"] == presets["bert_base_en_uncased"].handle == "hf://google-bert/bert-base-uncased"
    assert by_name["bert_nano_en_uncased"]["source"] == "in the package"
    assert "https://huggingface.co/google-bert/bert-base-uncased" in _Table(html).links


def test_notebooks_become_pages():
    hooks = runpy.run_path(str(ROOT / ".ci/mkdocs_hooks.py"))
    printed = {"output_type": "stream", "name": "stdout", "text": ["one\n", "two\n"]}
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "\n", "A text."]},
        {"cell_type": "code", "source": ["print(1)\n", "print(2)"], "outputs": [printed]},
        {"cell_type": "code", "source": ["x = 1"], "outputs": []},
    ]
    assert hooks["render_notebook"](json.dumps({"cells": cells}), "a.ipynb").split("\n\n") == [
        "# Title",
        "[The notebook, to run it yourself](a.ipynb){ .notebook download }",
        "A text.",
        "```python\nprint(1)\nprint(2)\n```",
        "```{.text .printed}\none\ntwo\n```",
        "```python\nx = 1\n```",
    ]


def test_text_files_hold_the_pages_in_order_without_the_api(tmp_path):
    hooks = runpy.run_path(str(ROOT / ".ci/mkdocs_hooks.py"))
    pages = {"index.md": "# Start\n\none", "guides/tag.md": "# Tag\n\ntwo", "api/tasks.md": "# API\n\n::: three"}
    for name, text in pages.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    notebook = {"cells": [{"cell_type": "markdown", "source": ["# Notebook\n", "four"]}]}
    (tmp_path / "book.ipynb").write_text(json.dumps(notebook), "utf-8")
    first_part = [{"Home": "index.md"}, {"More": [{"Tag": "guides/tag.md"}]}]
    nav = [{"First": first_part}, {"Rest": ["api/tasks.md", "book.md"]}]
    files = hooks["make_text_files"](nav, tmp_path, "A zoo")
    assert files["llms.txt"].splitlines() == [
        *("# lmzoo", "", "> A zoo.", "", "## First", "", "- [Start](./)", "- [Tag](guides/tag/)"),
        *("", "## Rest", "", "- [API](api/tasks/)", "- [Notebook](book/)"),
    ]
    assert re.findall("one|two|three|four", files["llms-full.txt"]) == ["one", "two", "four"]


def test_text_files_hold_every_page():
    hooks = runpy.run_path(str(ROOT / ".ci/mkdocs_hooks.py"))
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    files = hooks["make_text_files"](nav, ROOT / "docs", "A zoo")
    assert files["llms.txt"].count("\n- [") == len(list((ROOT / "docs").rglob("*.md"))) + 6  # notebooks
    assert '<table class="presets">' in files["llms-full.txt"]


@pytest.mark.parametrize(
    ("word", "page"), [("NER", "tag"), ("sentiment", "classify"), ("embedding", "embed"), ("CSV", "classify")]
)
def test_search_finds_the_guide(word, page):
    """The search matches whole words, so the introduction of a guide must hold the words that users look for."""
    assert re.search(rf"\b{word}\b", (ROOT / f"docs/guides/{page}.md").read_text("utf-8").partition("\n## ")[0])


def test_broken_links_are_found(tmp_path):
    script = runpy.run_path(str(ROOT / ".ci/check_site.py"))
    (tmp_path / "part").mkdir()
    (tmp_path / "part/index.html").write_text('<h1 id="here"></h1><a href="../">up</a>', "utf-8")
    good = '<a href="part/#here"></a><a href="part/"></a><a href="https://lmzoo.org/x"></a><img src="a%20b.svg">'
    (tmp_path / "a b.svg").touch()
    (tmp_path / "index.html").write_text(good, "utf-8")
    assert script["find_broken_links"](tmp_path) == []
    (tmp_path / "index.html").write_text(good + '<a href="part/#there"></a><a href="none/"></a>', "utf-8")
    assert script["find_broken_links"](tmp_path) == [
        "index.html: the link none/ leads nowhere",
        "index.html: the link part/#there leads nowhere",
    ]


def _hidden(name: str) -> bool:
    """Return whether API pages leave out a member that they do not list."""
    (python,) = (
        plugin["mkdocstrings"]["handlers"]["python"]["options"]
        for plugin in yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["plugins"]
        if "mkdocstrings" in plugin
    )
    return any(re.search(pattern.removeprefix("!"), name) for pattern in python["filters"])


@pytest.mark.parametrize("task", [lmzoo.models.Task, *public_tasks()])
def test_api_pages_show_what_users_call(task):
    user_methods = {
        "fit" if task.answers is lmzoo.models.Task.answers else task.answers.__name__,
        "from_preset",
        "fit",
        "evaluate",
        "predict",
        "save",
        "export",
        "save_to_preset",
    }
    assert not any(map(_hidden, user_methods))
    assert all(map(_hidden, ("default_loss", "encode_labels", "make_batch", "serve", "signatures", "get_config")))


def test_the_page_for_extensions_lists_the_hidden_members():
    page = (ROOT / "docs/api/internals/extending.md").read_text("utf-8")
    listed = set(re.findall(r"^ {8}- (\w+)$", page, re.MULTILINE))
    documented = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert {"head_kind", "default_loss", "serve", "commands"} <= documented  # one row of each table
    assert {name for name in documented if _hidden(name)} <= listed
    members = {*dir(lmzoo.models.Task), *dir(TransformerBackbone)}
    assert listed <= members


@pytest.mark.parametrize("script", ["write_registry.py", "write_public_names.py"])
def test_generated_files_are_up_to_date(script):
    """`make registry` writes `lmzoo/models.py`, the tables of families and tasks in pages, and the public names."""
    for name, text in runpy.run_path(str(ROOT / ".ci" / script))["written_files"]().items():
        assert (ROOT / name).read_text("utf-8") == text, f"{name} is not up to date: run `make registry`"


def test_pages_load_nothing_from_other_sites():
    """The theme's default link to the repository would ask api.github.com for the number of stars."""
    assert "data-md-component" not in (ROOT / ".ci/mkdocs_theme/partials/source.html").read_text("utf-8")


def test_every_picture_is_drawn_by_code(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "examples")
    code = runpy.run_path(str(ROOT / "examples/pictures.py"))
    gallery = (ROOT / "docs/gallery.md").read_text("utf-8")
    drawn_elsewhere = {"data_flow", "translate", "language_models"}  # by hand, or by benchmarks
    assert {path.stem for path in (ROOT / "docs/assets").glob("*.svg")} == {*code["PICTURES"], *drawn_elsewhere}
    assert {name for name in code["PICTURES"] if f"](assets/{name}.svg)" not in gallery} == set()
    code["main"](["--only", "road", "permutation", "--output", str(tmp_path)])
    for name, word in (("road", "Marian"), ("permutation", "harbour")):
        assert f"<!-- {word} -->" in (tmp_path / f"{name}.svg").read_text("utf-8")
    with pytest.raises(SystemExit):
        code["main"](["--only", "tag"])
