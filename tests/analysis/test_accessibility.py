"""Pages are usable by everybody, as far as axe-core can tell, and look as they should in a browser.

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

import numpy as np
import pytest

from lmzoo.analysis import Attention, Attribution, write_attention, write_attributions, write_report
from lmzoo.evaluation.errors import add_errors, add_learning_curve
from lmzoo.evaluation.reports import Judged, compare_classes

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = Path(os.environ.get("LMZOO_AXE", "axe.min.js"))

pytestmark = pytest.mark.skipif(not CHROMIUM or not AXE.is_file(), reason="needs Chromium and axe-core")

RUN = """
for (const details of document.querySelectorAll("details")) details.open = true;
const button = document.querySelector("button");
if (button) button.click();
axe.run().then((found) => {
  const result = document.createElement("pre");
  result.id = "found";
  result.textContent = JSON.stringify({
    passes: found.passes.map((rule) => rule.id),
    violations: found.violations.map((rule) => [rule.impact, rule.id, rule.nodes.map((node) => node.html)]),
    colour: getComputedStyle(document.body).backgroundColor,
    lines: document.querySelectorAll("svg line, polyline").length,
  });
  document.body.append(result);
});
"""


def attention_page(path):
    tokens, places = ["[CLS]", "a", "quiet", "film"], [(-1, -1), (0, 1), (2, 7), (8, 12)]
    scores = np.full((2, 2, 4, 4), 0.25)
    write_attention(path, [Attention(("a quiet film",), tokens, np.array(places), np.array([-1, 0, 0, 0]), scores)])


def attributions_page(path):
    places, values = np.array([(0, 1), (2, 7), (8, 12)]), np.array([0.1, 2.0, -1.5])
    one = Attribution(("a quiet film",), ["a", "quiet", "film"], places, np.zeros(3, "int64"), values, "good", 1.0, 0.0)
    write_attributions(path, [one])


def report_page(path):
    actual, predicted = ["a", "b", "a", "b"], ["a", "b", "b", "b"]
    report = compare_classes(actual, predicted, ["a", "b"])
    report.tables["wide"] = (["a long title " * 9] * 9, [[1] * 9])
    report.judged = Judged.of_classes(actual, predicted, [0.9, 0.6, 0.8, 0.7])
    report = add_errors(report, ["a text", "another", "a long text " * 30, "text"])
    write_report(path, add_learning_curve(report, {"loss": [2.0, 1.0], "val_loss": [2.5, 2.0]}))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("write", [attention_page, attributions_page, report_page])
def test_axe_finds_nothing_serious(write, dark, tmp_path):
    write(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    script = AXE.read_text("utf-8").replace("</script", "<\\/script")
    checked = page.replace("</body>", f"<script>{script}</script><script>{RUN}</script></body>")
    (tmp_path / "checked.html").write_text(checked, "utf-8")
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=390,844",  # as narrow as a telephone: what is wider must scroll
        scheme,
        f"--user-data-dir={tmp_path / 'user'}",
        "--virtual-time-budget=20000",
        "--dump-dom",
        (tmp_path / "checked.html").as_uri(),
    ]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = json.loads(html.unescape(re.search('<pre id="found">(.*?)</pre>', dom, re.DOTALL)[1]))
    assert found["colour"] == ("rgb(22, 22, 22)" if dark else "rgb(255, 255, 255)")
    assert found["lines"] == (0 if write is attributions_page else 4)
    assert {"color-contrast", "html-has-lang", "document-title"} <= {*found["passes"]}
    assert [rule for rule in found["violations"] if rule[0] in ("serious", "critical")] == []
