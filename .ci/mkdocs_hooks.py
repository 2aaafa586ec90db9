"""Hooks of mkdocs: the table of presets, pages for notebooks, and files of text with the whole site."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

from lmzoo import PresetInfo, list_presets

_PLACEHOLDER = "<!-- table of presets -->"
_COLUMNS = ("name", "family", "parameters", "size", "languages", "license", "source")
_HUBS = {"hf": "https://huggingface.co/", "kaggle": "https://www.kaggle.com/models/"}


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each notebook, which can also be downloaded; mkdocs calls this with all files."""
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            markdown = render_notebook(Path(file.abs_src_path).read_text("utf-8"), PurePosixPath(file.src_uri).name)
            files.append(File.generated(config, file.src_uri.removesuffix("ipynb") + "md", content=markdown))
    return files


def render_notebook(notebook: str, name: str) -> str:
    """Return a notebook as Markdown: its texts, its code and the printed output."""
    parts = []
    for cell in json.loads(notebook)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        printed = "".join("".join(output.get("text", "")) for output in cell["outputs"])
        if printed.strip():
            parts.append(f"```{{.text .printed}}\n{printed.rstrip()}\n```")
    title, _, rest = "\n\n".join(parts).partition("\n")
    return f"{title}\n\n[The notebook, to run it yourself]({name}){{ .notebook download }}\n{rest}"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the placeholder for the table of presets, if any; mkdocs calls this with the text of every page."""
    return markdown.replace(_PLACEHOLDER, render_preset_table()) if _PLACEHOLDER in markdown else markdown


def on_post_build(config: Any, **_: Any) -> None:
    """Write the site's list of pages, and its pages in one file of Markdown, for programs that read text."""
    for name, text in make_text_files(config["nav"], Path(config["docs_dir"]), config["site_description"]).items():
        Path(config["site_dir"], name).write_text(text, "utf-8")


def make_text_files(nav: list[Any], docs: Path, description: str) -> dict[str, str]:
    """Return the content of `llms.txt` (https://llmstxt.org) and of `llms-full.txt`, without the API reference.

    Args:
        nav: `nav` of mkdocs.yml.
        docs: directory of the pages.
        description: description of the site in one sentence.
    """
    lines = ["# lmzoo", "", f"> {description}."]
    pages = []
    for section in nav:
        ((title, entries),) = section.items()
        lines += ["", f"## {title}", ""]
        for name in _list_page_names(entries):
            markdown = _read_page(docs / name)
            address = name.removesuffix("index.md").removesuffix(".md")
            address += "/" if address and not address.endswith("/") else ""
            lines.append(f"- [{markdown.partition(chr(10))[0].removeprefix('# ')}]({address or './'})")
            if not name.startswith("api/"):
                pages.append(on_page_markdown(markdown).rstrip())
    return {"llms.txt": "\n".join(lines) + "\n", "llms-full.txt": "\n\n".join(pages) + "\n"}


def _list_page_names(entry: Any) -> list[str]:
    """Return the file names of the pages in an entry of `nav`, in order."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [name for part in parts for name in _list_page_names(part)]


def _read_page(path: Path) -> str:
    """Return the Markdown of a page, or of the notebook with the same name if there is no such file."""
    if path.is_file():
        return path.read_text("utf-8")
    notebook = path.with_suffix(".ipynb")
    return render_notebook(notebook.read_text("utf-8"), notebook.name)


def render_preset_table() -> str:
    """Return the presets as an HTML table; `docs/assets/presets.js` adds a filter above it."""
    titles = "".join(f"<th>{title}</th>" for title in _COLUMNS)
    shipped_first = sorted(list_presets().values(), key=lambda info: (not info.shipped, info.name))
    rows = "\n".join(f"<tr>{_render_cells(info)}</tr>" for info in shipped_first)
    # No blank lines: they would end the block of HTML.
    table = f'<table class="presets">\n<thead><tr>{titles}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>'
    return f'<div class="presets">\n{table}\n</div>'


def _render_cells(info: PresetInfo) -> str:
    texts = (info.family, _format_millions(info.parameters), f"{info.size_bytes / 1e6:,.0f} MB")
    words = (", ".join(info.languages), info.license)
    cells = [f"<code>{escape(info.name)}</code>", *map(escape, (*texts, *words)), _render_source(info)]
    return "".join(f"<td>{cell}</td>" for cell in cells)


def _format_millions(count: int) -> str:
    return f"{count / 1e6:,.1f}M" if count < 10e6 else f"{count / 1e6:,.0f}M"


def _render_source(info: PresetInfo) -> str:
    """Return the source of the files, with a link if it has a page; it may break after each slash."""
    if info.shipped:
        return "in the package"
    scheme, _, path = info.handle.partition("://")
    text = escape(info.handle).replace("/", "/<wbr>")
    return f'<a href="{escape(_HUBS[scheme] + path)}">{text}</a>' if scheme in _HUBS else text
