"""HTML page of a task's evaluation report."""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lmzoo.analysis.page import render_table, write_page
from lmzoo.evaluation.errors import CALIBRATION, CURVE, WORST
from lmzoo.evaluation.reports import Cell, Report, shorten

_MAX_CHARACTERS = 2000  # limit per text
_MAX_ROWS = 1000  # limit per table
_FIRST_TABLES = (CURVE, "confusion", CALIBRATION)

# x and y coordinates of each line of a chart, by name of the line
Lines = dict[str, tuple[Sequence[float], Sequence[float]]]
Range = tuple[float, float]


def write_report(path: str | Path, report: Report, title: str = "Report") -> None:
    """Write an HTML page with the scores, tables and charts of a report.

    The page is a single file that works offline and with the keyboard, and has a light and a dark mode. Texts are
    truncated to 2,000 characters, and tables to 1,000 rows.

    Args:
        path: file to write; an existing file is replaced.
        report: report returned by a task's `report`; with `errors=True`, it includes errors, calibration and lengths.
        title: title of the page.

    Raises:
        TypeError: If `report` is not a report.
        ValueError: If the page would be larger than 2 MB.

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
    sections = [_render_section("scores", ["score", "value"], scores)]
    # The worst predictions come last, since their table is long.
    names = [name for name in report.tables if name not in (*_FIRST_TABLES, WORST)]
    for name in (*_FIRST_TABLES, *names, WORST):
        if name in report.tables:
            sections.append(_render_section(name, *report.tables[name]))
    write_page(path, title, "".join(sections), _STYLE)


def _render_section(name: str, titles: list[str], rows: list[list[Cell]]) -> str:
    """Return a table of a report as an HTML section, with charts if it holds the calibration or the learning curve."""
    chart = ""
    if name == CALIBRATION:
        columns = {title: [float(row[i]) for row in rows] for i, title in enumerate(titles) if i}
        lines: Lines = {
            "answers": (columns["confidence"], columns["accuracy"]),
            "if they were right as often as expected": ((0.0, 1.0), (0.0, 1.0)),
        }
        chart = _draw_chart(lines, "probability of the answer", "share of right answers", (0, 1), (0, 1))
    elif name == CURVE:
        chart = "".join(_draw_curves(titles, rows))
    heading = html.escape(name[:1].upper() + name[1:])
    confusion_counts = (
        [cell for row in rows for cell in row[1:] if isinstance(cell, int)] if name == "confusion" else []
    )
    if not rows:
        return f"<section>\n<h2>{heading}</h2>\n<p>None.</p>\n</section>\n"
    content = render_table(
        name, titles, [_render_cells(row, max(confusion_counts, default=0), titles) for row in rows[:_MAX_ROWS]]
    )
    footnote = f"<p>{len(rows) - _MAX_ROWS:,} more rows are not shown.</p>\n" if len(rows) > _MAX_ROWS else ""
    return f"<section>\n<h2>{heading}</h2>\n{chart}{content}{footnote}</section>\n"


def _render_cells(row: Sequence[Cell], max_value: int, titles: Sequence[str]) -> str:
    """Return the cells of a row as HTML; unless `max_value` is 0, shade the numbers in proportion to it."""
    cells = []
    for i, cell in enumerate(row):
        text = f"{cell:.4f}" if isinstance(cell, float) else str(cell)
        text = html.escape(text if len(text) <= _MAX_CHARACTERS else shorten(text, _MAX_CHARACTERS))
        if i == 0:
            cells.append(f'<th scope="row">{text}</th>')
            continue
        style_attribute = f' style="background: rgba(var(--mark), {0.35 * cell / max_value:.3f})"' if max_value else ""  # type: ignore[operator]
        class_attribute = ' class="text"' if titles[i] == "text" else ""
        cells.append(f"<td{style_attribute}{class_attribute}>{text}</td>")
    return "".join(cells)


def _draw_curves(titles: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Return charts of the loss and each metric by epoch, for the training set and any validation set."""
    epochs, *columns = ([float(cell) for cell in column] for column in zip(*rows, strict=True))
    values_by_title = dict(zip(titles[1:], columns, strict=True))
    charts = []
    for name in dict.fromkeys(title.removeprefix("val_") for title in values_by_title):
        lines: Lines = {key: (epochs, values_by_title[key]) for key in (name, f"val_{name}") if key in values_by_title}
        finite_values = np.array([y for _, y in lines.values()], "float64")
        finite_values = finite_values[np.isfinite(finite_values)]
        low, high = (float(finite_values.min()), float(finite_values.max())) if len(finite_values) else (0.0, 1.0)
        high = high if high > low else low + 1
        charts.append(_draw_chart(lines, "epoch", name, (min(epochs), max(max(epochs), 2)), (low, high)))
    return charts


# Size of a chart and its margins, in SVG units.
_WIDTH = 420
_HEIGHT = 260
_LEFT_MARGIN = 60
_BOTTOM_MARGIN = 45
_DASHES = ("solid", "dashed")


def _draw_chart(lines: Lines, x_name: str, y_name: str, x_range: Range, y_range: Range) -> str:
    """Return a line chart as an SVG figure with a legend.

    Screen readers find the same numbers in the table next to the chart.

    Args:
        lines: dict from the label of each line to its x and y coordinates.
        x_name: title of the x axis.
        y_name: title of the y axis.
        x_range: minimum and maximum of the x axis.
        y_range: minimum and maximum of the y axis.
    """

    def to_svg_units(x: float, y: float) -> tuple[float, float]:
        x_fraction, y_fraction = (
            (coordinate - low) / (high - low) for coordinate, (low, high) in ((x, x_range), (y, y_range))
        )
        return _LEFT_MARGIN + x_fraction * (_WIDTH - _LEFT_MARGIN - 10), 10 + (1 - y_fraction) * (
            _HEIGHT - _BOTTOM_MARGIN - 10
        )

    elements = []
    for value in np.linspace(*y_range, 5):
        x, y = to_svg_units(x_range[0], value)
        elements.append(f'<path class="grid" d="M{x:.1f} {y:.1f}H{_WIDTH - 10}"/>')
        elements.append(f'<text x="{x - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    is_whole = all(float(x).is_integer() for xs, _ in lines.values() for x in xs) and x_range[1] > 1
    for value in np.unique(np.rint(np.linspace(*x_range, 5)) if is_whole else np.linspace(*x_range, 5)):
        x, y = to_svg_units(value, y_range[0])
        elements.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{value:.3g}</text>')
    for (xs, ys), dash in zip(lines.values(), itertools.cycle(_DASHES)):
        points = [to_svg_units(x, y) for x, y in zip(xs, ys, strict=True) if np.isfinite(y)]
        elements.append(f'<polyline class="{dash}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>')
        elements += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points if dash == "solid"]
    elements.append(
        f'<text x="{(_LEFT_MARGIN + _WIDTH) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">{html.escape(x_name)}</text>'
    )
    elements.append(
        f'<text transform="translate(12 {(_HEIGHT - _BOTTOM_MARGIN) / 2}) rotate(-90)" text-anchor="middle">'
        f"{html.escape(y_name)}</text>"
    )
    legend = "; ".join(f"{dash}: {label}" for label, dash in zip(lines, _DASHES, strict=False))
    label = html.escape(f"{y_name} by {x_name}")
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(elements)}</svg>\n'
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
