"""Comparison of a model's layers: distances, anisotropy, similarity, and linear probes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from lmzoo.analysis.reading import SPECIAL, Reader, compute_text_means, hidden_states, make_lists
from lmzoo.common.arguments import is_integer, require
from lmzoo.families import Backbone
from lmzoo.tasks import Task
from lmzoo.text import Preprocessor
from lmzoo.text.probabilities import softmax
from lmzoo.text.segments import split_segments

_NUM_PAIRS = 10_000  # random pairs of tokens whose cosines are averaged


class LayerChanges(NamedTuple):
    """Mean change of token vectors in each of L layers.

    Attributes:
        distance: float64 (L,), mean L2 distance between a layer's input and output.
        degrees: float64 (L,), mean angle between a layer's input and output, in degrees.

    Example: see `layer_changes`.
    """

    distance: np.ndarray
    degrees: np.ndarray


class Mix(NamedTuple):
    """Learned weights of ELMo's layers in a task.

    Attributes:
        weights: float64 (L + 1,), weights of the word vectors and the L layers, which sum to 1.
        gamma: float, factor of the weighted mean.

    Example: see `mix_weights`.
    """

    weights: np.ndarray
    gamma: float


class Probe(NamedTuple):
    """Accuracy of a linear classifier on the embeddings and on the outputs of each of L layers.

    Attributes:
        accuracy: float64 (L + 1,), mean accuracy over the folds of a cross-validation.
        deviation: float64 (L + 1,), standard deviation of the accuracy over the folds.

    Example: see `probe`.
    """

    accuracy: np.ndarray
    deviation: np.ndarray


def layer_changes(
    model: Task | Backbone, texts: Any, batch_size: int = 32, preprocessor: Preprocessor | None = None
) -> LayerChanges:
    """Return how far each layer moves the token vectors: mean distances and angles (Lan et al., 2020, figure 1).

    https://arxiv.org/abs/1909.11942. The paper plots both for BERT, where they oscillate, and for ALBERT, whose layers
    share their weights.

    Args:
        model: a task, or a backbone with a `preprocessor`; all layers must have the same width.
        texts: strings or pairs of strings.
        batch_size: int, number of sequences in a batch.
        preprocessor: preprocessor of the texts; required if `model` is a backbone.

    Raises:
        TypeError: If an entry is not text; the message gives its position.
        ValueError: If there are no texts, no text has tokens, or there is no preprocessor.

    Example:

    ```python
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset("albert_nano_en_uncased")
    lmzoo.analysis.layer_changes(embedder, ["A quiet film.", "The plot was dull."]).degrees
    ```
    """
    _, states = hidden_states(model, texts, batch_size, preprocessor)
    vectors = np.concatenate(states, axis=1).astype("float64")  # (L + 1, T of all texts, H)
    require(vectors.shape[1], "texts", "texts of at least one token", "0 tokens")
    inputs = vectors[:-1]
    outputs = vectors[1:]
    degrees = np.degrees(np.arccos(np.clip(_compute_cosines(inputs, outputs), -1, 1)))
    return LayerChanges(np.linalg.norm(outputs - inputs, axis=2).mean(axis=1), degrees.mean(axis=1))


def anisotropy(
    model: Task | Backbone, texts: Any, batch_size: int = 32, preprocessor: Preprocessor | None = None, seed: int = 0
) -> np.ndarray:
    """Return the mean cosine of random pairs of token vectors in the embeddings and each of L layers, float64 (L + 1,).

    The mean is near 0 if directions are random. In BERT, GPT-2 and ELMo, all vectors of upper layers lie in a narrow
    cone (Ethayarajh, 2019, https://aclanthology.org/D19-1006). Special tokens are left out.

    Args:
        model: a task, or a backbone with a `preprocessor`.
        texts: strings or pairs of strings, with at least two tokens in total besides special tokens.
        batch_size: int, number of sequences in a batch.
        preprocessor: preprocessor of the texts; required if `model` is a backbone.
        seed: int, seed of the random pairs.

    Raises:
        TypeError: If an entry is not text; the message gives its position.
        ValueError: If there are fewer than two tokens besides special tokens, or no preprocessor.

    Example:

    ```python
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased")
    lmzoo.analysis.anisotropy(embedder, ["A quiet film.", "The plot was dull."]).shape  # (7,)
    ```
    """
    read_texts, states = hidden_states(model, texts, batch_size, preprocessor)
    word_states = [
        text_states[:, text.segments != SPECIAL] for text, text_states in zip(read_texts, states, strict=True)
    ]
    vectors = np.concatenate(word_states, axis=1).astype("float64")  # (L + 1, T of all texts, H)
    num_tokens = vectors.shape[1]
    require(num_tokens > 1, "texts", "texts of at least two tokens", f"{num_tokens} tokens")
    rng = np.random.default_rng(seed)
    first_indices = rng.integers(num_tokens, size=_NUM_PAIRS)
    # An offset from 1 to `num_tokens - 1` never pairs a token with itself.
    second_indices = (first_indices + rng.integers(1, num_tokens, size=_NUM_PAIRS)) % num_tokens
    return _compute_cosines(vectors[:, first_indices], vectors[:, second_indices]).mean(axis=1)


def linear_cka(x: np.ndarray, y: np.ndarray) -> float:
    """Return the linear CKA similarity, from 0 to 1, of two sets of vectors for the same examples.

    The similarity is 1 if one set is the other set rotated and scaled. Linear centered kernel alignment (Kornblith et
    al., 2019, https://arxiv.org/abs/1905.00414) is ‖Yᵀ X‖² / (‖Xᵀ X‖ ‖Yᵀ Y‖) in Frobenius norms of centered columns.

    Args:
        x: float (n, H), vectors of n examples.
        y: float (n, K), other vectors of the same examples.

    Raises:
        ValueError: If the numbers of examples differ, or all vectors of a set are equal.

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
    # Centered, equal vectors need not be zero: their mean is rounded.
    is_defined = all((vectors != vectors[:1]).any() for vectors in (x, y))
    x = x - x.mean(axis=0)
    y = y - y.mean(axis=0)
    scale = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    if not (is_defined and scale):
        raise ValueError("All vectors of `x` or of `y` are equal: their similarity is not defined.")
    return float(np.linalg.norm(y.T @ x) ** 2 / scale)


def layer_similarity(
    model: Task | Backbone,
    texts: Any,
    other: Task | Backbone | None = None,
    batch_size: int = 32,
) -> np.ndarray:
    """Return the linear CKA similarity of all pairs of layers in one or two models, float64 (L + 1, K + 1).

    The vectors compared are the mean vectors of the texts in the embeddings and the L or K layers; see `linear_cka`.

    Args:
        model: a task with a preprocessor; its layers are the rows of the result.
        texts: strings or pairs of strings.
        other: a task with a preprocessor, by default `model`; its layers are the columns of the result.
        batch_size: int, number of sequences in a batch.

    Raises:
        TypeError: If an entry is not text; the message gives its position.
        ValueError: If there are fewer than two texts, all texts have the same mean vector in a layer, or there is no
            preprocessor.

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
    texts = make_lists(texts)
    num_texts = _count_texts(texts)
    require(num_texts > 1, "texts", "at least two texts", num_texts)
    models = [model] if other is None else [model, other]
    for compared_model in models:
        Reader.of(compared_model, None)  # fails before the hidden states of another model are computed
    means = [compute_text_means(*hidden_states(compared_model, texts, batch_size)) for compared_model in models]
    model_means = means[0]
    other_means = means[-1]
    return np.array(
        [
            [linear_cka(model_means[:, i], other_means[:, j]) for j in range(other_means.shape[1])]
            for i in range(model_means.shape[1])
        ]
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
    """Return how well a linear classifier predicts labels from the mean vectors of texts in each layer.

    The classifier is scikit-learn's logistic regression on standardized vectors, evaluated by cross-validation.

    Args:
        model: a task, or a backbone with a `preprocessor`; it is not trained.
        texts: strings or pairs of strings.
        labels: one label for each text.
        folds: int, number of folds of the cross-validation, each with examples of all classes.
        batch_size: int, number of sequences in a batch.
        preprocessor: preprocessor of the texts; required if `model` is a backbone.
        seed: int, seed of the division into folds.

    Raises:
        TypeError: If an entry is not text; the message gives its position.
        ValueError: If the numbers of labels and texts differ, labels are lists, there is only one class, a class has
            fewer examples than `folds`, `folds` is less than 2, or there is no preprocessor.

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
    class_names, class_counts = np.unique(np.asarray(labels), return_counts=True)
    texts = make_lists(texts)
    num_texts = _count_texts(texts)
    if len(labels) != num_texts:
        raise ValueError(f"`labels` must hold one label for each text: got {len(labels)} for {num_texts} texts.")
    if len(class_names) < 2 or class_counts.min() < folds:
        raise ValueError(
            f"A probe with `folds={folds}` needs at least two classes with {folds} examples each, got "
            f"{dict(zip(class_names.tolist(), class_counts.tolist(), strict=True))}."
        )
    means = compute_text_means(*hidden_states(model, texts, batch_size, preprocessor))  # (n, L + 1, H)
    splitter = StratifiedKFold(folds, shuffle=True, random_state=seed)
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    scores = np.stack(
        [cross_val_score(classifier, layer_means, labels, cv=splitter) for layer_means in means.swapaxes(0, 1)]
    )
    return Probe(scores.mean(axis=1), scores.std(axis=1))


def mix_weights(model: Task | Backbone) -> Mix:
    """Return the learned weights of ELMo's layers in a task (Peters et al., 2018, figure 2).

    https://arxiv.org/abs/1802.05365. Lower layers capture syntax, higher layers meaning. Before training, all weights
    are equal.

    Args:
        model: a task on ELMo, or an ELMo backbone.

    Raises:
        TypeError: If `model` is neither a task nor a backbone.
        ValueError: If the model's family does not mix its layers.

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


def _count_texts(texts: Any) -> int:
    """Return the number of texts or pairs of texts."""
    return len(split_segments(texts, words=True)[0])


def _compute_cosines(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the cosine similarity along the last axis, 0 for vectors of zeros."""
    norms = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
    return (x * y).sum(axis=-1) / np.where(norms > 0, norms, 1)
