"""How the layers of a model differ: distances, isotropy, similarity, and what a linear classifier finds in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from lmzoo.analysis.reading import SPECIAL, hidden_states, listed, text_means
from lmzoo.common.arguments import is_integer, require
from lmzoo.families import Backbone
from lmzoo.tasks import Task
from lmzoo.text import Preprocessor
from lmzoo.text.probabilities import softmax

_PAIRS = 10_000  # of tokens whose angles are averaged


class LayerChanges(NamedTuple):
    """How far each layer moves the vectors of the tokens: float64 (L,) each.

    Attributes:
        distance: mean L2 distance between the input and the output of a layer.
        degrees: mean angle between them.

    Example: see `layer_changes`.
    """

    distance: np.ndarray
    degrees: np.ndarray


class Mix(NamedTuple):
    """How a task weights the layers of ELMo.

    Attributes:
        weights: float64 (L,), of each layer, the tokens' own vectors first; they sum to 1.
        gamma: float, by which their mean is multiplied.

    Example: see `mix_weights`.
    """

    weights: np.ndarray
    gamma: float


class Probe(NamedTuple):
    """How accurate a linear classifier is on each layer: float64 (L + 1,) each.

    Attributes:
        accuracy: mean over the parts of a cross-validation.
        deviation: their standard deviation.

    Example: see `probe`.
    """

    accuracy: np.ndarray
    deviation: np.ndarray


def layer_changes(
    model: Task | Backbone, texts: Any, batch_size: int = 32, preprocessor: Preprocessor | None = None
) -> LayerChanges:
    """Return how far each layer moves the vectors of all tokens (Lan et al., 2020, figure 1).

    https://arxiv.org/abs/1909.11942. The paper draws both measures over the layers of BERT, where they oscillate, and
    of ALBERT, whose layers share their weights.

    Args:
        model: a task, or a backbone with a `preprocessor`, whose layers have one width.
        texts: strings or pairs of them.
        batch_size: int.
        preprocessor: of a backbone.

    Raises:
        TypeError: naming the position of an entry that is not text.
        ValueError: if there are no texts, or nothing that reads them.

    Example:

    ```python
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset("albert_nano_en_uncased")
    lmzoo.analysis.layer_changes(embedder, ["A quiet film.", "The plot was dull."]).degrees
    ```
    """
    _, states = hidden_states(model, texts, batch_size, preprocessor)
    joined = np.concatenate(states, axis=1).astype("float64")  # (L + 1, T of all texts, H)
    before, after = joined[:-1], joined[1:]
    degrees = np.degrees(np.arccos(np.clip(_cosines(before, after), -1, 1)))
    return LayerChanges(np.linalg.norm(after - before, axis=2).mean(axis=1), degrees.mean(axis=1))


def anisotropy(
    model: Task | Backbone, texts: Any, batch_size: int = 32, preprocessor: Preprocessor | None = None, seed: int = 0
) -> np.ndarray:
    """Return the mean cosine of two random tokens' vectors in every layer, float64 (L + 1,): 0 for random directions.

    Ethayarajh (2019), https://aclanthology.org/D19-1006: in BERT, GPT-2 and ELMo all vectors of upper layers lie in a
    narrow cone.

    Args:
        model: a task, or a backbone with a `preprocessor`.
        texts: strings or pairs of them, of at least two tokens together.
        batch_size: int.
        preprocessor: of a backbone.
        seed: int, of the choice of pairs.

    Raises:
        TypeError: naming the position of an entry that is not text.
        ValueError: if there are fewer than two tokens, or nothing that reads texts.

    Example:

    ```python
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased")
    lmzoo.analysis.anisotropy(embedder, ["A quiet film.", "The plot was dull."]).shape  # (7,)
    ```
    """
    read, states = hidden_states(model, texts, batch_size, preprocessor)
    chosen = [values[:, text.segments != SPECIAL] for text, values in zip(read, states, strict=True)]
    joined = np.concatenate(chosen, axis=1).astype("float64")  # (L + 1, T of all texts, H)
    count = joined.shape[1]
    require(count > 1, "texts", "texts of at least two tokens", f"{count} tokens")
    rng = np.random.default_rng(seed)
    first = rng.integers(count, size=_PAIRS)
    second = (first + rng.integers(1, count, size=_PAIRS)) % count  # another one
    return _cosines(joined[:, first], joined[:, second]).mean(axis=1)


def linear_cka(x: np.ndarray, y: np.ndarray) -> float:
    """Return the similarity of two sets of vectors of the same examples: 1 if one is the other, rotated and scaled.

    Linear centered kernel alignment (Kornblith et al., 2019, https://arxiv.org/abs/1905.00414):
    ‖Yᵀ X‖² / (‖Xᵀ X‖ ‖Yᵀ Y‖) in Frobenius norms, of centered columns.

    Args:
        x: float (n, H).
        y: float (n, K).

    Raises:
        ValueError: for another number of examples, or for vectors that are all equal.

    Example:

    ```python
    import numpy as np
    import lmzoo

    x = np.random.default_rng(1).normal(size=(20, 3))
    lmzoo.analysis.linear_cka(x, 5 * x[:, [2, 0, 1]])  # 1.0
    ```
    """
    x, y = (np.asarray(values, "float64") for values in (x, y))
    if len(x) != len(y):
        raise ValueError(f"`x` and `y` must be vectors of the same examples, got {len(x)} and {len(y)}.")
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    scale = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    if not scale:
        raise ValueError("All vectors of `x` or of `y` are equal: their similarity is not defined.")
    return float(np.linalg.norm(y.T @ x) ** 2 / scale)


def layer_similarity(
    model: Task | Backbone,
    texts: Any,
    other: Task | Backbone | None = None,
    batch_size: int = 32,
) -> np.ndarray:
    """`linear_cka` of the mean vectors of texts in all pairs of layers, float64 (L + 1, K + 1).

    Args:
        model: a task with a preprocessor, whose layers are the rows.
        texts: strings or pairs of them.
        other: another one, whose layers are the columns; by default the same.
        batch_size: int.

    Raises:
        TypeError: naming the position of an entry that is not text.
        ValueError: for fewer than two texts, or nothing that reads them.

    Example:

    ```python
    import lmzoo

    bert, albert = (
        lmzoo.models.TextEmbedder.from_preset(f"{name}_nano_en_uncased") for name in ("bert", "albert")
    )
    texts = ["A quiet film.", "The plot was dull.", "It rained.", "Who wrote it?"]
    lmzoo.analysis.layer_similarity(bert, texts, albert).shape
    ```
    """
    texts = listed(texts)
    means = [text_means(*hidden_states(m, texts, batch_size)) for m in ([model] if other is None else [model, other])]
    require(len(means[0]) > 1, "texts", "at least two texts", len(means[0]))
    rows, columns = means[0], means[-1]
    return np.array(
        [[linear_cka(rows[:, i], columns[:, j]) for j in range(columns.shape[1])] for i in range(rows.shape[1])]
    )


def probe(
    model: Task | Backbone,
    texts: Any,
    labels: Sequence[Any],
    folds: int = 5,
    batch_size: int = 32,
    preprocessor: Preprocessor | None = None,
    seed: int = 0,
) -> Probe:
    """How much each layer knows about the labels of texts: the accuracy of a linear classifier on its mean vectors.

    The classifier is scikit-learn's logistic regression on standardized vectors, in a cross-validation.

    Args:
        model: a task, or a backbone with a `preprocessor`. It is not trained.
        texts: strings or pairs of them.
        labels: one for each text.
        folds: int, parts of the cross-validation, each with examples of all classes.
        batch_size: int.
        preprocessor: of a backbone.
        seed: int, of the parts.

    Raises:
        TypeError: naming the position of an entry that is not text.
        ValueError: for another number of labels than of texts, for labels of words, for one class, or fewer examples of
            one than `folds`.

    Example:

    ```python
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased")
    texts = ["A fine film.", "Dull.", "I liked it.", "A bore."] * 3
    lmzoo.analysis.probe(embedder, texts, [1, 0, 1, 0] * 3, folds=3).accuracy  # of the embeddings and six layers
    ```
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    require(is_integer(folds, 2), "folds", "an integer of at least 2", folds)
    if any(isinstance(label, (list, tuple, np.ndarray)) for label in labels):
        raise ValueError("A probe takes one label for each text: for labels of words, train a TokenClassifier.")
    names, counts = np.unique(np.asarray(labels), return_counts=True)
    means = text_means(*hidden_states(model, texts, batch_size, preprocessor))  # (n, L + 1, H)
    if len(labels) != len(means):
        raise ValueError(f"`labels` must hold one label for each text: got {len(labels)} for {len(means)} texts.")
    if len(names) < 2 or counts.min() < folds:
        raise ValueError(
            f"A probe with `folds={folds}` needs at least two classes with {folds} examples each, got "
            f"{dict(zip(names.tolist(), counts.tolist(), strict=True))}."
        )
    parts = StratifiedKFold(folds, shuffle=True, random_state=seed)
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    scores = np.stack([cross_val_score(classifier, layer, labels, cv=parts) for layer in means.swapaxes(0, 1)])
    return Probe(scores.mean(axis=1), scores.std(axis=1))


def mix_weights(model: Task | Backbone) -> Mix:
    """How much a task uses each layer of ELMo: the softmax of what it has learned (Peters et al., 2018, figure 2).

    https://arxiv.org/abs/1802.05365. Syntax is found in lower layers, meaning in higher ones. Before training all
    weights are equal.

    Args:
        model: a task on ELMo, or an ELMo backbone.

    Raises:
        TypeError: for anything but a task or a backbone.
        ValueError: for a family that does not mix its layers.

    Example:

    ```python
    import lmzoo

    task = lmzoo.models.TextClassifier.from_preset("elmo_nano_en", labels=["bad", "good"])
    task.fit(["A fine film.", "Dull and slow."], ["good", "bad"], epochs=1, verbose=0)
    lmzoo.analysis.mix_weights(task).weights  # three, which sum to 1
    ```
    """
    if not isinstance(model, (Task, Backbone)):
        raise TypeError(f"Expected a task or a backbone of `lmzoo.models`, got {model!r:.60}.")
    backbone = model.backbone if isinstance(model, Task) else model
    mix = getattr(backbone, "scalar_mix", None)
    if mix is None:
        raise ValueError(
            f"{type(backbone).__name__} does not mix its layers, as ELMo does: `probe` tells which layer knows what."
        )
    scalars, gamma = (ops.convert_to_numpy(x).astype("float64") for x in (mix.scalars, mix.gamma))
    return Mix(softmax(scalars), float(gamma))


def _cosines(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the cosines along the last axis; 0 for vectors of zeros."""
    norms = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
    return (x * y).sum(axis=-1) / np.where(norms > 0, norms, 1)
