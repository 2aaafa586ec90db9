"""Pages have no serious faults that axe-core finds, and look right on a narrow screen.

Needs Chromium, and `LMZOO_AXE`, the path of `axe.min.js` in npm's package axe-core.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

from lmzoo.analysis import Attention, Attribution, write_attention, write_attributions, write_report
from lmzoo.evaluation.errors import add_errors, add_learning_curve
from lmzoo.evaluation.reports import Judged, compare_classes

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = Path(os.environ.get("LMZOO_AXE", "axe.min.js"))

pytestmark = pytest.mark.skipif(not CHROMIUM or not AXE.is_file(), reason="needs Chromium and axe-core")

# Chromium's window is at least 500 pixels wide, but a frame may be as narrow as a phone: wider content must scroll.
FRAME = '<!doctype html><body style="margin: 0"><iframe style="width: 390px; height: 844px; border: 0" srcdoc="{}">'
RUN = """
for (const details of document.querySelectorAll("details")) details.open = true;
const button = document.querySelector("button");
if (button) button.click();
axe.run().then((results) => {
  const output = document.createElement("pre");
  output.id = "results";
  output.textContent = JSON.stringify({
    passes: results.passes.map((rule) => rule.id),
    violations: results.violations.map((rule) => [rule.impact, rule.id, rule.nodes.map((node) => node.html)]),
    color: getComputedStyle(document.body).backgroundColor,
    lines: document.querySelectorAll("svg line, polyline").length,
    width: innerWidth,
  });
  parent.document.body.append(output);
});
"""


def attention_page(path):
    tokens, offsets = ["[CLS]", "a", "quiet", "film"], [(-1, -1), (0, 1), (2, 7), (8, 12)]
    scores = np.full((2, 2, 4, 4), 0.25)
    write_attention(path, [Attention(("a quiet film",), tokens, np.array(offsets), np.array([-1, 0, 0, 0]), scores)])


def attributions_page(path):
    offsets, values = np.array([(0, 1), (2, 7), (8, 12)]), np.array([0.1, 2.0, -1.5])
    segments = np.zeros(3, "int64")
    film = Attribution(("a quiet film",), ["a", "quiet", "film"], offsets, segments, values, "good", 1.0, 0.0)
    write_attributions(path, [film])


def report_page(path):
    actual, predicted = ["a", "b", "a", "b"], ["a", "b", "b", "b"]
    report = compare_classes(actual, predicted, ["a", "b"])
    report.tables["wide"] = (["a long title " * 9] * 9, [[1] * 9])
    report.judged = Judged.of_classes(actual, predicted, [0.9, 0.6, 0.8, 0.7])
    report = add_errors(report, ["a text", "another", "a long text " * 30, "text"])
    write_report(path, add_learning_curve(report, {"loss": [2.0, 1.0], "val_loss": [2.5, 2.0]}))


def open_page(write, dark, folder, *options):
    """Return the output of Chromium, which shows a page in a narrow frame after axe-core has checked it."""
    write(folder / "page.html")
    page = (folder / "page.html").read_text("utf-8")
    script = AXE.read_text("utf-8").replace("</script", "<\\/script")
    checked = page.replace("</body>", f"<script>{script}</script><script>{RUN}</script></body>")
    (folder / "checked.html").write_text(FRAME.format(html.escape(checked)), "utf-8")
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=500,844",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        f"--user-data-dir={folder / 'user'}",
        "--virtual-time-budget=20000",
        *options,
        (folder / "checked.html").as_uri(),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_shows_a_tokens_attention(dark, tmp_path):
    open_page(attention_page, dark, tmp_path, f"--screenshot={tmp_path / 'picture.png'}")
    picture = (255 * plt.imread(tmp_path / "picture.png")[:, :390, :3]).round()  # (height, 390, 3)
    assert picture[600, 5].tolist() == ([22] * 3 if dark else [255] * 3)
    is_colored = np.ptp(picture, axis=2) > 20
    # The chosen token is on the left, the tokens that it attends to are on the right, and lines connect them.
    counts = [int(is_colored[310:450, columns].sum()) for columns in (slice(0, 130), slice(130, 260), slice(260, 390))]
    assert min(counts) > 200, counts


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("write", [attention_page, attributions_page, report_page])
def test_axe_finds_nothing_serious(write, dark, tmp_path):
    dom = open_page(write, dark, tmp_path, "--dump-dom")
    results = json.loads(html.unescape(re.search('<pre id="results">(.*?)</pre>', dom, re.DOTALL)[1]))
    assert results["width"] == 390
    assert results["color"] == ("rgb(22, 22, 22)" if dark else "rgb(255, 255, 255)")
    assert results["lines"] == (0 if write is attributions_page else 4)
    assert {"color-contrast", "html-has-lang", "document-title"} <= {*results["passes"]}
    assert [rule for rule in results["violations"] if rule[0] in ("serious", "critical")] == []
