"""Puts the table of presets into the page that asks for it."""

from __future__ import annotations

from typing import Any

import lmzoo_script

lmzoo_script.postpone()  # a list of names needs no Keras

from lmzoo.presets.catalog import list_presets  # noqa: E402 - only now

_PLACE = "<!-- table of presets -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs with the text of every page."""
    return markdown.replace(_PLACE, _table()) if _PLACE in markdown else markdown


def _table() -> str:
    lines = ["| name | family | parameters | size | languages | licence | from |", "|---|---|--:|--:|---|---|---|"]
    for name, info in sorted(list_presets().items()):
        size, where = f"{info.size_bytes / 1e6:,.1f} MB", "shipped" if info.shipped else f"`{info.handle}`"
        languages = ", ".join(info.languages)
        lines.append(
            f"| `{name}` | {info.family} | {info.parameters:,} | {size} | {languages} | {info.licence} | {where} |"
        )
    return "\n".join(lines)
