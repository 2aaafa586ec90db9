"""HTML page that highlights the contributions of words to predictions."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lmzoo.analysis.explained import Attribution
from lmzoo.analysis.page import render_table, write_page


def write_attributions(path: str | Path, found: Sequence[Attribution], title: str = "Contributions") -> None:
    """Write an HTML page that highlights the tokens or words for and against the prediction in each text.

    The page is a single file that works offline and with the keyboard, and has a light and a dark mode. The largest
    contribution of each text has the strongest color, and parts against the prediction are also underlined.

    Args:
        path: file to write; an existing file is replaced.
        found: attributions returned by `integrated_gradients` or `leave_out`.
        title: title of the page.

    Raises:
        ValueError: If there are no texts, or the page would be larger than 2 MB.

    Example:

    ```python
    import lmzoo

    task = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", labels=["bad", "good"])
    attributions = lmzoo.analysis.leave_out(task, ["A quiet, lovely film."])
    lmzoo.analysis.write_attributions("why.html", attributions)
    ```
    """
    if not found:
        raise ValueError("There are no contributions to show: the list is empty.")
    legend = (
        '<p><span class="for">This</span> speaks for the answer, <span class="against">this</span> against it.</p>\n'
    )
    write_page(path, title, legend + "".join(map(_render_section, found)), _STYLE)


def _render_section(attribution: Attribution) -> str:
    baseline = "" if attribution.baseline is None else f", {attribution.baseline:.4g} without the text"
    answer = html.escape(attribution.target) or "no answer"
    texts = "".join(
        f'<p class="read">{_render_highlighted(attribution, i)}</p>\n' for i in range(len(attribution.texts))
    )
    rows = (
        f'<th scope="row">{html.escape(token)}</th><td>{value:.4f}</td>'
        for token, value in zip(attribution.tokens, attribution.values.tolist(), strict=True)
    )
    table_html = render_table("contributions", ("part", "contribution"), rows)
    return (
        f"<section>\n<h2>{answer}</h2>\n<p>Score {attribution.score:.4g}{baseline}.</p>\n{texts}"
        f"<details><summary>Numbers</summary>{table_html}</details>\n</section>\n"
    )


def _render_highlighted(attribution: Attribution, segment: int) -> str:
    """Return one of the texts as HTML, with a colored span for each token or word."""
    text = attribution.texts[segment]
    max_contribution = max(float(np.nanmax(np.abs(attribution.values), initial=0)), 1e-12)
    fragments = []
    position = 0
    sorted_indices = sorted(
        np.flatnonzero(attribution.segments == segment).tolist(), key=lambda i: attribution.offsets[i].tolist()
    )
    for i in sorted_indices:
        start, end = attribution.offsets[i].tolist()
        start = max(start, position)  # several tokens may share a character
        if start >= end:
            continue
        value = float(np.nan_to_num(attribution.values[i]))
        css_class, color = ("for", "mark") if value >= 0 else ("against", "against")
        shade = f"background: rgba(var(--{color}), {0.5 * abs(value) / max_contribution:.3f})"
        css_class = css_class if abs(value) >= max_contribution / 100 else "none"
        fragments.append(html.escape(text[position:start]))
        fragments.append(f'<span class="{css_class}" style="{shade}">{html.escape(text[start:end])}</span>')
        position = end
    return "".join(fragments) + html.escape(text[position:])


_STYLE = """\
section { margin-bottom: 2rem; }
.read { font-size: 1.2rem; line-height: 1.9; white-space: pre-wrap; overflow-wrap: anywhere; }
.read span { border-radius: .2rem; }
.for { background: rgba(var(--mark), .5); }
.against { background: rgba(var(--against), .5); text-decoration: underline dashed; text-underline-offset: .2em; }
"""
