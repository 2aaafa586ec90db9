"""Writer of self-contained HTML pages with a light and a dark mode, usable with the keyboard."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lmzoo.files.atomic import atomic_file

_MAX_BYTES = 2_000_000  # limit per page


def write_page(path: str | Path, title: str, body: str, style: str = "", script: str = "", data: Any = None) -> None:
    """Write a self-contained HTML page.

    Args:
        path: file to write; an existing file is replaced.
        title: title of the page, as plain text.
        body: HTML below the title; its text must already be escaped.
        style: CSS in addition to the style that all pages share.
        script: JavaScript, which can read `data` as the text of the element with id "data".
        data: JSON-serializable data for the script.

    Raises:
        ValueError: If the page would be larger than 2 MB.
    """
    scripts = ""
    if script:
        # `</` or `<!--` would end the script element.
        json_data = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        scripts = (
            f'<script type="application/json" id="data">{json_data}</script>\n'
            f'<script>\n"use strict";{script}</script>\n'
        )
    replacements = {"TITLE": html.escape(title), "STYLE": style, "BODY": body, "SCRIPTS": scripts}
    page = re.sub("TITLE|STYLE|BODY|SCRIPTS", lambda match: replacements[match.group()], _PAGE)
    num_bytes = len(page.encode("utf-8"))
    if num_bytes > _MAX_BYTES:
        raise ValueError(
            f"The page would have {num_bytes / 1e6:.1f} MB, more than a browser shows smoothly: pass fewer or shorter "
            "texts."
        )
    with atomic_file(Path(path)) as temporary_path:
        temporary_path.write_text(page, "utf-8")


def render_table(name: str, titles: Sequence[str], rows: Iterable[str]) -> str:
    """Return an HTML table.

    Args:
        name: accessible name of the table.
        titles: titles of the columns, as plain text.
        rows: cells of each row as HTML.
    """
    head = "".join(f'<th scope="col">{html.escape(title)}</th>' for title in titles)
    body = "".join(f"<tr>{cells}</tr>\n" for cells in rows)
    # A table wider than the page scrolls, and a scrolling element must be reachable with the keyboard.
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{html.escape(name)}"><table><thead><tr>{head}</tr>'
        f"</thead>\n<tbody>{body}</tbody></table></div>\n"
    )


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>TITLE</title>
<style>
:root { color-scheme: light dark; --paper: #fff; --ink: #1a1a1a; --line: #767676; }
:root { --mark: 30, 90, 200; --against: 190, 60, 20; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #161616; --ink: #eee; --mark: 120, 170, 255; --against: 255, 150, 100; }
}
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; margin: 1rem; }
main { max-width: 60rem; margin: auto; }
select, button { font: inherit; color: inherit; background: var(--paper); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
th:first-child, td:first-child, .text { text-align: left; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; min-width: 16rem; }
STYLE</style>
</head>
<body>
<main>
<h1>TITLE</h1>
BODY</main>
SCRIPTS</body>
</html>
"""
