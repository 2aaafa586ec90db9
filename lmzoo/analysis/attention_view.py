"""Interactive HTML page of attention weights, in a single file that works offline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lmzoo.analysis.attention import Attention, join_words
from lmzoo.analysis.page import write_page

_MAX_TOKENS = 256  # limit per text, so that the page stays readable


def write_attention(path: str | Path, found: Sequence[Attention], title: str = "Attention") -> None:
    """Write an HTML page that shows the attention of each token, in a layer and head chosen on the page.

    The page shows tokens or whole words. It is a single file that works offline and with the keyboard, and has a light
    and a dark mode. It is limited to 2 MB, enough for 58 tokens in a model of 12 layers with 12 heads. For longer
    texts, pass only some layers: `text._replace(scores=text.scores[-2:])` for each text.

    Args:
        path: file to write; an existing file is replaced.
        found: attention of texts, returned by `attention`.
        title: title of the page.

    Raises:
        ValueError: If there are no texts, or the page would be larger than 2 MB.

    Example:

    ```python
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased")
    text = "The animal didn't cross the street because it was too tired."
    lmzoo.analysis.write_attention("attention.html", lmzoo.analysis.attention(embedder, [text]))
    ```
    """
    if not found:
        raise ValueError("There is no attention to show: the list is empty.")
    for i, text in enumerate(found):
        if len(text.tokens) > _MAX_TOKENS:
            raise ValueError(
                f"Text {i} has {len(text.tokens)} tokens: the page shows at most {_MAX_TOKENS}. Pass a shorter text, "
                "or a part of it."
            )
    texts = [
        {"name": " / ".join(text.texts), "views": [_make_page_data(view) for view in (text, join_words(text))]}
        for text in found
    ]
    write_page(path, title, _BODY, _STYLE, _SCRIPT, texts)


def _make_page_data(view: Attention) -> dict[str, object]:
    """Return the page's data for one view of a text, its tokens or its words.

    The scores form one string with two digits per score, from 00 for 0 to 99 for 1, ordered by layer, head, query and
    key.
    """
    num_layers, num_heads, length, _ = view.scores.shape
    percentages = np.clip(np.rint(view.scores * 99), 0, 99).astype("int64").reshape(-1)
    digit_pairs = "".join(f"{percentage:02d}" for percentage in percentages.tolist())
    return {"tokens": view.tokens, "layers": num_layers, "heads": num_heads, "length": length, "scores": digit_pairs}


_STYLE = """
.choices { display: flex; flex-wrap: wrap; gap: 1rem; margin-bottom: 1rem; }
label { display: flex; gap: .4rem; align-items: center; }
.columns { display: grid; grid-template-columns: 1fr minmax(3rem, 12rem) 1fr; }
.columns ol { list-style: none; margin: 0; padding: 0; }
.columns li { height: 1.8rem; }
.columns ol:first-child { text-align: right; }
button, #to span { border: 0; border-radius: .2rem; height: 1.7rem; line-height: 1.7rem; }
button, #to span { padding: 0 .4rem; white-space: pre; }
#to span { display: inline-block; }
button { cursor: pointer; }
button[aria-pressed="true"] { outline: 2px solid rgb(var(--mark)); }
svg { width: 100%; }
line { stroke: rgb(var(--mark)); stroke-width: 2; }
"""

_BODY = """\
<p>Choose a token on the left: the lines show which tokens on the right it attends to, and how much.</p>
<div class="choices">
<label>Text <select id="text"></select></label>
<label>Layer <select id="layer"></select></label>
<label>Head <select id="head"></select></label>
<label><input type="checkbox" id="words"> whole words</label>
</div>
<p id="answer" role="status"></p>
<div class="columns"><ol id="from" aria-label="Attends"></ol>
<svg id="lines" preserveAspectRatio="none" aria-hidden="true"></svg><ol id="to" aria-label="Is attended to"></ol></div>
"""

_SCRIPT = """
const texts = JSON.parse(document.getElementById("data").textContent);
const get = (id) => document.getElementById(id);
const row = 28.8;
let chosen = null;
const view = () => texts[+get("text").value].views[get("words").checked ? 1 : 0];
function score(v, query, key) {
  const n = v.length, head = get("head").value;
  const heads = head === "mean" ? [...Array(v.heads).keys()] : [+head];
  let sum = 0;
  for (const h of heads) {
    const at = 2 * (((+get("layer").value * v.heads + h) * n + query) * n + key);
    sum += v.scores.slice(at, at + 2) / 99;
  }
  return sum / heads.length;
}
function options(select, names, values) {
  select.replaceChildren(...names.map((name, i) => new Option(name, values ? values[i] : i)));
}
function show(id, tag) {
  get(id).replaceChildren(...view().tokens.map((token) => {
    const item = document.createElement("li"), part = document.createElement(tag);
    part.textContent = token;
    item.append(part);
    return item;
  }));
  return get(id).querySelectorAll(tag);
}
function list() {
  show("to", "span");
  show("from", "button").forEach((button, i) => {
    button.addEventListener("click", () => { chosen = chosen === i ? null : i; draw(); });
  });
  draw();
}
function draw() {
  const v = view(), n = v.length, svg = get("lines"), height = row * n;
  svg.setAttribute("viewBox", `0 0 100 ${height}`);
  svg.style.height = height + "px";
  const lines = [], received = new Array(n).fill(0);
  for (let i = 0; i < n; i++) {
    if (chosen !== null && chosen !== i) continue;
    for (let j = 0; j < n; j++) {
      const weight = score(v, i, j);
      received[j] += weight;
      if (weight < 0.02) continue;
      const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
      for (const [name, value] of Object.entries({x1: 0, y1: row * (i + .5), x2: 100, y2: row * (j + .5)}))
        line.setAttribute(name, value);
      line.setAttribute("vector-effect", "non-scaling-stroke");
      line.style.opacity = weight;
      lines.push(line);
    }
  }
  svg.replaceChildren(...lines);
  const most = Math.max(...received, 1e-9);
  get("to").querySelectorAll("span").forEach((name, j) => {
    name.style.background = `rgba(var(--mark), ${.35 * received[j] / most})`;
  });
  get("from").querySelectorAll("button").forEach((button, i) => {
    button.setAttribute("aria-pressed", String(chosen === i));
  });
  if (chosen === null) { get("answer").textContent = "All tokens are shown."; return; }
  const best = received.map((weight, j) => [weight, v.tokens[j]]).sort((a, b) => b[0] - a[0]).slice(0, 3);
  get("answer").textContent = `“${v.tokens[chosen]}” attends to ` +
    best.map(([weight, token]) => `“${token}” (${Math.round(100 * weight)}%)`).join(", ") + ".";
}
options(get("text"), texts.map((text) => text.name.slice(0, 80)));
const [first] = texts[0].views;
options(get("layer"), Array.from({length: first.layers}, (_, i) => i + 1));
options(get("head"), ["mean of all", ...Array.from({length: first.heads}, (_, i) => i + 1)],
  ["mean", ...Array.from({length: first.heads}, (_, i) => i)]);
get("layer").value = first.layers - 1;
for (const id of ["text", "words"]) get(id).addEventListener("change", () => { chosen = null; list(); });
for (const id of ["layer", "head"]) get(id).addEventListener("change", draw);
list();
"""
