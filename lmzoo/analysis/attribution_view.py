"""Contributions to answers as a page to look at."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lmzoo.analysis.explained import Attribution
from lmzoo.analysis.page import table, write_page


def write_attributions(path: str | Path, found: Sequence[Attribution], title: str = "Contributions") -> None:
    """Write a page that highlights, in each text, what speaks for the answer and what speaks against it.

    The page is one file: it needs no network, and works with the keyboard, in light and dark. The strongest color of a
    text is its largest contribution; what speaks against the answer is underlined, too.

    Args:
        path: the file to write; an existing one is replaced.
        found: what `integrated_gradients` or `leave_out` returned.
        title: of the page.

    Raises:
        ValueError: if there are no texts, or the page would be larger than 2 MB.

    Example:

    ```python
    import lmzoo

    task = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", labels=["bad", "good"])
    found = lmzoo.analysis.leave_out(task, ["A quiet, lovely film."])
    lmzoo.analysis.write_attributions("why.html", found)
    ```
    """
    if not found:
        raise ValueError("There are no contributions to show: the list is empty.")
    legend = (
        '<p><span class="for">This</span> speaks for the answer, <span class="against">this</span> against it.</p>\n'
    )
    write_page(path, title, legend + "".join(map(_section, found)), _STYLE)


def _section(one: Attribution) -> str:
    baseline = "" if one.baseline is None else f", {one.baseline:.4g} without the text"
    answer = html.escape(one.target) or "no answer"
    texts = "".join(f'<p class="read">{_highlighted(one, i)}</p>\n' for i in range(len(one.texts)))
    rows = (
        f'<th scope="row">{html.escape(token)}</th><td>{value:.4f}</td>'
        for token, value in zip(one.tokens, one.values.tolist(), strict=True)
    )
    numbers = table("contributions", ("part", "contribution"), rows)
    return (
        f"<section>\n<h2>{answer}</h2>\n<p>Score {one.score:.4g}{baseline}.</p>\n{texts}"
        f"<details><summary>Numbers</summary>{numbers}</details>\n</section>\n"
    )


def _highlighted(one: Attribution, segment: int) -> str:
    """Return one of the texts, with a span for each token or word."""
    text, most = one.texts[segment], max(float(np.nanmax(np.abs(one.values), initial=0)), 1e-12)
    parts, place = [], 0
    order = sorted(np.flatnonzero(one.segments == segment).tolist(), key=lambda i: one.offsets[i].tolist())
    for i in order:
        start, end = one.offsets[i].tolist()
        start = max(start, place)  # several tokens may share a character
        if start >= end:
            continue
        value = float(np.nan_to_num(one.values[i]))
        kind, color = ("for", "mark") if value >= 0 else ("against", "against")
        shade = f"background: rgba(var(--{color}), {0.5 * abs(value) / most:.3f})"
        kind = kind if abs(value) >= most / 100 else "none"
        parts.append(html.escape(text[place:start]))
        parts.append(f'<span class="{kind}" style="{shade}">{html.escape(text[start:end])}</span>')
        place = end
    return "".join(parts) + html.escape(text[place:])


_STYLE = """\
section { margin-bottom: 2rem; }
.read { font-size: 1.2rem; line-height: 1.9; white-space: pre-wrap; overflow-wrap: anywhere; }
.read span { border-radius: .2rem; }
.for { background: rgba(var(--mark), .5); }
.against { background: rgba(var(--against), .5); text-decoration: underline dashed; text-underline-offset: .2em; }
"""
