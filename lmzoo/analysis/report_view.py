"""A report as a page to look at."""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lmzoo.analysis.page import table, write_page
from lmzoo.evaluation.errors import CALIBRATION, CURVE, WORST
from lmzoo.evaluation.reports import Cell, Report, shortened

_LONGEST = 2000  # characters of a text
_ROWS = 1000  # of a table
_FIRST = (CURVE, "confusion", CALIBRATION)

# x and y of each line, by name
Lines = dict[str, tuple[Sequence[float], Sequence[float]]]
Range = tuple[float, float]


def write_report(path: str | Path, report: Report, title: str = "Report") -> None:
    """Write a page with the scores and the tables of a report, and pictures of those that can be drawn.

    The page is one file: it needs no network, and works with the keyboard, in light and dark. Texts longer than 2,000
    characters are cut there, and tables after 1,000 rows.

    Args:
        path: the file to write; an existing one is replaced.
        report: what `report` of a task returned; with `errors=True` it holds mistakes, calibration and lengths.
        title: of the page.

    Raises:
        TypeError: if it is not a report.
        ValueError: if the page would be larger than 2 MB.

    Example:

    ```python
    import lmzoo

    task = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", labels=["bad", "good"])
    report = task.report(["A fine film.", "A dull film."], ["good", "bad"], errors=True, verbose=0)
    lmzoo.analysis.write_report("report.html", report)
    ```
    """
    if not isinstance(report, Report):
        raise TypeError(f"Expected what `report` of a task returns, got {report!r:.60}.")
    scores: list[list[Cell]] = [[name, value] for name, value in report.scores.items()]
    sections = [_section("scores", ["score", "value"], scores)]
    # The worst answers come last: they are long.
    names = [name for name in report.tables if name not in (*_FIRST, WORST)]
    for name in (*_FIRST, *names, WORST):
        if name in report.tables:
            sections.append(_section(name, *report.tables[name]))
    write_page(path, title, "".join(sections), _STYLE)


def _section(name: str, titles: list[str], rows: list[list[Cell]]) -> str:
    picture = ""
    if name == CALIBRATION:
        columns = {title: [float(row[i]) for row in rows] for i, title in enumerate(titles) if i}
        lines: Lines = {
            "answers": (columns["confidence"], columns["accuracy"]),
            "if they were right as often as expected": ((0.0, 1.0), (0.0, 1.0)),
        }
        picture = _chart(lines, "probability of the answer", "share of right answers", (0, 1), (0, 1))
    elif name == CURVE:
        picture = "".join(_curves(titles, rows))
    heading = html.escape(name[:1].upper() + name[1:])
    counts = [cell for row in rows for cell in row[1:] if isinstance(cell, int)] if name == "confusion" else []
    if not rows:
        return f"<section>\n<h2>{heading}</h2>\n<p>None.</p>\n</section>\n"
    content = table(name, titles, [_cells(row, max(counts, default=0), titles) for row in rows[:_ROWS]])
    more = f"<p>{len(rows) - _ROWS:,} more rows are not shown.</p>\n" if len(rows) > _ROWS else ""
    return f"<section>\n<h2>{heading}</h2>\n{picture}{content}{more}</section>\n"


def _cells(row: Sequence[Cell], most: int, titles: Sequence[str]) -> str:
    """Return the cells of a row; counts up to `most` get darker as they grow."""
    parts = []
    for i, cell in enumerate(row):
        text = f"{cell:.4f}" if isinstance(cell, float) else str(cell)
        text = html.escape(text if len(text) <= _LONGEST else shortened(text, _LONGEST))
        if i == 0:
            parts.append(f'<th scope="row">{text}</th>')
            continue
        shade = f' style="background: rgba(var(--mark), {0.35 * cell / most:.3f})"' if most else ""  # type: ignore[operator]
        kind = ' class="text"' if titles[i] == "text" else ""
        parts.append(f"<td{shade}{kind}>{text}</td>")
    return "".join(parts)


def _curves(titles: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Return a chart for the loss and each metric: of the training and, if there is one, of the validation set."""
    epochs, *columns = ([float(cell) for cell in column] for column in zip(*rows, strict=True))
    values = dict(zip(titles[1:], columns, strict=True))
    charts = []
    for name in dict.fromkeys(title.removeprefix("val_") for title in values):
        lines: Lines = {key: (epochs, values[key]) for key in (name, f"val_{name}") if key in values}
        found = np.array([y for _, y in lines.values()], "float64")
        found = found[np.isfinite(found)]
        low, high = (float(found.min()), float(found.max())) if len(found) else (0.0, 1.0)
        high = high if high > low else low + 1
        charts.append(_chart(lines, "epoch", name, (min(epochs), max(max(epochs), 2)), (low, high)))
    return charts


_WIDTH, _HEIGHT, _LEFT, _BELOW = 420, 260, 60, 45  # of a chart, and of its margins
_DASHES = ("solid", "dashed")


def _chart(lines: Lines, x_name: str, y_name: str, x_range: Range, y_range: Range) -> str:
    """Return lines as SVG. The table below tells the same to those who cannot see them."""

    def at(x: float, y: float) -> tuple[float, float]:
        across, up = ((v - low) / (high - low) for v, (low, high) in ((x, x_range), (y, y_range)))
        return _LEFT + across * (_WIDTH - _LEFT - 10), 10 + (1 - up) * (_HEIGHT - _BELOW - 10)

    parts = []
    for value in np.linspace(*y_range, 5):
        x, y = at(x_range[0], value)
        parts.append(f'<path class="grid" d="M{x:.1f} {y:.1f}H{_WIDTH - 10}"/>')
        parts.append(f'<text x="{x - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    whole = all(float(x).is_integer() for xs, _ in lines.values() for x in xs) and x_range[1] > 1
    for value in np.unique(np.rint(np.linspace(*x_range, 5)) if whole else np.linspace(*x_range, 5)):
        x, y = at(value, y_range[0])
        parts.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{value:.3g}</text>')
    for (xs, ys), dash in zip(lines.values(), itertools.cycle(_DASHES)):
        places = [at(x, y) for x, y in zip(xs, ys, strict=True) if np.isfinite(y)]
        parts.append(f'<polyline class="{dash}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places if dash == "solid"]
    parts.append(
        f'<text x="{(_LEFT + _WIDTH) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">{html.escape(x_name)}</text>'
    )
    parts.append(
        f'<text transform="translate(12 {(_HEIGHT - _BELOW) / 2}) rotate(-90)" text-anchor="middle">'
        f"{html.escape(y_name)}</text>"
    )
    legend = "; ".join(f"{dash}: {name}" for name, dash in zip(lines, _DASHES, strict=False))
    name = html.escape(f"{y_name} by {x_name}")
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{name}">{"".join(parts)}</svg>\n'
        f"<figcaption>{html.escape(legend)}</figcaption></figure>\n"
    )


_STYLE = """\
section { margin-bottom: 2rem; }
figure { display: inline-block; margin: 0 1rem 1rem 0; width: min(26rem, 100%); }
figcaption { font-size: .9rem; }
svg text { fill: var(--ink); font-size: 12px; }
.grid { stroke: var(--line); stroke-width: .4; }
polyline { fill: none; stroke: rgb(var(--mark)); stroke-width: 2; }
.dashed { stroke: rgb(var(--against)); stroke-dasharray: 6 4; }
circle { fill: rgb(var(--mark)); }
"""
