"""Scatter plot of vectors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

_MAX_LABELS = 20  # more colors and shapes are hard to distinguish


def plot_vectors(vectors: Any, labels: Sequence[object], reducer: Any = None, title: str = "") -> Any:
    """Draw a scatter plot of vectors in two dimensions, with a color and shape for each label.

    By default, vectors are projected to their first two principal components (scikit-learn's PCA).

    Args:
        vectors: float (n, H), vectors to plot, such as from `senses` or `lmzoo.models.TextEmbedder.embed`.
        labels: one label for each vector, at most 20 different labels.
        reducer: a fitted object, such as a reducer of scikit-learn or umap-learn, whose `transform` maps (n, H) to at
            least two columns; the first two are drawn. A reducer fitted on a larger set shows the place of the vectors
            in this set.
        title: title of the plot.

    Returns:
        matplotlib's `Figure`; its `savefig` writes a file.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If there are fewer than 3 vectors or more than 20 different labels, H is 1, or the numbers of
            vectors and labels differ.

    Example:

    ```python
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased")
    texts = ["The bank lent him money.", "He paid it into the bank.", "They sat on the bank of the river."]
    senses = lmzoo.analysis.senses(embedder, "bank", texts)
    figure = lmzoo.analysis.plot_vectors([sense.vector for sense in senses], [sense.group for sense in senses])
    figure.savefig("senses.png")
    ```
    """
    try:
        from matplotlib.figure import Figure  # importing `pyplot` would load a window system's backend
    except ImportError:
        raise ImportError("Pictures are drawn by matplotlib: pip install 'lmzoo[plots]'.") from None

    vectors = np.asarray(vectors, "float64")
    label_names = np.array([str(label) for label in labels], object)
    if vectors.ndim != 2 or len(vectors) < 3 or vectors.shape[1] < 2 or len(label_names) != len(vectors):
        raise ValueError(
            "Expected at least 3 vectors (n, H), H above 1, and a label for each, got shape "
            f"{vectors.shape} and {len(label_names)} labels."
        )
    unique_label_names = [*dict.fromkeys(label_names)]
    if len(unique_label_names) > _MAX_LABELS:
        raise ValueError(
            f"A picture can tell at most {_MAX_LABELS} labels apart, got {len(unique_label_names)}: group them."
        )
    axis_names = ["", ""]
    if reducer is None:
        from sklearn.decomposition import PCA

        reducer = PCA(2).fit(vectors)
        ratios = reducer.explained_variance_ratio_
        axis_names = [f"component {i + 1}: {ratio:.0%} of the variance" for i, ratio in enumerate(ratios)]
    points = np.asarray(reducer.transform(vectors))  # (n, 2)
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axes = figure.subplots()
    for label_name, marker in zip(unique_label_names, itertools.cycle("osD^vPX*<>h")):
        has_label = label_names == label_name
        axes.scatter(points[has_label, 0], points[has_label, 1], marker=marker, label=label_name, alpha=0.8)
    axes.set(xlabel=axis_names[0], ylabel=axis_names[1], title=title)
    axes.legend()
    axes.grid(alpha=0.3)
    return figure
