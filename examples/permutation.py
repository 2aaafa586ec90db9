"""Figure of permutation language modeling: a random order, and the tokens that each prediction sees.

`examples/pictures.py` calls `draw`.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from lmzoo.text.permutation import factorization_order

WORDS = ["The", "ship", "left", "the", "quiet", "harbour", "early", "at", "dawn"]
PREDICTED = [1, 5, 8]
COLORS = {"known": "#cfe3ff", "predicted before": "#ffe2b8"}


def draw(path: Path, seed: int = 9) -> None:
    """Draw the figure and save it to `path`."""
    is_visible = np.ones((1, len(WORDS)), bool)
    is_visible[0, PREDICTED] = False
    order = factorization_order(is_visible, np.array([len(WORDS)]), np.random.default_rng(seed), parts=1)[0]
    predicted = sorted(PREDICTED, key=lambda i: order[i])
    figure, axes = plt.subplots(figsize=(8.6, 2.2), layout="constrained")
    for row, target in enumerate(predicted):
        for column, word in enumerate(WORDS):
            sees = order[column] < order[target]
            color = COLORS["known" if is_visible[0, column] else "predicted before"] if sees else "white"
            box = {"facecolor": color, "edgecolor": "#b0b0b0", "boxstyle": "round,pad=0.35"}
            text = "?" if column == target else word if sees else ""
            axes.text(column, -row, text.center(7), ha="center", va="center", bbox=box, family="monospace", fontsize=9)
    axes.set(
        xlim=(-0.6, len(WORDS) - 0.4),
        ylim=(0.6 - len(predicted), 0.6),
    )
    axes.set_yticks([-row for row in range(len(predicted))], [f"prediction {row + 1}" for row in range(len(predicted))])
    axes.set_xticks(range(len(WORDS)), WORDS)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
