"""Picture of lmzoo's models: when each appeared, and what was new in it.

`examples/pictures.py` calls `draw`.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt

# Name -> year and novelty, column, row, kind.
MODELS = {
    "n-grams": ("1948: counts of words", 0, 2, "left"),
    "feed-forward": ("2003: vectors of words", 1, 2, "left"),
    "LSTM": ("2012: a state that remembers", 2, 2, "left"),
    "GPT": ("2018: fine-tuned Transformer", 3, 2, "left"),
    "GPT-2": ("2019: larger, bytes, prompts", 4, 2, "left"),
    "ELMo": ("2018: LSTMs in both directions", 2, 1, "both"),
    "BERT": ("2018: predicts masked words", 3, 1, "both"),
    "RoBERTa": ("2019: more text, new masks", 4, 1, "both"),
    "XLNet": ("2019: words in a random order", 2, 0, "both"),
    "ALBERT": ("2019: layers share weights", 3, 0, "both"),
    "DistilBERT": ("2019: half as many layers", 4, 0, "both"),
    "Marian": ("2018: encoder and decoder", 1, 0, "pairs"),
}
ROADS = [
    ("n-grams", "feed-forward"),
    ("feed-forward", "LSTM"),
    ("LSTM", "ELMo"),
    ("LSTM", "GPT"),
    ("GPT", "GPT-2"),
    ("GPT", "BERT"),
    ("ELMo", "BERT"),
    ("BERT", "RoBERTa"),
    ("BERT", "XLNet"),
    ("BERT", "ALBERT"),
    ("BERT", "DistilBERT"),
]
COLORS = {
    "left": ("#cfe3ff", "reads from left to right: generates text"),
    "both": ("#d5f2d0", "reads both sides: vectors, labels, masks"),
    "pairs": ("#ffe2b8", "reads one text, writes another: translates"),
}
WIDTH, HEIGHT = 0.88, 0.56


def draw(path: Path) -> None:
    """Draw the picture and save it to `path`."""
    figure, axes = plt.subplots(figsize=(10, 3.5), layout="constrained")
    centers = {name: (1.06 * column, 0.92 * row) for name, (_, column, row, _) in MODELS.items()}
    for start, end in ROADS:
        (x, y), (u, v) = centers[start], centers[end]
        dx, dy = (WIDTH / 2 * ((u > x) - (u < x)), HEIGHT / 2 * ((v > y) - (v < y)))
        arrow = {"arrowstyle": "-|>", "color": "#808080", "shrinkA": 0, "shrinkB": 1}
        axes.annotate("", xy=(u - dx, v - dy), xytext=(x + dx, y + dy), arrowprops=arrow)
    for name, (note, _, _, kind) in MODELS.items():
        x, y = centers[name]
        box = plt.Rectangle((x - WIDTH / 2, y - HEIGHT / 2), WIDTH, HEIGHT, color=COLORS[kind][0], ec="#b0b0b0")
        axes.add_patch(box)
        axes.text(x, y + 0.11, name, ha="center", va="center", fontsize=12, weight="bold")
        axes.text(x, y - 0.13, note.replace(": ", "\n"), ha="center", va="center", fontsize=8, linespacing=1.3)
    handles = [plt.Rectangle((0, 0), 1, 1, color=color, label=label) for color, label in COLORS.values()]
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, -0.17), ncols=3, frameon=False, fontsize=9)
    axes.set(xlim=(-0.5, 4.75), ylim=(-0.34, 2.2))
    axes.set_axis_off()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
