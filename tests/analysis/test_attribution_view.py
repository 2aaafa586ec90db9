"""The page of attributions."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.analysis import Attribution, write_attributions
from tests.analysis.html_page import Page

HOSTILE = "<script>alert('1')</script>"


def test_the_page_highlights_the_texts_and_escapes_hostile_text(tmp_path):
    texts = (f"{HOSTILE} was good", "& dull")
    length = len(HOSTILE)
    offsets = [(-1, -1), (0, length), (length, length + 4), (length + 2, length + 4), (length + 5, length + 9), (2, 6)]
    tokens, segments = ["[CLS]", HOSTILE, " wa", "as", "good", "dull"], np.array([-1, 0, 0, 0, 0, 1])
    values = np.array([9, 0.5, 0.001, 2, 1, -2.0])
    attribution = Attribution(texts, tokens, np.array(offsets), segments, values, "<b>", 1.5, 0.25)
    empty_attribution = Attribution(("",), [], np.zeros((0, 2)), np.zeros(0), np.zeros(0), "", 1.5, None)
    write_attributions(tmp_path / "page.html", [attribution, empty_attribution], title="<b>BODY")
    text = (tmp_path / "page.html").read_text("utf-8")
    page = Page(text)
    assert "script" not in page.tags
    assert "b" not in page.tags
    assert page.texts["title"].strip() == "<b>BODY"
    spans = [part for tag, part in page.pieces if tag == "span"]
    # Characters that two tokens share are shown once.
    assert [part for part in spans if part in (HOSTILE, " was", "good", "dull")] == [HOSTILE, " was", "good", "dull"]
    highlighted = text.partition('<p class="read">')[2].partition("</p>")[0]
    assert "<script" not in highlighted
    assert [text.count(f'<span class="{kind}" style') for kind in ("for", "against", "none")] == [2, 1, 1]
    assert "Score 1.5, 0.25 without the text." in text
    assert "<h2>no answer</h2>" in text
    assert "9.0000" in page.texts["td"]
    with pytest.raises(ValueError, match="no contributions to show"):
        write_attributions(tmp_path / "page.html", [])
