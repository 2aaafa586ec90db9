"""A picture of vectors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

_LABELS = 20  # more cannot be told apart


def plot_vectors(vectors: Any, labels: Sequence[object], reducer: Any = None, title: str = "") -> Any:
    """Draw vectors as points in a plane, those of each label in one color and shape.

    The plane is that of the two principal components (scikit-learn's PCA), unless another reducer is given.

    Args:
        vectors: float (n, H), such as those of `senses`, or of `lmzoo.models.TextEmbedder.embed`.
        labels: n labels, at most 20 different ones.
        reducer: anything fitted that transforms (n, H) into (n, 2) or more columns, as the reducers of scikit-learn and
            umap-learn do; fitted on more vectors than these, it shows where these lie among them.
        title: of the picture.

    Returns:
        matplotlib's `Figure`; its `savefig` writes a file.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if there are fewer than 3 vectors, not one label for each, or more than 20 different labels.

    Example:

    ```python
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased")
    texts = ["The bank lent him money.", "He paid it into the bank.", "They sat on the bank of the river."]
    found = lmzoo.analysis.senses(embedder, "bank", texts)
    figure = lmzoo.analysis.plot_vectors([sense.vector for sense in found], [sense.group for sense in found])
    figure.savefig("senses.png")
    ```
    """
    try:
        from matplotlib.figure import Figure  # not `pyplot`, which would open a window's backend
    except ImportError:
        raise ImportError("Pictures are drawn by matplotlib: pip install 'lmzoo[plots]'.") from None

    vectors, names = np.asarray(vectors, "float64"), np.array([str(label) for label in labels], object)
    if vectors.ndim != 2 or len(vectors) < 3 or vectors.shape[1] < 2 or len(names) != len(vectors):
        raise ValueError(
            "Expected at least 3 vectors (n, H), H above 1, and a label for each, got shape "
            f"{vectors.shape} and {len(names)} labels."
        )
    order = [*dict.fromkeys(names)]
    if len(order) > _LABELS:
        raise ValueError(f"A picture can tell at most {_LABELS} labels apart, got {len(order)}: group them.")
    axis_names = ["", ""]
    if reducer is None:
        from sklearn.decomposition import PCA

        reducer = PCA(2).fit(vectors)
        shares = reducer.explained_variance_ratio_
        axis_names = [f"component {i + 1}: {share:.0%} of the variance" for i, share in enumerate(shares)]
    points = np.asarray(reducer.transform(vectors))  # (n, 2)
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, marker in zip(order, itertools.cycle("osD^vPX*<>h")):
        chosen = names == name
        axes.scatter(points[chosen, 0], points[chosen, 1], marker=marker, label=name, alpha=0.8)
    axes.set(xlabel=axis_names[0], ylabel=axis_names[1], title=title)
    axes.legend()
    axes.grid(alpha=0.3)
    return figure
